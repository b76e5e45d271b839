"""Pass 1, rewrite-negative-indices, as a pass on programs and as a function on any graph module."""

from __future__ import annotations

from specc.passes.rewrite_negative_indices.rewrite import (
    RewriteNegativeIndices,
    index_safe,
    rewrite_negative_indices,
    unsafe_indices,
)
from specc.passes.rewrite_negative_indices.uses import Policy

__all__ = ["Policy", "RewriteNegativeIndices", "index_safe", "rewrite_negative_indices", "unsafe_indices"]
