"""What the head learns from: the frozen target's features, and its law restricted to the draft vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from specc.models.geometry import AuxFeature
from specc.train.draft.batches import Batch

CHUNK = 8192
"""Rows of full-vocabulary logits at once."""


class Target(Protocol):
    """What training needs of a frozen target."""

    def states(self, ids: Tensor, shown: Sequence[AuxFeature]) -> tuple[Tensor, Tensor]: ...
    def logits(self, hidden: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Lesson:
    """One batch's teaching: features [B,T,F], the law [n,Vd] of each counted row within the draft vocabulary (sums to
    1), and its mass [n], what the draft vocabulary holds of the target's whole law."""

    features: Tensor
    law: Tensor
    mass: Tensor


class Teacher:
    """The target, with what it computed of a batch kept on the device as long as there is room."""

    def __init__(self, target: Target, shown: Sequence[AuxFeature], draft_ids: Tensor, keep_bytes: int = 0) -> None:
        self.target, self.shown, self.draft_ids = target, tuple(shown), draft_ids
        self.room = keep_bytes
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}

    @torch.no_grad()
    def lesson(self, batch: Batch, number: int | None = None) -> Lesson:
        """The lesson of a batch; batches with the same `number` are the same batch."""
        features, hidden = self._states(batch, number)
        law, mass = self._law(hidden)
        return Lesson(features, law, mass)

    def _states(self, batch: Batch, number: int | None) -> tuple[Tensor, Tensor]:
        """Features [B,T,F], and the final hidden states [n,H] that predict the counted rows' tokens."""
        if number is not None and number in self._kept:
            return self._kept[number]
        features, hidden = self.target.states(batch.ids, self.shown)
        width = batch.ids.shape[1]
        text, row = batch.rows // (width - 1), batch.rows % (width - 1)
        found = (features, hidden.flatten(0, 1).index_select(0, text * width + row + 1))
        size = sum(part.numel() * part.element_size() for part in found)
        if number is not None and size <= self.room:
            self.room -= size
            self._kept[number] = found
        return found

    def _law(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        laws, masses = [], []
        for part in hidden.split(CHUNK):
            logits = self.target.logits(part)
            chosen = logits.index_select(-1, self.draft_ids).float()
            inside = chosen.logsumexp(-1, keepdim=True)
            laws.append((chosen - inside).exp())
            masses.append((inside.squeeze(-1) - logits.float().logsumexp(-1)).exp().clamp_max(1.0))
        return torch.cat(laws), torch.cat(masses)
