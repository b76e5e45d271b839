"""Tests on numbers that several kernels make."""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl  # noqa: F401 - the interpreter looks for it in every kernel's module


@triton.jit
def is_nan(x):
    """True where x is NaN: nothing else fails to be at most infinity."""
    return ~(x <= float("inf"))
