"""Calls of NPU operators with small inputs, and what each must give, computed in float64 by loops of this file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from tests.backends.ascend.harness_support import normal, shuffled, whole

NPU = torch.ops.npu


class Call(NamedTuple):
    """A function of NPU operators, inputs for a seed and an element type, and the float64 result."""

    function: Callable[..., Any]
    inputs: Callable[[int, torch.dtype], tuple[Any, ...]]
    expected: Callable[..., Any]


def _rms(x: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
    rows = [row / (row.square().sum() / len(row) + 1e-6).sqrt() * gamma for row in x.reshape(-1, x.shape[-1])]
    return torch.stack(rows).reshape(x.shape)


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    result = torch.empty_like(x)
    for place in range(half):  # a plane of two values turned by one angle, where the tables are doubled halves
        a, b, c, s = x[..., place], x[..., place + half], cos[..., place], sin[..., place]
        result[..., place], result[..., place + half] = a * c - b * s, b * c + a * s
    return result


def _rotary_inputs(seed: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    angle = normal(seed + 1, 2, 3, 1, 4).repeat(1, 1, 1, 2)
    return normal(seed, 2, 3, 4, 8, dtype=dtype), angle.cos().to(dtype), angle.sin().to(dtype)


def _swiglu(x: torch.Tensor) -> torch.Tensor:
    gate, up = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return gate / (1 + (-gate).exp()) * up


def _written(cache: torch.Tensor, start: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    result = cache.clone()
    for sequence, first in enumerate(start.tolist()):
        for row in range(rows.shape[1]):
            result[sequence, first + row] = rows[sequence, row]
    return result


def _placed(table: torch.Tensor, index: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    result = table.clone()
    for place, row in zip(index[:, 0].tolist(), rows, strict=True):
        result[place] = row
    return result


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, *, precise: int = 2) -> Any:
    """BSND attention with a mask, no lengths."""
    return NPU.npu_fused_infer_attention_score(
        q, k, v, atten_mask=mask, num_heads=4, num_key_value_heads=2, scale=0.25,
        input_layout="BSND", sparse_mode=1, inner_precise=precise,
    )[0]  # fmt: skip


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Row by row over the keys whose mask is 0; zeros where there are none."""
    result = torch.zeros_like(q)
    for b in range(q.shape[0]):
        for row in range(q.shape[1]):
            seen = [key for key in range(k.shape[1]) if not mask[b, 0, row, key]]
            for head in range(q.shape[2]) if seen else ():
                scores = torch.stack([q[b, row, head] @ k[b, key, head // 2] for key in seen]) * 0.25
                weights = scores.exp() / scores.exp().sum()
                result[b, row, head] = sum(w * v[b, key, head // 2] for w, key in zip(weights, seen, strict=True))
    return result


def _attention_inputs(seed: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    dtype = torch.float16 if dtype == torch.float32 else dtype
    q, k, v = (
        normal(seed + n, 2, rows, heads, 16, dtype=dtype) for n, (rows, heads) in enumerate([(3, 4), (7, 2), (7, 2)])
    )
    return q, k, v, whole(seed, 2, 2, 1, 3, 7, dtype=torch.int8)


def moe_layer(x: torch.Tensor, logits: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Gating, routing, one product for each expert, and the way back."""
    scales, experts, rows = NPU.npu_moe_gating_top_k_softmax(logits, None, 2)
    routed, where, ordered = NPU.npu_moe_init_routing(x, rows, experts, x.shape[0])
    ends = NPU.npu_moe_compute_expert_tokens(ordered, weight.shape[0]).to(torch.int64)
    made = NPU.npu_grouped_matmul([routed], [weight], group_list=ends, split_item=3, group_type=0)[0]
    return NPU.npu_moe_finalize_routing(made, None, None, None, scales, where, experts)


def moe_layer_v2(x: torch.Tensor, logits: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The same by the second routing operator, whose pairs are numbered row by row."""
    scales, experts, _ = NPU.npu_moe_gating_top_k_softmax(logits, None, 2)
    count = weight.shape[0]
    routed, where, sizes, _ = NPU.npu_moe_init_routing_v2(
        x, experts, expert_num=count, active_num=-1, expert_tokens_num_type=1, expert_tokens_num_flag=True,
        quant_mode=-1, active_expert_range=[0, count], row_idx_type=0,
    )  # fmt: skip
    made = NPU.npu_grouped_matmul([routed], [weight], group_list=sizes, split_item=3, group_type=0, group_list_type=1)[
        0
    ]
    by_pair = made.index_select(0, where).reshape(x.shape[0], 2, -1)
    return (by_pair * scales[..., None]).sum(1)


def experts_of(x: torch.Tensor, logits: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Each row through its two likeliest experts, weighted by their probabilities."""
    rows = []
    for row, scores in zip(x, logits, strict=True):
        probabilities = scores.exp() / scores.exp().sum()
        best = sorted(range(len(scores)), key=lambda expert: -float(probabilities[expert]))[:2]
        rows.append(sum(probabilities[expert] * (row @ weight[expert]) for expert in best))
    return torch.stack(rows)


def _moe_inputs(seed: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    logits = torch.stack([shuffled(seed + row, 4) for row in range(5)]).to(dtype) / 2  # no two experts alike
    return normal(seed, 5, 8, dtype=dtype), logits, normal(seed + 1, 4, 8, 6, dtype=dtype)


def delta(q: Any, k: Any, v: Any, state: Any, beta: Any, gate: Any, lengths: Any, slots: Any) -> Any:
    """The functional form: (outputs, new state)."""
    return NPU.npu_recurrent_gated_delta_rule_functional(
        q, k, v, state, beta=beta, scale=0.5, actual_seq_lengths=lengths, ssm_state_indices=slots, g=gate
    )


def delta_expected(q: Any, k: Any, v: Any, state: Any, beta: Any, gate: Any, lengths: Any, slots: Any) -> Any:
    """S_t = e^g S_{t-1} (I - beta k k^T) + beta v k^T, written as a matrix product."""
    result, states, start = torch.empty_like(v), state.clone(), 0
    for count in lengths.tolist():
        for head in range(v.shape[1]):
            key_head, current = head // (v.shape[1] // k.shape[1]), state[slots[start], head]
            for token in range(start, start + count):
                key, b = k[token, key_head], beta[token, head]
                turn = torch.eye(len(key), dtype=key.dtype) - b * torch.outer(key, key)
                current = gate[token, head].exp() * current @ turn + b * torch.outer(v[token, head], key)
                result[token, head] = 0.5 * current @ q[token, key_head]
                states[slots[token], head] = current
        start += count
    return result, states


def _delta_inputs(seed: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    bf16 = torch.bfloat16
    unit = torch.nn.functional.normalize(normal(seed, 4, 2, 16), dim=-1).to(bf16)
    return (
        normal(seed + 1, 4, 2, 16, dtype=bf16),
        unit,
        normal(seed + 2, 4, 4, 8, dtype=bf16),
        normal(seed + 3, 6, 4, 8, 16, dtype=bf16),
        normal(seed + 4, 4, 4).sigmoid().to(bf16),
        -normal(seed + 5, 4, 4).abs(),
        torch.tensor([1, 3], dtype=torch.int32),
        shuffled(seed, 6)[:4].to(torch.int32),
    )


CALLS = {
    "rms_norm": Call(
        lambda x, g: NPU.npu_rms_norm(x, g, 1e-6)[0],
        lambda seed, dtype: (normal(seed, 2, 3, 16, dtype=dtype), normal(seed + 1, 16, dtype=dtype)),
        _rms,
    ),
    "add_rms_norm": Call(
        lambda x, y, g: NPU.npu_add_rms_norm(x, y, g, 1e-6)[::2],
        lambda seed, dtype: (
            *(normal(seed + n, 3, 16, dtype=dtype) for n in (0, 1)),
            normal(seed + 2, 16, dtype=dtype),
        ),
        lambda x, y, g: (_rms(x + y, g), x + y),
    ),
    "rotary_mul": Call(lambda x, c, s: NPU.npu_rotary_mul(x, c, s), _rotary_inputs, _rotated),
    "swiglu": Call(lambda x: NPU.npu_swiglu(x, -1), lambda seed, dtype: (normal(seed, 3, 16, dtype=dtype),), _swiglu),
    "scatter_update": Call(
        lambda c, i, r: NPU.scatter_update(c, i, r, 1),
        lambda seed, dtype: (
            normal(seed, 2, 8, 2, 4, dtype=dtype),
            whole(seed, 6, 2),
            normal(seed + 1, 2, 3, 2, 4, dtype=dtype),
        ),
        _written,
    ),
    "scatter_nd_update": Call(
        lambda t, i, r: NPU.npu_scatter_nd_update(t, i, r),
        lambda seed, dtype: (
            normal(seed, 6, 4, dtype=dtype),
            shuffled(seed, 6)[:3, None],
            normal(seed + 1, 3, 4, dtype=dtype),
        ),
        _placed,
    ),
    "attention": Call(attend, _attention_inputs, attended),
    "moe": Call(moe_layer, _moe_inputs, experts_of),
    "moe_v2": Call(moe_layer_v2, _moe_inputs, experts_of),
    "delta_rule": Call(delta, _delta_inputs, delta_expected),
}
