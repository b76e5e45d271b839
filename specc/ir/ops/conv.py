"""Causal depthwise convolution with SiLU, in front of the delta rule: along a chain, and along each path of a tree."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specc.ir.op import IndexOperand, op
from specc.ir.recurrence import Recurrence


def _silu_taps(inputs: Sequence[torch.Tensor], weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """silu(sum over taps): W inputs (oldest first) of [B,T,C], weight [C,1,W] -> [B,T,C], in float32 at least.

    One multiply-add per tap in a fixed order, and SiLU spelled out: torch's own rounds an element differently in the
    vectorised part of a tensor and in its tail. So a token's result does not depend on how many there are.
    """
    wide = torch.promote_types(inputs[0].dtype, torch.float32)
    taps = weight.to(wide)
    total = inputs[0].to(wide) * taps[:, 0, 0]
    for tap in range(1, weight.shape[2]):
        total = total + inputs[tap].to(wide) * taps[:, 0, tap]
    if bias is not None:
        total = total + bias.to(wide)
    return (total / (1 + (-total).exp())).to(inputs[0].dtype)


def _short_conv_fake(
    window: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    live: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(x, memory_format=torch.contiguous_format), torch.empty_like(window)


@op(
    "short_conv(Tensor window, Tensor x, Tensor weight, Tensor? bias=None, Tensor? live=None) -> (Tensor, Tensor)",
    fake=_short_conv_fake,
    meta={"recurrence": Recurrence(state="window", result=1, rows=("x",), tree="tree_conv", live="live")},
)
def short_conv(
    window: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    live: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """x [B,T,C] after the inputs `window` [B,W-1,C] -> (y [B,T,C], the next window [B,W-1,C]).

    y[t] = silu(sum_w weight[:,0,w] * input[t - W + 1 + w] (+ bias [C])), weight [C,1,W]. The next window holds the last
    W - 1 inputs among the old window and the live rows of x; `live` bool [B,T] (None: all) marks rows that come first.
    """
    taps = weight.shape[2]
    rows = torch.cat((window, x), dim=1)
    y = _silu_taps([rows[:, tap : tap + x.shape[1]] for tap in range(taps)], weight, bias)
    if live is None:
        return y, rows[:, rows.shape[1] - taps + 1 :].clone()
    count = live.sum(dim=1)
    return y, _last_rows(rows, count, taps - 1)


def _last_rows(rows: torch.Tensor, start: torch.Tensor, size: int) -> torch.Tensor:
    """rows[b, start[b] : start[b] + size]."""
    batch = torch.arange(rows.shape[0], device=rows.device).unsqueeze(1)
    return rows[batch, start.unsqueeze(1) + torch.arange(size, device=rows.device)]


def path_taps(window: torch.Tensor, x: torch.Tensor, parent_row: torch.Tensor, taps: int) -> torch.Tensor:
    """[B,N,W,C]: for each node the last W inputs along its path (its own last), then from the window.

    `parent_row` [B,N]: 0 is the committed context, node i is i + 1; rows at or above the context step back through the
    window, so that each address is in range.
    """
    batch = torch.arange(x.shape[0], device=x.device).unsqueeze(1)
    rows = torch.cat((window, x), dim=1)
    before = taps - 1
    # Row r of `rows` is followed, one step into the past, by `back[r]`: inside the window by r - 1 (at least 0).
    inside = (torch.arange(before, device=x.device) - 1).clamp(min=0).expand(x.shape[0], -1)
    back = torch.cat((inside, parent_row + before - 1), dim=1)
    at = torch.arange(before, before + x.shape[1], device=x.device).expand(x.shape[0], -1)
    steps = [at]
    for _ in range(before):
        at = torch.gather(back, 1, at)
        steps.append(at)
    return torch.stack([rows[batch, place] for place in reversed(steps)], dim=2)


def _tree_conv_fake(window: torch.Tensor, x: torch.Tensor, *_: object) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@op(
    "tree_conv(Tensor window, Tensor x, Tensor weight, Tensor? bias, Tensor parent_row) -> Tensor",
    fake=_tree_conv_fake,
    indices=(IndexOperand("parent_row", "parent_row", 1, slack=1),),
)
def tree_conv(
    window: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    parent_row: torch.Tensor,
) -> torch.Tensor:
    """`short_conv` for a tree: each node of x [B,N,C] sees the inputs of its own path, then the committed window.

    `parent_row` int64 [B,N]: 0 is the committed context, node i is i + 1 (design 04, "Conv in a tree").
    """
    return _silu_taps(path_taps(window, x, parent_row, weight.shape[2]).unbind(2), weight, bias)


@op(
    "conv_commit(Tensor window, Tensor rows, Tensor path, Tensor count) -> Tensor",
    fake=lambda window, rows, path, count: torch.empty_like(window),
    indices=(IndexOperand("path", "rows", 1),),
)
def conv_commit(window: torch.Tensor, rows: torch.Tensor, path: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """The window [B,W-1,C] after rows[b, path[b, j]] for j < count[b]; rows [B,N,C], path [B,P], count [B].

    A count of 0 leaves the window as it is (I27: the window follows the same path as K, V and the state).
    """
    batch = torch.arange(rows.shape[0], device=rows.device).unsqueeze(1)
    return _last_rows(torch.cat((window, rows[batch, path]), dim=1), count, window.shape[1])
