"""A recurrent layer's projection, short convolution and gates: one launch where the product's programs can do it."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from specc.backends.triton.kernels.linear_conv import linear_conv
from specc.backends.triton.launch.core import interpreted, power_of_two
from specc.backends.triton.ops.conv import token_conv_gates_, tree_conv_gates_
from specc.backends.triton.ops.linear import (
    LinearConfig,
    boxed,
    flat_rows,
    fused_linear,
    in_pairs,
    linear_config,
    stages,
)
from specc.backends.triton.ops.linear_once import LEAST_ROWS
from specc.ir.ops.gates import parts

Tensor = torch.Tensor
Made = tuple[Tensor, Tensor, Tensor, Tensor]


class Convolution(NamedTuple):
    """What stands behind a projection's product: the taps [C,1,W] and their bias, gates' weights [HV], beta's scale and
    the features at which raw a and b lie."""

    taps: Tensor
    bias: Tensor | None
    a_log: Tensor
    dt_bias: Tensor
    scale: int
    a_at: int
    b_at: int


def joined_config(x: Tensor, weight: Tensor, normed: bool) -> LinearConfig | None:
    """The configuration of a product whose programs hold whole features of all rows: one part, columns not in pieces.

    None where it is another one, and where rows are more than `LEAST_ROWS`: no registers would be left then.
    """
    hidden = x.shape[-1]
    if not 0 < x.numel() <= LEAST_ROWS * hidden or x.dtype == torch.float64 or (normed and x.dtype == torch.float16):
        return None
    config = linear_config(hidden, weight.shape[0], False, x.dtype)
    return None if config.once(hidden) or config.kw > 1 or config.split > 1 else config


def launch_conv(
    x: Tensor, weight: Tensor, norm_weight: Tensor | None, eps: float, config: LinearConfig, window: Tensor,
    conv: Convolution, parent_row: Tensor | None, live: Tensor | None, kept: Tensor | None,
) -> Made:  # fmt: skip
    """(projected [B,N,F], y [B,N,C], g, beta [B,N,HV]) of x [B,N,H] in one launch."""
    batch, count, hidden = x.shape
    flat = flat_rows(x)
    rows, features, channels, heads = batch * count, weight.shape[0], window.shape[2], conv.a_log.shape[0]
    projected, y = x.new_empty(batch, count, features), x.new_empty(batch, count, channels)
    g, beta = (torch.empty((batch, count, heads), dtype=torch.float32, device=x.device) for _ in range(2))
    boxes = boxed(weight, features, config) if in_pairs(config, flat) else None
    beside = not interpreted()
    options: dict[str, Any] = {"launch_pdl": True} if beside else {}
    linear_conv[(-(-features // config.bf),)](
        flat, weight, boxes or weight,
        weight if norm_weight is None else norm_weight,
        projected, window, conv.taps,
        conv.taps if conv.bias is None else conv.bias,
        projected if parent_row is None else parent_row,
        projected if live is None else live.view(torch.uint8),
        projected if kept is None else kept,
        y, conv.a_log, conv.dt_bias, g, beta, rows, features, hidden, flat.stride(0), flat.stride(0) // 2, eps, count,
        channels, conv.a_at, conv.b_at, heads,
        BF=config.bf, BM=LEAST_ROWS, BK=config.bk, W=conv.taps.shape[2], EARLY=in_pairs(config, flat),
        BOXES=boxes is not None, BH=power_of_two(heads, 8), BIAS=conv.bias is not None, NORM=norm_weight is not None,
        TREE=parent_row is not None, LIVE=live is not None, KEEP=kept is not None, GATE=conv.scale,
        EVEN=hidden % config.bk == 0, DEPENDENT=beside, LATE=config.late, num_warps=config.warps,
        num_stages=stages(config, config.bf, LEAST_ROWS, flat), **options,
    )  # fmt: skip
    return projected, y, g, beta


def linear_token_conv_gates_(
    window: Tensor, x: Tensor, weight: Tensor, norm_weight: Tensor | None, eps: float, taps: Tensor,
    bias: Tensor | None, live: Tensor | None, a_log: Tensor, dt_bias: Tensor, scale: int, a_at: int, b_at: int,
) -> Made:  # fmt: skip
    """`fused_linear` of one token x [B,1,H], then `token_conv_gates_` of its features: (projected, y, g, beta)."""
    conv = Convolution(taps, bias, a_log, dt_bias, scale, a_at, b_at)
    config = joined_config(x, weight, norm_weight is not None)
    if config is not None:
        return launch_conv(x, weight, norm_weight, eps, config, window, conv, None, live, None)
    projected = fused_linear(x, weight, None, norm_weight, eps, "none", None)
    mixed, a, b = parts(projected, window, a_log, a_at, b_at)
    return projected, *token_conv_gates_(window, mixed, taps, bias, live, a, b, a_log, dt_bias, scale)


def linear_tree_conv_gates_(
    window: Tensor, x: Tensor, weight: Tensor, norm_weight: Tensor | None, eps: float, taps: Tensor,
    bias: Tensor | None, parent_row: Tensor, a_log: Tensor, dt_bias: Tensor, scale: int, a_at: int, b_at: int,
    kept: Tensor | None,
) -> Made:  # fmt: skip
    """`fused_linear` of nodes x [B,N,H], then `tree_conv_gates_` of their features: (projected, y, g, beta)."""
    conv = Convolution(taps, bias, a_log, dt_bias, scale, a_at, b_at)
    config = joined_config(x, weight, norm_weight is not None)
    if config is not None:
        return launch_conv(x, weight, norm_weight, eps, config, window, conv, parent_row.contiguous(), None, kept)
    projected = fused_linear(x, weight, None, norm_weight, eps, "none", None)
    mixed, a, b = parts(projected, window, a_log, a_at, b_at)
    made = tree_conv_gates_(window, mixed, taps, bias, parent_row, a, b, a_log, dt_bias, scale, kept)
    return projected, *made
