"""Triton kernels, one family per file; they import, run under TRITON_INTERPRET=1 and compile without a GPU."""

from __future__ import annotations
