"""Every op of the IR; importing this package registers them all."""

from __future__ import annotations

from specc.ir.ops.attention import ancestor_mask, causal_attention, rope, rope_tables, tree_attention
from specc.ir.ops.buffer import append_rows_, causal_attention_cached, commit_path_, tree_attention_cached
from specc.ir.ops.cache import append_rows, commit_path
from specc.ir.ops.create import batch_index, full_rows, iota
from specc.ir.ops.draft import int_table, pack_tree, score_rank, stable_topk
from specc.ir.ops.sampling import counter_uniform, counter_uniform_rows, sample_index, sampling_probs

__all__ = [
    "ancestor_mask",
    "append_rows",
    "append_rows_",
    "batch_index",
    "causal_attention",
    "causal_attention_cached",
    "commit_path",
    "commit_path_",
    "counter_uniform",
    "counter_uniform_rows",
    "full_rows",
    "int_table",
    "iota",
    "pack_tree",
    "rope",
    "rope_tables",
    "sample_index",
    "sampling_probs",
    "score_rank",
    "stable_topk",
    "tree_attention",
    "tree_attention_cached",
]
