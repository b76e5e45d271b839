"""The short convolution with the signatures of `specc.ir.ops`."""

from __future__ import annotations

import torch

from specc.backends.triton.kernels.conv import conv_one, last_inputs, tree_conv_nodes
from specc.backends.triton.launch.core import interpreted, power_of_two

Tensor = torch.Tensor
CHANNELS = 256
"""Channels per program."""
NODES = 4
"""Nodes per program."""


def taps(
    window: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, parent_row: Tensor | None,
    channels: int = CHANNELS, nodes: int = NODES, warps: int = 4,
) -> Tensor:  # fmt: skip
    """silu of the convolution of x [B,N,C] along each node's path (None: a chain), then `window` [B,W-1,C]."""
    x = x if x.stride(2) == 1 else x.contiguous()
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    batch, count, width = x.shape
    block, rows, beside = min(channels, power_of_two(width)), min(nodes, power_of_two(count)), not interpreted()
    tree_conv_nodes[(-(-width // block), -(-count // rows), batch)](
        window, x, weight,
        weight if bias is None else bias,
        x if parent_row is None else parent_row,
        y, count, width, x.stride(0), x.stride(1),
        W=weight.shape[2], BN=rows, BC=block, BIAS=bias is not None, TREE=parent_row is not None, DEPENDENT=beside,
        num_warps=warps, num_stages=1, **({"launch_pdl": True} if beside else {}),
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
        num_warps=4, num_stages=1,
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


def short_conv_(
    window: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None, live: Tensor | None = None
) -> Tensor:
    """`short_conv` whose next window takes the place of `window`; one launch for one token."""
    if x.shape[1] != 1:
        y = taps(window, x, weight, bias, None)
        next_window(window, x, None, None if live is None else live.sum(dim=1), window)
        return y
    x = x if x.stride(2) == 1 else x.contiguous()
    batch, _, width = x.shape
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    block = min(CHANNELS, power_of_two(width))
    beside = not interpreted()
    conv_one[(-(-width // block), batch)](
        window, x, weight,
        weight if bias is None else bias,
        x if live is None else live.view(torch.uint8),
        y, width, x.stride(0),
        W=weight.shape[2], BW=power_of_two(weight.shape[2] - 1), BC=block, BIAS=bias is not None,
        LIVE=live is not None, DEPENDENT=beside, num_warps=2, num_stages=1, **({"launch_pdl": True} if beside else {}),
    )  # fmt: skip
    return y


def conv_commit(window: Tensor, rows: Tensor, path: Tensor, count: Tensor) -> Tensor:
    """The window after rows[b, path[b, j]], j < count[b]: its last W - 1 inputs."""
    after = torch.empty_like(window)
    next_window(window, rows, path.contiguous(), count, after)
    return after
