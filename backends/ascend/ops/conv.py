"""Short causal convolutions with SiLU: one gather of all taps, one product and one sum, for all tokens at once."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from specc.backends.ascend.ops.rows import rows_in_order, take_rows


def silu_taps(taps: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """silu(sum over taps): the inputs of all tokens, oldest first, [B,W,T,C] and weight [C,1,W] -> [B,T,C]."""
    wide = torch.promote_types(taps.dtype, torch.float32)
    total = (taps.to(wide) * weight.to(wide).permute(2, 1, 0)).sum(1)
    if bias is not None:
        total = total + bias.to(wide)
    return F.silu(total).to(taps.dtype)


def short_conv(
    window: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    live: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens x [B,T,C] after `window` [B,W-1,C]: (y, the window after the live rows); weight [C,1,W].

    `live` bool [B,T] (None: all) marks rows that come first.
    """
    rows, tokens, before = torch.cat((window, x), dim=1), x.shape[1], window.shape[1]
    taps = torch.stack([rows.narrow(1, tap, tokens) for tap in range(before + 1)], dim=1)
    y = silu_taps(taps, weight, bias)
    if live is None:
        return y, rows.narrow(1, tokens, before).clone()
    count = live.to(torch.int64).sum(1, keepdim=True)
    return y, take_rows(rows, rows_in_order(before, x.device) + count)


def path_taps(parent_row: torch.Tensor, taps: int) -> torch.Tensor:
    """int64 [B,W,N]: the rows of cat(window, nodes) that each node of a tree convolves, oldest first.

    `parent_row` [B,N]: 0 is the committed context, node i is i + 1. The same for all layers.
    """
    batch, nodes = parent_row.shape
    before = taps - 1
    # Row r comes after row back[r]: along the window, and along each path.
    inside = torch.arange(-1, before - 1, device=parent_row.device).clamp(min=0).expand(batch, -1)
    back = torch.cat((inside, parent_row.clamp(0, nodes) + (before - 1)), dim=1)
    at = torch.arange(before, before + nodes, device=parent_row.device).expand(batch, -1)
    steps = [at]
    for _ in range(before):
        at = torch.gather(back, 1, at)
        steps.insert(0, at)
    return torch.stack(steps, dim=1)


def tree_conv(
    window: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    parent_row: torch.Tensor,
) -> torch.Tensor:
    """Nodes x [B,N,C], each after the inputs of its own path and then `window` [B,W-1,C]; weight [C,1,W]."""
    batch, nodes, channels = x.shape
    taps = weight.shape[2]
    index = path_taps(parent_row, taps).reshape(batch, -1)
    rows = take_rows(torch.cat((window, x), dim=1), index)
    return silu_taps(rows.reshape(batch, taps, nodes, channels), weight, bias)


def conv_commit(window: torch.Tensor, rows: torch.Tensor, path: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """The window [B,W-1,C] after rows[b, path[b, j]] for j < count[b]; rows [B,N,C], path [B,P], count [B]."""
    before, width = window.shape[1], path.shape[1]
    # Of the old window and the path behind it, the rows from `count` on.
    place = rows_in_order(before, window.device) + count.clamp(0, width).unsqueeze(1)
    node = torch.gather(path.expand(place.shape[0], -1), 1, (place - before).clamp(0, width - 1))
    source = torch.where(place < before, place, node.clamp(0, rows.shape[1] - 1) + before)
    return take_rows(torch.cat((window, rows), dim=1), source)
