"""Ops that only a device backend makes: a recurrent layer's convolution together with the gates of its delta rule, and
both together with the projection in front of them."""

from __future__ import annotations

import torch

from specc.ir.op import IndexOperand, op
from specc.ir.ops.conv import tree_conv
from specc.ir.ops.layers import short_conv_
from specc.ir.ops.linear import fused_linear

_BUFFER = ("buffer",)
Triple = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Made = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def gate_values(
    a: torch.Tensor, b: torch.Tensor, a_log: torch.Tensor, dt_bias: torch.Tensor, scale: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """g = -exp(a_log) softplus(a + dt_bias) and beta = scale sigmoid(b), float32 (Yang et al., 2024, section 3.1)."""
    g = torch.nn.functional.softplus(a.float() + dt_bias.float()) * -a_log.float().exp()
    return g, torch.sigmoid(b.float()) * scale


def _fake(x: torch.Tensor, a: torch.Tensor) -> Triple:
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    return y, a.new_empty(a.shape, dtype=torch.float32), a.new_empty(a.shape, dtype=torch.float32)


@op(
    "token_conv_gates_(Tensor(a!) window, Tensor x, Tensor weight, Tensor? bias, Tensor? live, Tensor a, Tensor b, "
    "Tensor a_log, Tensor dt_bias, int scale) -> (Tensor, Tensor, Tensor)",
    fake=lambda window, x, weight, bias, live, a, *_: _fake(x, a),
    levels=_BUFFER,
)
def token_conv_gates_(
    window: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    live: torch.Tensor | None,
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    scale: int,
) -> Triple:
    """`short_conv_` of one token x [B,1,C] and its gates: (y, g, beta [B,1,HV]), zeros where a row is not live.

    Raw a, b [B,1,HV]; a_log, dt_bias [HV]; `live` bool [B,1] (None: all).
    """
    y = short_conv_(window, x, weight, bias, live)
    g, beta = gate_values(a, b, a_log, dt_bias, scale)
    if live is not None:
        g, beta = (torch.where(live.unsqueeze(-1), item, torch.zeros_like(item)) for item in (g, beta))
    return y, g, beta


@op(
    "tree_conv_gates_(Tensor window, Tensor x, Tensor weight, Tensor? bias, Tensor parent_row, Tensor a, Tensor b, "
    "Tensor a_log, Tensor dt_bias, int scale, Tensor(a!)? kept) -> (Tensor, Tensor, Tensor)",
    fake=lambda window, x, weight, bias, parent_row, a, *_: _fake(x, a),
    levels=_BUFFER,
    indices=(IndexOperand("parent_row", "parent_row", 1, slack=1),),
)
def tree_conv_gates_(
    window: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    parent_row: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    scale: int,
    kept: torch.Tensor | None,
) -> Triple:
    """`tree_conv` of nodes x [B,N,C] and their gates: (y, g, beta [B,N,HV]); `kept` [B,N,C] gets x.

    Raw a, b [B,N,HV]; a_log, dt_bias [HV].
    """
    y = tree_conv(window, x, weight, bias, parent_row)
    if kept is not None:
        kept.copy_(x)
    return y, *gate_values(a, b, a_log, dt_bias, scale)


def _joined_fake(window: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, a_log: torch.Tensor) -> Made:
    rows = x.shape[:-1]
    g, beta = (x.new_empty((*rows, a_log.shape[0]), dtype=torch.float32) for _ in range(2))
    return x.new_empty((*rows, weight.shape[0])), x.new_empty((*rows, window.shape[-1])), g, beta


def parts(
    projected: torch.Tensor, window: torch.Tensor, a_log: torch.Tensor, a_at: int, b_at: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The convolution's inputs and the raw gates a, b within the projected rows."""
    heads = a_log.shape[0]
    return (
        projected[..., : window.shape[2]],
        projected[..., a_at : a_at + heads],
        projected[..., b_at : b_at + heads],
    )


@op(
    "linear_token_conv_gates_(Tensor(a!) window, Tensor x, Tensor weight, Tensor? norm_weight, float eps, Tensor taps, "
    "Tensor? bias, Tensor? live, Tensor a_log, Tensor dt_bias, int scale, int a_at, int b_at) -> "
    "(Tensor, Tensor, Tensor, Tensor)",
    fake=lambda window, x, weight, norm, eps, taps, bias, live, a_log, *_: _joined_fake(window, x, weight, a_log),
    levels=_BUFFER,
)
def linear_token_conv_gates_(
    window: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    norm_weight: torch.Tensor | None,
    eps: float,
    taps: torch.Tensor,
    bias: torch.Tensor | None,
    live: torch.Tensor | None,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    scale: int,
    a_at: int,
    b_at: int,
) -> Made:
    """`fused_linear` of one token x [B,1,H] by weight [F,H], then `token_conv_gates_` of its features: (projected
    [B,1,F], y [B,1,C], g, beta [B,1,HV]).

    The first C features are the convolution's (taps [C,1,W], bias [C]); raw a and b are the HV features from a_at and
    from b_at on.
    """
    projected = fused_linear(x, weight, None, norm_weight, eps, "none", None)
    mixed, a, b = parts(projected, window, a_log, a_at, b_at)
    return projected, *token_conv_gates_(window, mixed, taps, bias, live, a, b, a_log, dt_bias, scale)


@op(
    "linear_tree_conv_gates_(Tensor window, Tensor x, Tensor weight, Tensor? norm_weight, float eps, Tensor taps, "
    "Tensor? bias, Tensor parent_row, Tensor a_log, Tensor dt_bias, int scale, int a_at, int b_at, Tensor(a!)? kept) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    fake=lambda window, x, weight, norm, eps, taps, bias, parent, a_log, *_: _joined_fake(window, x, weight, a_log),
    levels=_BUFFER,
    indices=(IndexOperand("parent_row", "parent_row", 1, slack=1),),
)
def linear_tree_conv_gates_(
    window: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    norm_weight: torch.Tensor | None,
    eps: float,
    taps: torch.Tensor,
    bias: torch.Tensor | None,
    parent_row: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    scale: int,
    a_at: int,
    b_at: int,
    kept: torch.Tensor | None,
) -> Made:
    """`fused_linear` of nodes x [B,N,H] by weight [F,H], then `tree_conv_gates_` of their features: (projected [B,N,F],
    y [B,N,C], g, beta [B,N,HV]); features as in `linear_token_conv_gates_`, `kept` [B,N,C] gets the convolution's."""
    projected = fused_linear(x, weight, None, norm_weight, eps, "none", None)
    mixed, a, b = parts(projected, window, a_log, a_at, b_at)
    made = tree_conv_gates_(window, mixed, taps, bias, parent_row, a, b, a_log, dt_bias, scale, kept)
    return projected, *made
