"""Acceptance by depth and rank of the child, with counts and confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specc.tune.evidence import MISSED, UNKNOWN, Ints

Z = 1.959964
"""Quantile of the standard normal for intervals of 95%."""


@dataclass(frozen=True, slots=True)
class RankShare:
    """How often the child of one rank was the target's token, of `trials` accepted parents at the depth before."""

    hits: int
    trials: int

    @property
    def share(self) -> float:
        return self.hits / self.trials if self.trials else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's interval of 95%; 0 to 1 without trials. Positions of a text are not independent: it is a lower
        bound of the uncertainty."""
        return wilson(self.hits, self.trials)


@dataclass(frozen=True, slots=True)
class DepthShares:
    """One depth: its ranks, and how many accepted parents had not been expanded, so that nothing is known."""

    depth: int
    ranks: tuple[RankShare, ...]
    unknown: int

    @property
    def trials(self) -> int:
        return self.ranks[0].trials

    def as_json(self) -> dict[str, Any]:
        return {
            "depth": self.depth,
            "trials": self.trials,
            "unknown": self.unknown,
            "ranks": [
                {
                    "rank": rank,
                    "hits": one.hits,
                    "share": round(one.share, 5),
                    "ci95": [round(v, 5) for v in one.interval],
                }
                for rank, one in enumerate(self.ranks)
            ],
        }


def wilson(hits: int, trials: int) -> tuple[float, float]:
    """Wilson's score interval (1927) of a share, at 95%."""
    if not trials:
        return 0.0, 1.0
    share, weight = hits / trials, Z * Z / trials
    middle = (share + weight / 2) / (1 + weight)
    half = Z * math.sqrt(share * (1 - share) / trials + weight / (4 * trials)) / (1 + weight)
    return max(0.0, middle - half), min(1.0, middle + half)


def by_depth(ranks: Ints, top_k: int) -> list[DepthShares]:
    """Of ranks [P,D] as `Evidence.ranks` gives them. Depth d counts the positions whose first d - 1 tokens were among
    the candidates, whose node there was expanded, and whose text goes on."""
    found = []
    for place in range(ranks.shape[1]):
        reached = (ranks[:, :place] >= 0).all(1)
        here = ranks[reached, place]
        trials = int(((here >= 0) | (here == MISSED)).sum())
        shares = tuple(RankShare(int((here == rank).sum()), trials) for rank in range(top_k))
        found.append(DepthShares(place + 1, shares, int((here == UNKNOWN).sum())))
    return found


def probabilities(depths: Sequence[DepthShares]) -> list[list[float]]:
    """What `shapes.best_shapes` takes."""
    return [[one.share for one in depth.ranks] for depth in depths]
