"""Short causal convolutions with SiLU: one multiply-add per tap, for all tokens at once.

SiLU is spelled out, since torch's own rounds an element differently in the vectorised part
of a tensor and in its tail: a token's result must not depend on how many there are.
"""

from __future__ import annotations

import torch


def silu_taps(
    inputs: list[torch.Tensor], weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """silu(sum_w weight[:,0,w] * inputs[w] (+ bias)), oldest first, each [B,T,C]."""
    dtype = inputs[0].dtype
    wide = torch.promote_types(dtype, torch.float32)
    taps = weight.to(wide)
    total = inputs[0].to(wide) * taps[:, 0, 0]
    for tap, value in enumerate(inputs[1:], start=1):
        total += value.to(wide) * taps[:, 0, tap]
    if bias is not None:
        total += bias.to(wide)
    return (total / total.neg().exp_().add_(1)).to(dtype)


def last_rows(rows: torch.Tensor, start: torch.Tensor, size: int) -> torch.Tensor:
    """rows[b, start[b] : start[b] + size]."""
    batch = torch.arange(rows.shape[0], device=rows.device).unsqueeze(1)
    return rows[batch, start.unsqueeze(1) + torch.arange(size, device=rows.device)]


def short_conv(
    window: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    live: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens x [B,T,C] after `window` [B,W-1,C]: (y, the window after the live rows)."""
    rows, tokens, before = torch.cat((window, x), dim=1), x.shape[1], window.shape[1]
    taps = [rows[:, tap : tap + tokens] for tap in range(before + 1)]
    y = silu_taps(taps, weight, bias)
    if live is None:
        return y, rows[:, tokens:].clone()
    return y, last_rows(rows, live.sum(dim=1), before)


def tree_conv(
    window: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    parent_row: torch.Tensor,
) -> torch.Tensor:
    """Nodes x [B,N,C], each after the inputs of its own path and then `window` [B,W-1,C].

    `parent_row` [B,N]: 0 is the committed context, node i is i + 1.
    """
    before, device = window.shape[1], x.device
    batch = torch.arange(x.shape[0], device=device).unsqueeze(1)
    rows = torch.cat((window, x), dim=1)
    # Row r of `rows` comes after row back[r]: along the window, and along each path.
    inside = torch.arange(-1, before - 1, device=device).clamp(min=0)
    back = torch.cat((inside.expand(x.shape[0], -1), parent_row + before - 1), dim=1)
    at = torch.arange(before, rows.shape[1], device=device).expand(x.shape[0], -1)
    taps = [x]
    for _ in range(before):
        at = torch.gather(back, 1, at)
        taps.insert(0, rows[batch, at])
    return silu_taps(taps, weight, bias)


def conv_commit(
    window: torch.Tensor, rows: torch.Tensor, path: torch.Tensor, count: torch.Tensor
) -> torch.Tensor:
    """The window after rows[b, path[b, j]], j < count[b]: its last W - 1 inputs."""
    batch = torch.arange(rows.shape[0], device=rows.device).unsqueeze(1)
    return last_rows(
        torch.cat((window, rows[batch, path]), dim=1), count, window.shape[1]
    )
