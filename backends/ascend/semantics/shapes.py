"""Shapes and types of the operators' results, for tracing where torch_npu's own meta functions are not loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from specc.backends.ascend.semantics.calls import Kernel

TRANSPOSED = "BNSD_BSND"


def _normed(x: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6) -> tuple[torch.Tensor, torch.Tensor]:
    kept = [1 if place >= x.dim() - gamma.dim() else size for place, size in enumerate(x.shape)]
    return torch.empty_like(x), x.new_empty(kept, dtype=torch.float32)


def _add_normed(x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6) -> Any:
    return (*_normed(x1, gamma), torch.empty_like(x1))


def _like_first(first: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return torch.empty_like(first)


def _first(first: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return first


def _halved(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    shape = list(x.shape)
    shape[dim] //= 2
    return x.new_empty(shape)


def _attention(query: torch.Tensor, *_: Any, input_layout: str = "BSH", **__: Any) -> torch.Tensor:
    return torch.empty_like(query.transpose(1, 2) if input_layout == TRANSPOSED else query).contiguous()


def _attention_and_sum(query: torch.Tensor, *others: Any, **named: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return _attention(query, *others, **named), query.new_empty(1, dtype=torch.float32)


def _gated(x: torch.Tensor, finished: torch.Tensor | None = None, k: int = 1) -> Any:
    shape = [*x.shape[:-1], k]
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.int32), x.new_empty(shape, dtype=torch.int32)


def _routed(x: torch.Tensor, row_idx: torch.Tensor, expert_idx: torch.Tensor, active_num: int) -> Any:
    count, k = expert_idx.shape
    expanded = x.new_empty(min(count, active_num) * k, x.shape[1])
    return expanded, row_idx.new_empty(count * k), row_idx.new_empty(count * k)


def _routed_v2(
    x: torch.Tensor,
    expert_idx: torch.Tensor,
    *,
    expert_num: int = -1,
    active_expert_range: Sequence[int] = (),
    **_: Any,
) -> Any:
    pairs = expert_idx.shape[0] * expert_idx.shape[1]
    first, last = active_expert_range or (0, expert_num)
    counts = x.new_empty(last - first, dtype=torch.int64)
    rows = x.new_empty(pairs, dtype=torch.int32)
    return x.new_empty(pairs, x.shape[1]), rows, counts, x.new_empty(pairs, dtype=torch.float32)


def _expert_tokens(experts: torch.Tensor, num_expert: int) -> torch.Tensor:
    return experts.new_empty(num_expert)


def _finalized(
    rows: torch.Tensor, skip1: Any, skip2: Any, bias: Any, scales: torch.Tensor | None, where: torch.Tensor,
    experts: Any, drop_pad_mode: int | None = 0, k: int | None = 1,
) -> torch.Tensor:  # fmt: skip
    each = scales.shape[1] if scales is not None else k or 1
    return rows.new_empty(where.shape[0] // each, rows.shape[1])


def _linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return input.new_empty(input.shape[0], weight.shape[0])


def _grouped(x: Sequence[torch.Tensor], weight: Sequence[torch.Tensor], **_: Any) -> list[torch.Tensor]:
    return [x[0].new_empty(x[0].shape[0], weight[0].shape[2])]


def _delta(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, state: torch.Tensor, **_: Any) -> torch.Tensor:
    return torch.empty_like(value)


def _delta_functional(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, state: torch.Tensor, **_: Any
) -> Any:
    return torch.empty_like(value), torch.empty_like(state)


META_KERNELS: Mapping[str, Kernel] = MappingProxyType(
    {
        "npu_rms_norm": _normed,
        "npu_add_rms_norm": _add_normed,
        "npu_rotary_mul": _like_first,
        "npu_swiglu": _halved,
        "npu_linear": _linear,
        "scatter_update": _like_first,
        "scatter_update_": _first,
        "npu_scatter_nd_update": _like_first,
        "npu_scatter_nd_update_": _first,
        "npu_fused_infer_attention_score": _attention_and_sum,
        "npu_prompt_flash_attention": _attention,
        "npu_moe_gating_top_k_softmax": _gated,
        "npu_moe_init_routing": _routed,
        "npu_moe_init_routing_v2": _routed_v2,
        "npu_moe_compute_expert_tokens": _expert_tokens,
        "npu_moe_finalize_routing": _finalized,
        "npu_grouped_matmul": _grouped,
        "npu_recurrent_gated_delta_rule": _delta,
        "npu_recurrent_gated_delta_rule_functional": _delta_functional,
    }
)
"""The operators of CPU_KERNELS on meta tensors."""
