"""Host functions with the signatures of `specc.ir.ops` that launch the kernels; modules carry their source."""

from __future__ import annotations
