"""The short convolution with the signatures of `specc.ir.ops`."""

from __future__ import annotations

from typing import NamedTuple

import torch

from specc.backends.triton.kernels.conv import conv_one, last_inputs, tree_conv_nodes
from specc.backends.triton.launch.core import beside, interpreted, power_of_two

Tensor = torch.Tensor
CHANNELS = 256
"""Channels per program."""
NODES = 4
"""Nodes per program."""


class Gates(NamedTuple):
    """Raw gates a, b [B,N,HV] of a layer, a_log and dt_bias [HV], beta = scale sigmoid(b) with scale 1 or 2; what they
    make: g (log decays) and beta, float32 [B,N,HV]."""

    a: Tensor
    b: Tensor
    a_log: Tensor
    dt_bias: Tensor
    scale: int
    g: Tensor
    beta: Tensor


def gates_from(a: Tensor, b: Tensor, a_log: Tensor, dt_bias: Tensor, scale: int) -> Gates:
    """Operands as the kernels take them, and room for the results."""
    a, b = (x if x.stride(2) == 1 else x.contiguous() for x in (a, b))
    g, beta = (torch.empty(a.shape, dtype=torch.float32, device=a.device) for _ in range(2))
    return Gates(a, b, a_log, dt_bias, scale, g, beta)


def taps(
    window: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, parent_row: Tensor | None,
    channels: int = CHANNELS, nodes: int = NODES, warps: int = 4, kept: Tensor | None = None,
    gates: Gates | None = None,
) -> Tensor:  # fmt: skip
    """silu of the convolution of x [B,N,C] along each node's path (None: a chain), then `window` [B,W-1,C].

    `kept` [B,N,C] gets x; gates are made beside.
    """
    x = x if x.stride(2) == 1 else x.contiguous()
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    batch, count, width = x.shape
    block, rows, dependent = min(channels, power_of_two(width)), min(nodes, power_of_two(count)), not interpreted()
    wanted = gates or Gates(x, x, x, x, 0, x, x)
    tree_conv_nodes[(-(-width // block) + (gates is not None), -(-count // rows), batch)](
        window, x, weight,
        weight if bias is None else bias,
        x if parent_row is None else parent_row,
        y, count, width, x.stride(0), x.stride(1),
        x if kept is None else kept,
        wanted.a, wanted.b, wanted.a_log, wanted.dt_bias, wanted.g, wanted.beta, wanted.g.shape[2],
        *wanted.a.stride()[:2], *wanted.b.stride()[:2],
        W=weight.shape[2], BN=rows, BC=block, BIAS=bias is not None, TREE=parent_row is not None, DEPENDENT=dependent,
        KEEP=kept is not None, GATE=wanted.scale, BH=power_of_two(wanted.g.shape[2]),
        num_warps=warps, num_stages=1, **beside(),
    )  # fmt: skip
    return y


def next_window(window: Tensor, rows: Tensor, path: Tensor | None, count: Tensor | None, after: Tensor) -> None:
    """`after` [..,W-1,C]: the last W - 1 rows of `window` and then of rows [..,N,C], path[b, :count[b]] or the first
    count[b] of them; it may be `window`. Layers may stand in front of the batch: all in one launch."""
    rows = rows if rows.stride(-1) == 1 and (rows.dim() == 3 or rows.is_contiguous()) else rows.contiguous()
    width, channels = window.shape[-2:]
    if width == 0:
        return
    sequences = window.numel() // (width * channels)
    block = min(CHANNELS, power_of_two(channels))
    last_inputs[(-(-channels // block), sequences)](
        window, rows,
        window if path is None else path,
        window if count is None else count,
        after, rows.shape[-2], 0 if path is None else path.shape[-1], channels, rows.stride(-3), rows.stride(-2),
        W=width + 1, BW=power_of_two(width), BC=block, PATH=path is not None, COUNT=count is not None,
        BATCH=sequences if count is None else count.numel(),
        num_warps=4, num_stages=1, **beside(),
    )  # fmt: skip


def tree_conv(window: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, parent_row: Tensor) -> Tensor:
    """Nodes x [B,N,C], each after the inputs of its own path and then `window` [B,W-1,C].

    `parent_row` int64 [B,N]: 0 is the committed context, node i is i + 1.
    """
    return taps(window, x, weight, bias, parent_row.contiguous())


def short_conv(
    window: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None, live: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Tokens x [B,T,C] after `window` [B,W-1,C]: (y, the window after the live rows)."""
    y = taps(window, x, weight, bias, None)
    after = torch.empty_like(window)
    next_window(window, x, None, None if live is None else live.sum(dim=1), after)
    return y, after


def tree_conv_gates_(
    window: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, parent_row: Tensor, a: Tensor, b: Tensor,
    a_log: Tensor, dt_bias: Tensor, scale: int, kept: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """`tree_conv` and the nodes' gates (y, g, beta) in one launch; `kept` [B,N,C] gets x."""
    gates = gates_from(a, b, a_log, dt_bias, scale)
    y = taps(window, x, weight, bias, parent_row.contiguous(), kept=kept, gates=gates)
    return y, gates.g, gates.beta


def moved_on(window: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, live: Tensor | None,
             gates: Gates | None = None) -> Tensor:  # fmt: skip
    """y of one token x [B,1,C] after `window`, which moves on by it where the row is live; gates are made beside."""
    x = x if x.stride(2) == 1 else x.contiguous()
    batch, _, width = x.shape
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    block = min(CHANNELS, power_of_two(width))
    dependent, wanted = not interpreted(), gates or Gates(x, x, x, x, 0, x, x)
    conv_one[(-(-width // block) + (gates is not None), batch)](
        window, x, weight,
        weight if bias is None else bias,
        x if live is None else live.view(torch.uint8),
        y, width, x.stride(0),
        wanted.a, wanted.b, wanted.a_log, wanted.dt_bias, wanted.g, wanted.beta, wanted.g.shape[2],
        wanted.a.stride(0), wanted.b.stride(0),
        W=weight.shape[2], BW=power_of_two(weight.shape[2] - 1), BC=block, BIAS=bias is not None,
        LIVE=live is not None, DEPENDENT=dependent, GATE=wanted.scale, BH=power_of_two(wanted.g.shape[2]),
        num_warps=2, num_stages=1, **beside(),
    )  # fmt: skip
    return y


def short_conv_(
    window: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None, live: Tensor | None = None
) -> Tensor:
    """`short_conv` whose next window takes the place of `window`; one launch for one token."""
    if x.shape[1] == 1:
        return moved_on(window, x, weight, bias, live)
    y = taps(window, x, weight, bias, None)
    next_window(window, x, None, None if live is None else live.sum(dim=1), window)
    return y


def token_conv_gates_(
    window: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, live: Tensor | None, a: Tensor, b: Tensor,
    a_log: Tensor, dt_bias: Tensor, scale: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """`short_conv_` of one token and its gates (y, g, beta), zeros where it is not live, in one launch."""
    gates = gates_from(a, b, a_log, dt_bias, scale)
    return moved_on(window, x, weight, bias, live, gates), gates.g, gates.beta


def conv_commit(window: Tensor, rows: Tensor, path: Tensor, count: Tensor) -> Tensor:
    """The window after rows[b, path[b, j]], j < count[b]: its last W - 1 inputs."""
    after = torch.empty_like(window)
    next_window(window, rows, path.contiguous(), count, after)
    return after
