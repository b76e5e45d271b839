"""Ops that only a device backend makes: a recurrent layer's convolution together with the gates of its delta rule."""

from __future__ import annotations

import torch

from specc.ir.op import IndexOperand, op
from specc.ir.ops.conv import tree_conv
from specc.ir.ops.layers import short_conv_

_BUFFER = ("buffer",)
Triple = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


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
