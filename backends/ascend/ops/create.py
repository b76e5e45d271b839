"""Constants and tables."""

from __future__ import annotations

import torch


def int_table(like: torch.Tensor, values: list[int], shape: list[int]) -> torch.Tensor:
    """int64 constant of `shape` on the device of `like`, row-major `values`.

    Numbers with one distance are made on the device; others are copied there.
    """
    size, step = len(values), values[1] - values[0] if len(values) > 1 else 0
    even = all(value == values[0] + step * place for place, value in enumerate(values))
    if even and step == 0:
        made = torch.full([size], values[0], dtype=torch.int64, device=like.device)
    elif even:
        made = torch.arange(values[0], values[0] + step * size, step, device=like.device)
    else:
        made = torch.tensor(values, dtype=torch.int64, device=like.device)
    return made.reshape(shape)


def root_table(committed: torch.Tensor, rows: int, root: int) -> torch.Tensor:
    """Zeros [L,B,rows,…] with `committed` [L,B,…] in row `root` (-1: the last) of dim 2."""
    at = root % rows
    layers, batch = committed.shape[:2]
    parts = [committed.unsqueeze(2)]
    if at > 0:
        parts.insert(0, committed.new_zeros([layers, batch, at, *committed.shape[2:]]))
    if at < rows - 1:
        parts.append(committed.new_zeros([layers, batch, rows - 1 - at, *committed.shape[2:]]))
    return torch.cat(parts, dim=2)
