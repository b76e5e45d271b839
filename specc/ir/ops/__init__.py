"""Every op of the IR; importing this package registers them all."""

from __future__ import annotations

from specc.ir.ops.attention import ancestor_mask, causal_attention, rope, rope_tables, tree_attention
from specc.ir.ops.buffer import append_rows_, causal_attention_cached, commit_path_, tree_attention_cached
from specc.ir.ops.cache import append_rows, commit_path
from specc.ir.ops.conv import conv_commit, short_conv, tree_conv
from specc.ir.ops.create import batch_index, full_rows, iota, root_table
from specc.ir.ops.delta import delta_rule, delta_rule_chunk, delta_rule_commit
from specc.ir.ops.delta_buffer import (
    delta_rule_,
    delta_rule_chunk_,
    delta_rule_commit_,
    delta_rule_verify_pending_,
)
from specc.ir.ops.delta_verify import delta_rule_verify, delta_rule_verify_pending, delta_rule_verify_states
from specc.ir.ops.draft import int_table, lookup_tree, pack_tree, score_rank, stable_topk
from specc.ir.ops.drawing import draw_children, draw_embedded, drawn_laws
from specc.ir.ops.gates import (
    linear_token_conv_gates_,
    linear_tree_conv_gates_,
    token_conv_gates_,
    tree_conv_gates_,
)
from specc.ir.ops.layers import (
    append_path_layers_,
    commit_path_layers_,
    conv_commit_layers_,
    delta_rule_commit_layers_,
    rope_attention_,
    rope_attention_linear_,
    short_conv_,
)
from specc.ir.ops.linear import fused_linear
from specc.ir.ops.moe import moe
from specc.ir.ops.npu import npu_rms_norm, npu_rotary_mul, npu_swiglu
from specc.ir.ops.npu_attention import attention_mask, masked_attention, npu_fused_infer_attention_score
from specc.ir.ops.npu_cache import joined_rows, npu_scatter_update
from specc.ir.ops.npu_delta import npu_chain_slots, npu_pool_fill, npu_pool_read, npu_recurrent_chain
from specc.ir.ops.pages import (
    append_pages_,
    causal_attention_paged,
    commit_pages_,
    commit_pages_layers_,
    rope_attention_paged_,
    rope_attention_paged_linear_,
    take_pages_,
    tree_attention_paged,
)
from specc.ir.ops.sampling import counter_uniform, counter_uniform_rows, sample_index, sampling_probs
from specc.ir.ops.vocab import argmax_parts, greedy_tree, reject_tree, topk_log_probs, vocabulary_argmax

__all__ = [
    "ancestor_mask",
    "append_pages_",
    "append_path_layers_",
    "append_rows",
    "append_rows_",
    "argmax_parts",
    "attention_mask",
    "batch_index",
    "causal_attention",
    "causal_attention_cached",
    "causal_attention_paged",
    "commit_pages_",
    "commit_pages_layers_",
    "commit_path",
    "commit_path_",
    "commit_path_layers_",
    "conv_commit",
    "conv_commit_layers_",
    "counter_uniform",
    "counter_uniform_rows",
    "delta_rule",
    "delta_rule_",
    "delta_rule_chunk",
    "delta_rule_chunk_",
    "delta_rule_commit",
    "delta_rule_commit_",
    "delta_rule_commit_layers_",
    "delta_rule_verify",
    "delta_rule_verify_pending",
    "delta_rule_verify_pending_",
    "delta_rule_verify_states",
    "draw_children",
    "draw_embedded",
    "drawn_laws",
    "full_rows",
    "fused_linear",
    "greedy_tree",
    "int_table",
    "iota",
    "joined_rows",
    "linear_token_conv_gates_",
    "linear_tree_conv_gates_",
    "lookup_tree",
    "masked_attention",
    "moe",
    "npu_chain_slots",
    "npu_fused_infer_attention_score",
    "npu_pool_fill",
    "npu_pool_read",
    "npu_recurrent_chain",
    "npu_rms_norm",
    "npu_rotary_mul",
    "npu_scatter_update",
    "npu_swiglu",
    "pack_tree",
    "reject_tree",
    "root_table",
    "rope",
    "rope_attention_",
    "rope_attention_linear_",
    "rope_attention_paged_",
    "rope_attention_paged_linear_",
    "rope_tables",
    "sample_index",
    "sampling_probs",
    "score_rank",
    "short_conv",
    "short_conv_",
    "stable_topk",
    "take_pages_",
    "token_conv_gates_",
    "topk_log_probs",
    "tree_attention",
    "tree_attention_cached",
    "tree_attention_paged",
    "tree_conv",
    "tree_conv_gates_",
    "vocabulary_argmax",
]
