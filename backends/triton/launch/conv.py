"""Launchers of the short convolution with the signatures of `specc.ir.ops`."""

from __future__ import annotations

import torch

from specc.backends.triton.kernels.conv import last_inputs
from specc.backends.triton.kernels.conv import tree_conv as tree_conv_kernel
from specc.backends.triton.launch.core import Launch, power_of_two

Tensor = torch.Tensor
BLOCK = 256


def conv_launch(
    window: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, parent_row: Tensor | None, y: Tensor
) -> Launch:
    """y [B,N,C] of x [B,N,C] (any strides of sequences and nodes) along each node's path; None: a chain."""
    batch, nodes, channels = x.shape
    block = min(BLOCK, power_of_two(channels))
    arguments = {
        "window": window,
        "x": x,
        "weight": weight,
        "bias": weight if bias is None else bias,
        "y": y,
        "parent": x if parent_row is None else parent_row,
        "N": nodes,
        "C": channels,
        "stride_xb": x.stride(0),
        "stride_xt": x.stride(1),
        "W": weight.shape[2],
        "BC": block,
        "BIAS": bias is not None,
        "TREE": parent_row is not None,
    }
    return Launch(tree_conv_kernel, (-(-channels // block), nodes, batch), arguments, 4, 1)


def window_launch(window: Tensor, rows: Tensor, path: Tensor | None, count: Tensor | None, after: Tensor) -> Launch:
    """The next windows; window, after [..,W-1,C], rows [..,N,C] contiguous in front of N. `after` may be `window`."""
    width, channels = window.shape[-2:]
    sequences = window.numel() // (width * channels)
    block = min(BLOCK, power_of_two(channels))
    arguments = {
        "window": window,
        "x": rows,
        "after": after,
        "N": rows.shape[-2],
        "C": channels,
        "W": width + 1,
        "path": window if path is None else path,
        "P": 0 if path is None else path.shape[-1],
        "count": window if count is None else count,
        "BATCH": sequences if count is None else count.numel(),
        "stride_xb": rows.stride(-3),
        "stride_xt": rows.stride(-2),
        "BW": power_of_two(width),
        "BC": block,
        "PATH": path is not None,
        "COUNT": count is not None,
    }
    return Launch(last_inputs, (-(-channels // block), sequences), arguments, 4, 1)


def tree_conv(window: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, parent_row: Tensor) -> Tensor:
    """See `specc.ir.ops.tree_conv`."""
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    conv_launch(window, x, weight, bias, parent_row, y).run()
    return y


def short_conv(
    window: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    live: Tensor | None = None,
    *,
    in_place: bool = False,
) -> tuple[Tensor, Tensor]:
    """See `specc.ir.ops.short_conv`: (y, the next window), the window itself with `in_place`."""
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    conv_launch(window, x, weight, bias, None, y).run()
    after = window if in_place else torch.empty_like(window)
    window_launch(window, x, None, None if live is None else live.sum(dim=1), after).run()
    return y, after


def conv_commit(window: Tensor, rows: Tensor, path: Tensor, count: Tensor, *, in_place: bool = False) -> Tensor:
    """See `specc.ir.ops.conv_commit`. Layers may stand in front ([L,B,…]): one launch for all."""
    after = window if in_place else torch.empty_like(window)
    window_launch(window, rows, path, count, after).run()
    return after
