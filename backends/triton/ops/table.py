"""Which function stands for an op in a Triton module; ops that are not listed are their reference implementations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import Node

from specc.backends.printing.dialect import Call, Variant
from specc.backends.triton.ops import (
    attention,
    attention_paged,
    attention_step,
    cache,
    conv,
    delta,
    delta_variants,
    draft,
    drawing,
    linear,
    linear_conv,
    moe,
    pages,
    sampling,
    vocab,
)

aten = torch.ops.aten
Function = Callable[..., Any]
SHORTEST_SPLIT = 1024
"""Rows from this length on are divided between programs."""

FUNCTIONS: tuple[Function, ...] = (
    attention.ancestor_mask,
    attention.causal_attention,
    attention.causal_attention_cached,
    attention.rope,
    attention.rope_tables,
    attention.tree_attention,
    attention.tree_attention_cached,
    attention_paged.causal_attention_paged,
    attention_paged.rope_attention_paged_,
    attention_paged.rope_attention_paged_linear_,
    attention_paged.tree_attention_paged,
    attention_step.rope_attention_,
    attention_step.rope_attention_linear_,
    cache.append_path_layers_,
    cache.append_rows,
    cache.append_rows_,
    cache.commit_path,
    cache.commit_path_,
    cache.commit_path_layers_,
    cache.conv_commit_layers_,
    conv.conv_commit,
    conv.short_conv,
    conv.short_conv_,
    conv.token_conv_gates_,
    conv.tree_conv,
    conv.tree_conv_gates_,
    delta.delta_rule,
    delta.delta_rule_,
    delta.delta_rule_chunk,
    delta.delta_rule_chunk_,
    delta.delta_rule_commit,
    delta.delta_rule_commit_,
    delta.delta_rule_commit_layers_,
    draft.int_table,
    draft.lookup_tree,
    draft.pack_tree,
    draft.score_rank,
    drawing.draw_children,
    drawing.draw_embedded,
    drawing.drawn_laws,
    linear.fused_linear,
    linear_conv.linear_token_conv_gates_,
    linear_conv.linear_tree_conv_gates_,
    moe.moe,
    pages.append_pages_,
    pages.commit_pages_,
    pages.commit_pages_layers_,
    pages.take_pages_,
    sampling.counter_uniform,
    sampling.counter_uniform_rows,
    sampling.reject_tree,
    sampling.sample_index,
    sampling.sampling_probs,
    vocab.argmax_parts,
    vocab.stable_topk,
    vocab.topk_log_probs,
    vocab.vocabulary_argmax,
)
KERNELS: Mapping[str, Function] = {function.__name__: function for function in FUNCTIONS}
NAMES: frozenset[str] = frozenset(KERNELS) | delta_variants.NAMES


def variant(op: str, arguments: Mapping[str, Any]) -> Variant | None:
    """The function for an op that has one per schedule; None for all others."""
    return delta_variants.variant(op, arguments)


def special(node: Node) -> Call | None:
    """Functions for aten nodes over a vocabulary, which torch gives to a few programs only."""
    if node.target is aten.argmax.default and len(node.args) == 2 and not node.kwargs:
        value, dim = node.args
        assert isinstance(value, Node)
        fake = value.meta["val"]
        if dim in (-1, fake.dim() - 1) and int(fake.shape[-1]) >= SHORTEST_SPLIT:
            return vocab.vocabulary_argmax, (value,)
    return None
