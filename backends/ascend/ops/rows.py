"""Taking rows by number: one gather per call, on rows that are as long as they can be."""

from __future__ import annotations

import torch


def take_rows(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """x[b, index[b, j]]: x [B,N,…] by int64 [B,M] or [1,M] -> [B,M,…]."""
    batch, size = x.shape[:2]
    index = index.expand(batch, -1)
    if x.dim() == 2:
        return torch.gather(x, 1, index)
    if batch == 1:
        return x.index_select(1, index.reshape(-1))
    first = torch.arange(batch, device=x.device).unsqueeze(1) * size
    found = x.reshape(batch * size, -1).index_select(0, (index + first).reshape(-1))
    return found.reshape(batch, index.shape[1], *x.shape[2:])


def take_entries(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """x[index[…]]: entries of a table x [N,…] by int64 of any shape."""
    return x.index_select(0, index.reshape(-1)).reshape(*index.shape, *x.shape[1:])


def rows_in_order(size: int, device: torch.device) -> torch.Tensor:
    """int64 [1,size] = 0, 1, …."""
    return torch.arange(size, device=device).unsqueeze(0)


def on_rows(flags: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Flags [B,M] with as many dims as x [B,M,…], to choose whole rows by."""
    return flags.reshape(*flags.shape, *[1] * (x.dim() - 2))
