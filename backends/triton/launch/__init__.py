"""What host functions that launch kernels share."""

from __future__ import annotations
