"""Tests on numbers that several kernels make."""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton


@triton.jit
def is_nan(x):
    """True where x is NaN: nothing else fails to be at most infinity."""
    return ~(x <= float("inf"))
