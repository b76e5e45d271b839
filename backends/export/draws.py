"""Random numbers of exported steps: a table of the draws that a step can ask for is one of its inputs, `uniforms`.

The numbers are hashes of counters; shifts of 64-bit integers and their wrap-around are not to be had everywhere, and a
step that draws by itself would give other texts on other runtimes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specc.backends.ascend.declared import uniforms
from specc.backends.ascend.draws import row_draws
from specc.backends.ascend.ops.random import FIRST_DRAW, uniform_rows, uniform_table
from specc.program import DecodeProgram


@dataclass(frozen=True, slots=True)
class Table:
    """Draws 0 … draws - 1 of as many positions as the step can reach, from the token after the committed ones on."""

    positions: int
    draws: int

    @property
    def shape(self) -> tuple[int, int]:
        """The table's shape behind the batch."""
        return self.positions, self.draws

    def make(self, rng: torch.Tensor, length: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
        """float64 [B,positions,draws] for keys `rng` and committed tokens `length`, int64 [B].

        `more` int64 [B]: tokens that the step commits before it draws (a prefill's `lengths`, 1 otherwise).
        """
        return uniform_table(rng, length + more, self.positions, self.draws)


@dataclass(frozen=True, slots=True)
class Rows:
    """One number per token of the vocabulary for every node whose children are drawn: see `uniform_rows`."""

    offsets: tuple[int, ...]
    draws: tuple[int, ...]
    size: int

    @property
    def shape(self) -> tuple[int, int]:
        """The table's shape behind the batch."""
        return max(self.draws) - FIRST_DRAW + 1, self.size

    def make(self, rng: torch.Tensor, length: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
        """float64 [B,rows,size]; nothing is committed before a draft draws."""
        return uniform_rows(rng, length, list(self.offsets), list(self.draws), self.size)


Draws = Table | Rows


def draws_of(program: DecodeProgram, step: str) -> Draws | None:
    """What a step draws; None for the steps that draw nothing."""
    rows = row_draws(program.graphs[step]) if step == "draft" else None
    if rows is not None:
        offsets, draws, size = rows
        return Rows(tuple(offsets), tuple(draws), size)
    found = uniforms(program).get(step)
    return None if found is None else Table(*found)
