"""Which function stands for an op in a Triton module; ops that are not listed are their reference implementations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from specc.backends.printing.dialect import Variant
from specc.backends.triton.ops import attention, cache, conv, delta, delta_variants, linear

Function = Callable[..., Any]

FUNCTIONS: tuple[Function, ...] = (
    attention.ancestor_mask,
    attention.causal_attention,
    attention.causal_attention_cached,
    attention.rope,
    attention.rope_tables,
    attention.tree_attention,
    attention.tree_attention_cached,
    cache.append_path_layers_,
    cache.append_rows,
    cache.append_rows_,
    cache.commit_path,
    cache.commit_path_,
    cache.commit_path_layers_,
    conv.conv_commit,
    conv.short_conv,
    conv.tree_conv,
    delta.delta_rule,
    delta.delta_rule_,
    delta.delta_rule_chunk,
    delta.delta_rule_chunk_,
    delta.delta_rule_commit,
    delta.delta_rule_commit_,
    linear.fused_linear,
)
KERNELS: Mapping[str, Function] = {function.__name__: function for function in FUNCTIONS}
NAMES: frozenset[str] = frozenset(KERNELS) | delta_variants.NAMES


def variant(op: str, arguments: Mapping[str, Any]) -> Variant | None:
    """The function for an op that has one per schedule; None for all others."""
    return delta_variants.variant(op, arguments)
