"""The operators' signatures on CPU tensors: every argument that is not described refuses anything but its default."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from specc.backends.ascend.semantics import delta_rule, fused, moe
from specc.backends.ascend.semantics.attention import UNBOUNDED, AttentionSettings, attention
from specc.backends.ascend.semantics.scatter import scatter_nd_update_, scatter_update_

Kernel = Callable[..., Any]
Lengths = Sequence[int] | torch.Tensor | None

ATTENTION_DEFAULTS = {
    "pre_tokens": UNBOUNDED,
    "next_tokens": UNBOUNDED,
    "block_size": 0,
    "antiquant_mode": 0,
    "key_antiquant_mode": 0,
    "value_antiquant_mode": 0,
    "softmax_lse_flag": False,
    "actual_shared_prefix_len": None,
}


def only_defaults(name: str, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """NotImplementedError for an argument that is neither absent nor its default (None unless listed)."""
    for argument, value in given.items():
        if value is not None and value != defaults.get(argument):
            raise NotImplementedError(f"{name} with {argument} has no CPU kernel")


def rms_norm(input: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6) -> tuple[torch.Tensor, torch.Tensor]:
    """npu_rms_norm."""
    return fused.rms_norm(input, gamma, epsilon)


def add_rms_norm(x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6) -> Any:
    """npu_add_rms_norm."""
    return fused.add_rms_norm(x1, x2, gamma, epsilon)


def rotary_mul(
    input: torch.Tensor,
    r1: torch.Tensor,
    r2: torch.Tensor,
    rotary_mode: str = "half",
    rotate: torch.Tensor | None = None,
) -> torch.Tensor:
    """npu_rotary_mul, by halves."""
    if rotary_mode != "half" or rotate is not None:
        raise NotImplementedError("npu_rotary_mul: only rotary_mode half without a rotate matrix has a CPU kernel")
    return fused.rotary_mul(input, r1, r2)


def swiglu(input: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """npu_swiglu."""
    return fused.swiglu(input, dim)


def linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """npu_linear."""
    return fused.linear(input, weight, bias)


def scatter_update(input: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor, axis: int) -> torch.Tensor:
    """scatter_update: a new tensor."""
    return scatter_update_(input.clone(), indices, updates, axis)


def scatter_nd_update(input: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
    """npu_scatter_nd_update: a new tensor."""
    return scatter_nd_update_(input.clone(), indices, updates)


def fused_infer_attention_score(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    atten_mask: torch.Tensor | None = None,
    actual_seq_lengths: Lengths = None,
    actual_seq_lengths_kv: Lengths = None,
    num_heads: int = 1,
    num_key_value_heads: int = 0,
    scale: float = 1.0,
    input_layout: str = "BSH",
    sparse_mode: int = 0,
    inner_precise: int = 0,
    **others: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """npu_fused_infer_attention_score, with lengths as a list or (the form of torchair.ops) as an int64 tensor."""
    only_defaults("npu_fused_infer_attention_score", others, ATTENTION_DEFAULTS)
    settings = AttentionSettings(num_heads, num_key_value_heads, scale, input_layout, sparse_mode, inner_precise)
    lengths = (_listed(actual_seq_lengths), _listed(actual_seq_lengths_kv))
    return attention(query, key, value, atten_mask, *lengths, settings), torch.zeros(1)


def prompt_flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    atten_mask: torch.Tensor | None = None,
    actual_seq_lengths: Lengths = None,
    actual_seq_lengths_kv: Lengths = None,
    num_heads: int = 1,
    num_key_value_heads: int = 0,
    scale_value: float = 1.0,
    pre_tokens: int = UNBOUNDED,
    next_tokens: int = 0,
    input_layout: str = "BSH",
    sparse_mode: int = 0,
    **others: Any,
) -> torch.Tensor:
    """npu_prompt_flash_attention: next_tokens is 0 unless given; rows without keys are undefined."""
    only_defaults("npu_prompt_flash_attention", others, {})
    settings = AttentionSettings(
        num_heads, num_key_value_heads, scale_value, input_layout, sparse_mode, 1, pre_tokens, next_tokens
    )
    lengths = (_listed(actual_seq_lengths), _listed(actual_seq_lengths_kv))
    return attention(query, key, value, atten_mask, *lengths, settings)


def _listed(lengths: Lengths) -> list[int] | None:
    if isinstance(lengths, torch.Tensor):
        if lengths.dtype != torch.int64:
            raise ValueError(f"lengths of {lengths.dtype}, int64 needed")
        lengths = lengths.reshape(-1).tolist()
    return None if lengths is None else [int(length) for length in lengths]


def moe_gating(x: torch.Tensor, finished: torch.Tensor | None = None, k: int = 1) -> Any:
    """npu_moe_gating_top_k_softmax."""
    only_defaults("npu_moe_gating_top_k_softmax", {"finished": finished}, {})
    return moe.gating_top_k_softmax(x, k)


def moe_init_routing_v2(
    x: torch.Tensor,
    expert_idx: torch.Tensor,
    *,
    active_num: int = -1,
    expert_capacity: int = -1,
    expert_num: int = -1,
    drop_pad_mode: int = 0,
    expert_tokens_num_type: int = 0,
    expert_tokens_num_flag: bool = False,
    quant_mode: int = -1,
    active_expert_range: Sequence[int] = (),
    row_idx_type: int = 0,
    **others: Any,
) -> Any:
    """npu_moe_init_routing_v2, without quantisation, with counts (expert_tokens_num_type 1)."""
    only_defaults("npu_moe_init_routing_v2", others, {})
    modes = (drop_pad_mode, expert_tokens_num_type, expert_tokens_num_flag, quant_mode)
    if modes != (0, 1, True, -1) or active_num not in (-1, 0):
        raise NotImplementedError(
            "npu_moe_init_routing_v2: only counts of all tokens, not quantised, have a CPU kernel"
        )
    first, last = active_expert_range or (0, expert_num)
    return moe.init_routing_v2(x, expert_idx, expert_num, (first, last), row_idx_type)


def grouped_matmul(
    x: Sequence[torch.Tensor],
    weight: Sequence[torch.Tensor],
    *,
    group_list: torch.Tensor | None = None,
    split_item: int | None = 0,
    group_type: int | None = None,
    group_list_type: int | None = 0,
    **others: Any,
) -> list[torch.Tensor]:
    """npu_grouped_matmul of one x and one stacked weight, rows grouped."""
    only_defaults("npu_grouped_matmul", others, {"act_type": 0})
    if len(x) != 1 or len(weight) != 1 or split_item not in (2, 3) or group_type != 0 or group_list is None:
        raise NotImplementedError("npu_grouped_matmul: only one x, one weight, groups of rows have a CPU kernel")
    return [moe.grouped_matmul(x[0], weight[0], group_list, group_list_type or 0)]


def moe_finalize_routing(
    rows: torch.Tensor,
    skip1: torch.Tensor | None,
    skip2: torch.Tensor | None,
    bias: torch.Tensor | None,
    scales: torch.Tensor | None,
    where: torch.Tensor,
    experts: torch.Tensor | None,
    drop_pad_mode: int | None = 0,
    k: int | None = 1,
) -> torch.Tensor:
    """npu_moe_finalize_routing."""
    only_defaults("npu_moe_finalize_routing", {"drop_pad_mode": drop_pad_mode}, {"drop_pad_mode": 0})
    skips = [skip for skip in (skip1, skip2) if skip is not None]
    return moe.finalize_routing(
        rows, skips, bias, scales, where, experts, scales.shape[1] if scales is not None else k or 1
    )


def recurrent_delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    state: torch.Tensor,
    *,
    beta: torch.Tensor | None = None,
    scale: float | None = None,
    actual_seq_lengths: torch.Tensor | None = None,
    ssm_state_indices: torch.Tensor | None = None,
    num_accepted_tokens: torch.Tensor | None = None,
    g: torch.Tensor | None = None,
    gk: torch.Tensor | None = None,
) -> torch.Tensor:
    """npu_recurrent_gated_delta_rule: `state` changes in place."""
    if beta is None or scale is None or actual_seq_lengths is None or ssm_state_indices is None or gk is not None:
        raise ValueError("npu_recurrent_gated_delta_rule needs beta, scale, lengths and state indices, and no gk")
    parts = (query, key, value, state, beta, scale, actual_seq_lengths, ssm_state_indices)
    return delta_rule.recurrent_gated_delta_rule_(*parts, num_accepted_tokens, g)


def recurrent_delta_rule_functional(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, state: torch.Tensor, **settings: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """npu_recurrent_gated_delta_rule_functional: (outputs, the new state)."""
    fresh = state.clone()
    return recurrent_delta_rule(query, key, value, fresh, **settings), fresh


CPU_KERNELS: Mapping[str, Kernel] = MappingProxyType(
    {
        "npu_rms_norm": rms_norm,
        "npu_add_rms_norm": add_rms_norm,
        "npu_rotary_mul": rotary_mul,
        "npu_swiglu": swiglu,
        "npu_linear": linear,
        "scatter_update": scatter_update,
        "scatter_update_": scatter_update_,
        "npu_scatter_nd_update": scatter_nd_update,
        "npu_scatter_nd_update_": scatter_nd_update_,
        "npu_fused_infer_attention_score": fused_infer_attention_score,
        "npu_prompt_flash_attention": prompt_flash_attention,
        "npu_moe_gating_top_k_softmax": moe_gating,
        "npu_moe_init_routing": moe.init_routing,
        "npu_moe_init_routing_v2": moe_init_routing_v2,
        "npu_moe_compute_expert_tokens": moe.compute_expert_tokens,
        "npu_moe_finalize_routing": moe_finalize_routing,
        "npu_grouped_matmul": grouped_matmul,
        "npu_recurrent_gated_delta_rule": recurrent_delta_rule,
        "npu_recurrent_gated_delta_rule_functional": recurrent_delta_rule_functional,
    }
)
"""Every `npu::` operator that has a CPU kernel."""
