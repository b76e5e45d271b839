"""Every op of the IR; importing this package registers them all."""

from __future__ import annotations

from specc.ir.ops.attention import ancestor_mask, causal_attention, rope, rope_tables, tree_attention
from specc.ir.ops.cache import append_rows, commit_path
from specc.ir.ops.create import batch_index, full_rows, iota

__all__ = [
    "ancestor_mask",
    "append_rows",
    "batch_index",
    "causal_attention",
    "commit_path",
    "full_rows",
    "iota",
    "rope",
    "rope_tables",
    "tree_attention",
]
