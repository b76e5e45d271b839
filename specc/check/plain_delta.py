"""Gated DeltaNet layers and mixtures of experts on whole texts, token by token from the formulas.

Plain torch, independent of the IR. The rule (Yang et al., 2024, "Gated Delta Networks", eq. 10), per value head with
state S [V,K]: S' = e^g S, u = beta (v - S' k), S = S' + u k^T, o = S q, with q and k of unit length and q scaled by
K^-0.5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specc.models.geometry import DeltaGeometry, MoeGeometry

UNIT_EPS = 1e-6
"""Added to the sum of squares of q and k before the root (flash-linear-attention, transformers)."""


@dataclass(frozen=True, slots=True)
class Named:
    """The weights of one layer by logical name: tensor number `trip` of every weight with the prefix."""

    weights: Mapping[str, Tensor | Sequence[Tensor]]
    prefix: str
    trip: int

    def __contains__(self, name: object) -> bool:
        return f"{self.prefix}{name}" in self.weights

    def __getitem__(self, name: str) -> Tensor:
        value = self.weights[self.prefix + name]
        return value if isinstance(value, Tensor) else value[self.trip]

    def project(self, x: Tensor, name: str) -> Tensor:
        """The linear layer `name` on the last dim of x, with its bias where it has one."""
        out = x @ self[name].T
        return out + self[f"{name}_bias"] if f"{name}_bias" in self else out


def silu(x: Tensor) -> Tensor:
    """x sigmoid(x)."""
    return x / (1 + (-x).exp())


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + e^-x)."""
    return 1 / (1 + (-x).exp())


def _separate(x: Tensor, w: Named, delta: DeltaGeometry) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """flash-linear-attention: a projection for each of q, k, v, gate, a, b."""
    mixed = torch.cat([w.project(x, f"{letter}_proj") for letter in "qkv"], -1)
    gate = w.project(x, "g_proj").unflatten(-1, (-1, delta.value_dim)) if delta.use_gate else None
    return mixed, gate, w.project(x, "a_proj"), w.project(x, "b_proj")


def _grouped(x: Tensor, w: Named, delta: DeltaGeometry) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """qwen3_next: key head h owns [q, k, v of its value heads, gate of its value heads], and [b, a] of them."""
    share, heads = delta.num_value_heads // delta.num_key_heads, delta.num_key_heads
    wide = share * delta.value_dim
    every, rates = w.project(x, "in_proj_qkvz"), w.project(x, "in_proj_ba")
    columns: dict[str, list[Tensor]] = {name: [] for name in ("q", "k", "v", "gate", "b", "a")}
    for head in range(heads):
        start = head * 2 * (delta.key_dim + wide)
        for name, size in (("q", delta.key_dim), ("k", delta.key_dim), ("v", wide), ("gate", wide)):
            columns[name].append(every[..., start : start + size])
            start += size
        start = head * 2 * share
        columns["b"].append(rates[..., start : start + share])
        columns["a"].append(rates[..., start + share : start + 2 * share])
    joined = {name: torch.cat(parts, -1) for name, parts in columns.items()}
    mixed = torch.cat([joined["q"], joined["k"], joined["v"]], -1)
    return mixed, joined["gate"].unflatten(-1, (-1, delta.value_dim)), joined["a"], joined["b"]


def convolution(mixed: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """silu of the causal depthwise convolution; mixed [R,T,C], weight [C,1,W], zeros before the text."""
    taps, size = weight.shape[-1], mixed.shape[1]
    padded = torch.cat((mixed.new_zeros(mixed.shape[0], taps - 1, mixed.shape[2]), mixed), 1)
    out = sum((padded[:, tap : tap + size] * weight[:, 0, tap] for tap in range(taps)), torch.zeros_like(mixed))
    return silu(out if bias is None else out + bias)


def unit(x: Tensor) -> Tensor:
    """x of unit length along its last dim, as q and k are in the rule."""
    return x / ((x * x).sum(-1, keepdim=True) + UNIT_EPS).sqrt()


def rule(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """q, k [R,T,HV,K], v [R,T,HV,V], decay (e^g) and beta [R,T,HV] -> o [R,T,HV,V], states [R,T,HV,V,K]."""
    rows, tokens, heads, values = v.shape
    state = torch.zeros((rows, heads, values, k.shape[-1]), dtype=v.dtype)
    outputs, states = [], []
    for t in range(tokens):
        state = decay[:, t, :, None, None] * state
        u = beta[:, t, :, None] * (v[:, t] - torch.einsum("rhvk,rhk->rhv", state, k[:, t]))
        state = state + torch.einsum("rhv,rhk->rhvk", u, k[:, t])
        outputs.append(torch.einsum("rhvk,rhk->rhv", state, q[:, t]))
        states.append(state)
    return torch.stack(outputs, 1), torch.stack(states, 1)


def delta_layer(x: Tensor, w: Named, delta: DeltaGeometry) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x [R,T,H] -> what the layer adds [R,T,H], the convolution's inputs [R,T,C], states [R,T,HV,V,K], and what is read
    out of them [R,T,HV V] (normed and gated)."""
    mixed, gate, a, b = _grouped(x, w, delta) if delta.grouped else _separate(x, w, delta)
    convolved = silu(mixed)
    if delta.conv_size:
        convolved = convolution(mixed, w["conv"], w["conv_bias"] if delta.conv_bias else None)
    key, share = delta.num_key_heads * delta.key_dim, delta.num_value_heads // delta.num_key_heads
    q, k = (convolved[..., i * key : (i + 1) * key].unflatten(-1, (-1, delta.key_dim)) for i in range(2))
    v = convolved[..., 2 * key :].unflatten(-1, (-1, delta.value_dim))
    owner = [head // share for head in range(delta.num_value_heads)]
    rate = a + w["dt_bias"]
    softplus = torch.where(rate > 20, rate, (1 + rate.clamp(max=20).exp()).log())
    decay = (-w["a_log"].exp() * softplus).exp()
    beta = sigmoid(b) * (2 if delta.allow_neg_eigval else 1)
    o, states = rule(unit(q)[:, :, owner] / delta.key_dim**0.5, unit(k)[:, :, owner], v, decay, beta)
    normed = o / (o.pow(2).mean(-1, keepdim=True) + delta.norm_eps).sqrt() * w["o_norm"]
    read = (normed if gate is None else normed * silu(gate)).flatten(2)
    return w.project(read, "o_proj"), mixed, states, read


def mixture_of_experts(x: Tensor, w: Named, moe: MoeGeometry) -> Tensor:
    """x [R,T,H] through all experts, of which a token's likeliest count, and the shared expert with its gate."""
    width, hidden = moe.intermediate_size, x.shape[-1]
    scores = w.project(x, "router")
    law = (scores - scores.amax(-1, keepdim=True)).exp()
    law = law / law.sum(-1, keepdim=True)
    likelier = (law[..., None, :] > law[..., :, None]).sum(-1)
    share = torch.where(likelier < moe.num_experts_per_tok, law, torch.zeros_like(law))
    if moe.norm_topk_prob:
        share = share / share.sum(-1, keepdim=True)
    inner = silu(w.project(x, "shared_gate_proj")) * w.project(x, "shared_up_proj")
    out = sigmoid(w.project(x, "shared_expert_gate")) * w.project(inner, "shared_down_proj")
    for expert in range(moe.num_experts):
        both = x @ w["experts_gate_up"][expert * 2 * width : (expert + 1) * 2 * width].T
        inner = silu(both[..., :width]) * both[..., width:]
        out = out + share[..., expert, None] * (inner @ w["experts_down"][expert * hidden : (expert + 1) * hidden].T)
    return out
