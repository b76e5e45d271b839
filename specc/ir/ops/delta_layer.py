"""Ops that only a device backend makes: what a recurrent layer does between its projections, as one op."""

from __future__ import annotations

import torch

from specc.ir.op import op
from specc.ir.ops.conv import tree_conv
from specc.ir.ops.delta_buffer import delta_rule_, delta_rule_verify_pending_
from specc.ir.ops.layers import short_conv_

_BUFFER = ("buffer",)


def heads_of(x: torch.Tensor, size: int) -> torch.Tensor:
    """[B,M,H,G size] as [B,M,H G,size]."""
    return x.reshape(*x.shape[:2], -1, size)


def log_decay(a: torch.Tensor, a_log: torch.Tensor, dt_bias: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """g = -exp(a_log) softplus(a + dt_bias) in the state's dtype, [B,M,HV] (Yang et al., 2024, section 3.1)."""
    shifted = a.to(dtype) + dt_bias.to(dtype)
    return torch.nn.functional.softplus(shifted) * -a_log.to(dtype).exp()


@op(
    "gated_norm(Tensor o, Tensor weight, Tensor gate, float eps) -> Tensor",
    fake=lambda o, weight, gate, eps: torch.empty_like(o, memory_format=torch.contiguous_format),
)
def gated_norm(o: torch.Tensor, weight: torch.Tensor, gate: torch.Tensor, eps: float) -> torch.Tensor:
    """rms_norm(o) weight silu(gate) of heads [B,M,HV,V], weight [V]; rounded after each of the three steps."""
    return torch.rms_norm(o, [o.shape[-1]], weight, eps) * torch.nn.functional.silu(gate)


@op(
    "delta_step_(Tensor(a!) state, Tensor(b!) window, Tensor q, Tensor k, Tensor v, Tensor a, Tensor b, Tensor gate, "
    "Tensor weight, Tensor? bias, Tensor a_log, Tensor dt_bias, Tensor norm_weight, Tensor? live, Tensor? counted, "
    "float rate, float eps) -> Tensor",
    fake=lambda state, window, q, *_: q.new_empty((q.shape[0], q.shape[1], *state.shape[1:3])),
    levels=_BUFFER,
)
def delta_step_(
    state: torch.Tensor,
    window: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    norm_weight: torch.Tensor,
    live: torch.Tensor | None,
    counted: torch.Tensor | None,
    rate: float,
    eps: float,
) -> torch.Tensor:
    """One token's short convolution, gates, delta rule, head norm and gate: the layer's readout [B,1,HV,V].

    state [B,HV,V,K] and window [B,W-1,C] take their next values in place, C = 2 H K + HV V. By key head, with HV = H G:
    q, k [B,1,H,K], v and gate [B,1,H,G V], a and b [B,1,H,G], all before the convolution. weight [C,1,W], bias [C],
    a_log and dt_bias [HV], norm_weight [V]; beta = rate sigmoid(b). `live` bool [B,1]: rows that are not keep their
    window; `counted` bool [B,1,1]: rows that are not keep their state.
    """
    value_heads, values, keys = state.shape[1:]
    mixed = torch.cat([x.flatten(-2) for x in (q, k, v)], dim=-1)
    y = short_conv_(window, mixed, weight, bias, live)
    key = q.shape[2] * keys
    parts = y.split([key, key, value_heads * values], dim=-1)
    g = log_decay(a.flatten(-2), a_log, dt_bias, state.dtype)
    beta = torch.sigmoid(b.flatten(-2).to(state.dtype)) * rate
    if counted is not None:
        g, beta = (torch.where(counted, x, torch.zeros_like(x)) for x in (g, beta))
    heads = [x.unflatten(-1, [-1, size]) for x, size in zip(parts, (keys, keys, values), strict=True)]
    o, _ = delta_rule_(state, *heads, g, beta)
    return gated_norm(o, norm_weight, heads_of(gate, values), eps)


@op(
    "delta_tree_step_(Tensor(a!) state, Tensor window, Tensor q, Tensor k, Tensor v, Tensor a, Tensor b, Tensor gate, "
    "Tensor weight, Tensor? bias, Tensor a_log, Tensor dt_bias, Tensor norm_weight, Tensor parent_row, Tensor mask, "
    "Tensor pending_k, Tensor pending_u, Tensor pending_g, Tensor? path, Tensor count, int deferred, Tensor(b!)? kept, "
    "Tensor(c!) k_factor, Tensor(d!) u_factor, Tensor(e!) g_factor, float rate, float eps) -> Tensor",
    fake=lambda state, window, q, *_: q.new_empty((*q.shape[:2], *state.shape[1:3])),
    levels=_BUFFER,
)
def delta_tree_step_(
    state: torch.Tensor,
    window: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    norm_weight: torch.Tensor,
    parent_row: torch.Tensor,
    mask: torch.Tensor,
    pending_k: torch.Tensor,
    pending_u: torch.Tensor,
    pending_g: torch.Tensor,
    path: torch.Tensor | None,
    count: torch.Tensor,
    deferred: int,
    kept: torch.Tensor | None,
    k_factor: torch.Tensor,
    u_factor: torch.Tensor,
    g_factor: torch.Tensor,
    rate: float,
    eps: float,
) -> torch.Tensor:
    """The nodes of a tree through a recurrent layer between its projections: the readout [B,N,HV,V].

    As `delta_step_` with `tree_conv` and `delta_rule_verify_pending_` in tree form (`deferred` is its window). The
    nodes' raw k, u and g are left in the tensors of factors, which may be those that are pending, and the convolution's
    inputs [B,N,C] in `kept`.
    """
    value_heads, values, keys = state.shape[1:]
    mixed = torch.cat([x.flatten(-2) for x in (q, k, v)], dim=-1)
    if kept is not None:
        kept.copy_(mixed)
    y = tree_conv(window, mixed, weight, bias, parent_row)
    key = (y.shape[-1] - value_heads * values) // 2
    parts = y.split([key, key, value_heads * values], dim=-1)
    q, k, v = (x.unflatten(-1, [-1, size]) for x, size in zip(parts, (keys, keys, values), strict=True))
    g = log_decay(a.flatten(-2), a_log, dt_bias, state.dtype)
    beta = torch.sigmoid(b.flatten(-2).to(state.dtype)) * rate
    pending = (pending_k, pending_u, pending_g, path, count, deferred, "rank_n")
    o, u = delta_rule_verify_pending_(state, *pending, q, k, v, g, beta, parent_row, mask, "tree")
    for place, value in ((k_factor, k), (u_factor, u), (g_factor, g)):
        place.copy_(value)
    return gated_norm(o, norm_weight, heads_of(gate, values), eps)
