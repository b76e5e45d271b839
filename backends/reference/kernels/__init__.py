"""Faster forms of ops for generated modules: same signature and meaning as the op's reference implementation.

An op that is not listed here is printed with its reference implementation from `specc.ir.ops`, or, where `variants`
has functions for it, with the one for its schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from specc.backends.reference.kernels import (
    attention,
    cache,
    conv,
    delta,
    moe,
    pages,
    pointwise,
)

KERNELS: Mapping[str, Callable[..., Any]] = {
    "append_pages_": pages.append_pages_,
    "append_rows": cache.append_rows,
    "append_rows_": cache.append_rows_,
    "causal_attention": attention.causal_attention,
    "causal_attention_cached": attention.causal_attention_cached,
    "causal_attention_paged": pages.causal_attention_paged,
    "commit_pages_": pages.commit_pages_,
    "commit_path": cache.commit_path,
    "commit_path_": cache.commit_path_,
    "conv_commit": conv.conv_commit,
    "delta_rule": delta.delta_rule,
    "delta_rule_": delta.delta_rule_,
    "delta_rule_chunk": delta.delta_rule_chunk,
    "delta_rule_chunk_": delta.delta_rule_chunk_,
    "delta_rule_commit": delta.delta_rule_commit,
    "delta_rule_commit_": delta.delta_rule_commit_,
    "moe": moe.moe,
    "rope": attention.rope,
    "short_conv": conv.short_conv,
    "take_pages_": pages.take_pages_,
    "tree_attention": attention.tree_attention,
    "tree_attention_cached": attention.tree_attention_cached,
    "tree_attention_paged": pages.tree_attention_paged,
    "tree_conv": conv.tree_conv,
}

# Of aten ops with one operand.
POINTWISE: Mapping[object, Callable[..., Any]] = {
    torch.ops.aten.sigmoid.default: pointwise.sigmoid,
    torch.ops.aten.silu.default: pointwise.silu,
    torch.ops.aten.softplus.default: pointwise.softplus,
}
