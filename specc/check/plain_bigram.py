"""A bigram drafter in plain Python: what follows a token, looked up in the tables of the weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from specc.models.bigram import BigramGeometry

STEP = 0.25
"""Random log-probabilities are multiples of this (nats), so that most rows have equal ones: ties go wrong first."""


@dataclass(frozen=True, slots=True)
class PlainBigram:
    """`followers[t]` are the candidates after token t: id -> log-probability, in no order."""

    followers: tuple[Mapping[int, float], ...]

    @classmethod
    def of(cls, next_token: Tensor, next_log_prob: Tensor) -> PlainBigram:
        """From the tables [V,K]."""
        rows = zip(next_token.tolist(), next_log_prob.tolist(), strict=True)
        return cls(tuple(dict(zip(ids, scores, strict=True)) for ids, scores in rows))

    def log_probs(self, token: int) -> list[float]:
        """The log-probabilities [V] after `token`; -inf for what the table does not have."""
        known = self.followers[token]
        return [known.get(other, -math.inf) for other in range(len(self.followers))]


def random_tables(geometry: BigramGeometry, seed: int) -> tuple[Tensor, Tensor]:
    """`next_token` and `next_log_prob` [V,K] of random laws with many ties; rows sorted as they must be."""
    generator = torch.Generator().manual_seed(seed)
    size = geometry.vocab_size
    law = torch.log_softmax(2 * torch.randn((size, size), generator=generator, dtype=torch.float64), -1)
    coarse = (law / STEP).floor() * STEP
    order = coarse.sort(stable=True, dim=-1, descending=True)
    kept = geometry.candidates_per_token
    return order.indices[:, :kept].contiguous(), order.values[:, :kept].float().contiguous()
