"""Random numbers of a compiled step: drawn outside it, looked up inside.

The numbers are hashes of counters, and GE has no shifts. So the wrapper of a step makes a table of all draws that the
step can ask for, and hands it over in place of the keys `rng`. What an op does follows from the dtype of `rng`: int64
[B] are keys, which are hashed (eagerly only); float64 is a table.
"""

from __future__ import annotations

import torch

from specc.ir.ops.sampling import GOLDEN, counter_hash, mix, unit_interval

FIRST_DRAW = 2**20
"""The draw of node 0 of a drafted tree (see `specc.lower.drafts`); node i has FIRST_DRAW + i."""


def uniform_table(rng: torch.Tensor, base: torch.Tensor, positions: int, draws: int) -> torch.Tensor:
    """float64 [B,positions,draws]: draws 0, 1, … of positions base[b], base[b] + 1, …; rng, base int64 [B].

    Position p stands in row p % positions, so that a lookup need not know where the table starts.
    """
    row = torch.arange(positions, device=rng.device)
    start = base.unsqueeze(1)
    position = start + (row - start) % positions
    draw = torch.arange(draws, device=rng.device)
    hashed = counter_hash(rng.reshape(-1, 1, 1), position.unsqueeze(2), draw.reshape(1, 1, -1))
    return unit_interval(hashed)


def uniform_rows(
    rng: torch.Tensor, length: torch.Tensor, offsets: list[int], draws: list[int], size: int
) -> torch.Tensor:
    """float64 [B,R,size]: row draws[i] - FIRST_DRAW has the draws of position length[b] + offsets[i]; others are 0."""
    table = torch.zeros(rng.shape[0], max(draws) - FIRST_DRAW + 1, size, dtype=torch.float64, device=rng.device)
    for offset, draw in zip(offsets, draws, strict=True):
        base = counter_hash(rng, length + offset, torch.full_like(rng, draw)).unsqueeze(1)
        column = torch.arange(size, device=rng.device)
        table[:, draw - FIRST_DRAW] = unit_interval(mix(base + (column + 1) * GOLDEN))
    return table


def counter_uniform(rng: torch.Tensor, position: torch.Tensor, draw: int) -> torch.Tensor:
    """float64 [B] in [0, 1), a function of (rng[b], position[b], draw); or from a table [B,positions,draws]."""
    if rng.dim() == 1:
        return unit_interval(counter_hash(rng, position, torch.full_like(rng, draw)))
    batch, positions, draws = rng.shape
    row = torch.arange(batch, device=rng.device) * positions + torch.remainder(position, positions)
    return rng.reshape(-1).index_select(0, row * draws + draw)


def counter_uniform_rows(rng: torch.Tensor, position: torch.Tensor, draw: torch.Tensor, size: int) -> torch.Tensor:
    """float64 [B,M,size] in [0, 1): element j depends on (rng[b], position[b,m], draw[b,m], j); or table rows."""
    if rng.dim() == 1:
        column = torch.arange(size, device=rng.device)
        base = counter_hash(rng.unsqueeze(1), position, draw).unsqueeze(-1)
        return unit_interval(mix(base + (column + 1) * GOLDEN))
    row = (draw - FIRST_DRAW).clamp(0, rng.shape[1] - 1)
    first = torch.arange(rng.shape[0], device=rng.device).unsqueeze(1) * rng.shape[1]
    found = rng.reshape(-1, size).index_select(0, (row + first).reshape(-1))
    return found.reshape(*row.shape, size)
