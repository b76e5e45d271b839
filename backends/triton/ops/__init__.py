"""Host functions with the signatures of `specc.ir.ops` that launch the kernels; generated modules carry their source."""

from __future__ import annotations
