"""What recorded drafts say of every tree: the accepted tokens of smaller trees, without decoding again.

A drafter with weights was run, with a generous tree, at every position of texts that the target produced. Greedy text
does not depend on drafts, and a drafter's candidates depend on the text before them only. So the tree that a smaller
budget would have made is part of the recorded candidates, and what it would have accepted is the longest path of it
that the text follows. Where that path leaves the recording (a node that the smaller tree would have expanded and the
generous one did not), the position is counted as unknown, and its accepted tokens as those that are known.

Candidates are numbered as `specc.lower.drafts.dynamic` does: K of level 1, then K * K of each level, frontier node by
frontier node, best child first. Arrays: P positions, C candidates, D levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Scalar = TypeVar("Scalar", bound=np.generic)

NEVER = 1 << 30
"""The threshold of a node that no budget holds."""
MISSED, UNKNOWN, NO_TEXT = -1, -2, -3
"""In place of a rank: no child was right; the node was not expanded; the text ends here."""


@dataclass(frozen=True, slots=True)
class TextSpan:
    """The positions of one text: `start` to `stop` of the arrays. The first is the step after the prefill."""

    name: str
    start: int
    stop: int


class Evidence(Protocol):
    """What the choice of a tree needs; `top_k` and `levels` bound the trees that it can judge."""

    @property
    def spans(self) -> Sequence[TextSpan]: ...
    @property
    def top_k(self) -> int: ...
    @property
    def levels(self) -> int: ...
    @property
    def ranks(self) -> Ints:
        """[P,D]: ranks of the text's tokens among the children of the node before, or MISSED, UNKNOWN, NO_TEXT."""

    def thresholds(self, top_k: int, num_steps: int) -> Ints:
        """[P,D]: the tree of n nodes holds the text's first j + 1 tokens if n is more than [p,j]."""

    def unknown(self, top_k: int, num_steps: int) -> Bools:
        """[P]: positions where the tree of any budget might accept more than is known."""


@dataclass(slots=True)
class Recorded:
    """Candidates of a drafter with weights: token, parent (a candidate, -1: the root) and score [P,C]; truth [P,D] is
    the text behind each position, -1 behind its end."""

    spans: Sequence[TextSpan]
    top_k: int
    levels: int
    token: Ints
    parent: Ints
    score: Floats
    truth: Ints
    _paths: tuple[Ints, Ints] | None = field(default=None, repr=False)
    _eligible: dict[int, Bools] = field(default_factory=dict, repr=False)
    _expanded: Bools | None = field(default=None, repr=False)

    @property
    def level(self) -> Ints:
        """[C]: 1 for the root's children."""
        later = np.repeat(np.arange(2, self.levels + 1), self.top_k * self.top_k)
        return np.concatenate((np.ones(self.top_k, dtype=np.int64), later))

    @property
    def rank(self) -> Ints:
        """[C]: the rank among its siblings."""
        return np.arange(self.level.shape[0]) % self.top_k

    @property
    def expanded(self) -> Bools:
        """[P,C]: whether the drafter was run on the candidate."""
        if self._expanded is None:
            self._expanded = np.zeros(self.parent.shape, dtype=np.bool_)
            rows, columns = np.nonzero(self.parent >= 0)
            self._expanded[rows, self.parent[rows, columns]] = True
        return self._expanded

    @property
    def path(self) -> Ints:
        """[P,D]: the candidate that is the text's token at each depth, or MISSED, UNKNOWN, NO_TEXT."""
        return self._followed()[0]

    @property
    def ranks(self) -> Ints:
        return self._followed()[1]

    def _followed(self) -> tuple[Ints, Ints]:
        if self._paths is not None:
            return self._paths
        path = np.full(self.truth.shape, MISSED, dtype=np.int64)
        here = np.full(self.truth.shape[0], -1, dtype=np.int64)
        alive = np.ones(self.truth.shape[0], dtype=np.bool_)
        for depth in range(self.levels):
            columns = np.nonzero(self.level == depth + 1)[0]
            fits = (self.parent[:, columns] == here[:, None]) & (self.token[:, columns] == self.truth[:, depth, None])
            ended = alive & (self.truth[:, depth] < 0)
            closed = alive & ~ended & (here >= 0) & ~_at(self.expanded, here)
            path[ended, depth], path[closed, depth] = NO_TEXT, UNKNOWN
            found = fits.any(1) & alive & ~ended & ~closed
            here = np.where(found, columns[fits.argmax(1)], here)
            path[found, depth] = here[found]
            alive &= found
        ranks = np.where(path >= 0, self.rank[np.maximum(path, 0)], path)
        self._paths = path, ranks
        return self._paths

    def eligible(self, top_k: int) -> Bools:
        """[P,C]: the candidates of the tree with this top_k, as far as its frontiers were expanded.

        Its frontier of a level is the best `top_k` of that level's candidates by (score desc, number asc).
        """
        if top_k not in self._eligible:
            level, rank = self.level, self.rank
            found = np.zeros(self.token.shape, dtype=np.bool_)
            first = np.nonzero((level == 1) & (rank < top_k))[0]
            found[:, first] = True
            frontier = np.repeat(first[None], self.token.shape[0], axis=0)
            for depth in range(2, self.levels + 1):
                columns = np.nonzero((level == depth) & (rank < top_k))[0]
                above = self.parent[:, columns]
                inside = (above[:, :, None] == frontier[:, None]).any(2)
                found[:, columns] = inside
                scores = np.where(inside, self.score[:, columns], -np.inf)
                order = np.argsort(-scores, axis=1, kind="stable")[:, :top_k]
                frontier = columns[order]
                frontier[~np.take_along_axis(inside, order, 1)] = NEVER
            self._eligible[top_k] = found
        return self._eligible[top_k]

    def thresholds(self, top_k: int, num_steps: int) -> Ints:
        """Places in the order (score desc, number asc) of the candidates of the tree with this top_k and num_steps."""
        eligible = self.eligible(top_k) & (self.level <= num_steps)[None]
        found = np.full(self.path.shape, NEVER, dtype=np.int64)
        alive = np.ones(self.path.shape[0], dtype=np.bool_)
        number = np.arange(self.token.shape[1])
        for depth in range(num_steps):
            node = self.path[:, depth]
            alive &= (node >= 0) & _at(eligible, node)
            own = _at(self.score, node)[:, None]
            before = (self.score > own) | ((self.score == own) & (number[None] < node[:, None]))
            found[alive, depth] = (before & eligible).sum(1)[alive]
        return found

    def unknown(self, top_k: int, num_steps: int) -> Bools:
        """The text leaves the recording at a node that is in the smaller tree's frontier but was not expanded."""
        eligible = self.eligible(top_k)
        found = np.zeros(self.path.shape[0], dtype=np.bool_)
        for depth in range(1, num_steps):
            closed = (self.path[:, depth] == UNKNOWN) & _at(eligible, self.path[:, depth - 1])
            found |= closed & self._in_frontier(top_k, depth, self.path[:, depth - 1])
        return found

    def _in_frontier(self, top_k: int, depth: int, node: Ints) -> Bools:
        """[P]: whether the candidate `node` of level `depth` is among the best `top_k` of the tree with this top_k."""
        level = self.eligible(top_k) & (self.level == depth)[None]
        own = _at(self.score, node)[:, None]
        number = np.arange(self.token.shape[1])
        before = (self.score > own) | ((self.score == own) & (number[None] < node[:, None]))
        return (before & level).sum(1) < top_k


def _at(values: npt.NDArray[Scalar], node: Ints) -> npt.NDArray[Scalar]:
    """values [P,C] at column node [P]; a column below 0 reads column 0, which the caller masks."""
    return np.take_along_axis(values, np.maximum(node, 0)[:, None], 1)[:, 0]


def accepted(thresholds: Ints, nodes: int) -> Ints:
    """[P]: the accepted drafted tokens of the tree of `nodes` drafted nodes, from its thresholds [P,D]."""
    return (thresholds < nodes).sum(1)


def accepted_static(ranks: Ints, choices: Sequence[tuple[int, ...]]) -> tuple[Ints, Bools]:
    """[P]: the accepted drafted tokens of a static tree, and where it might accept more than is known."""
    known = {()} | set(choices)
    counts, unknown = [], []
    for row in ranks.tolist():
        path: tuple[int, ...] = ()
        for rank in row:
            if (*path, rank) not in known:
                unknown.append(rank == UNKNOWN and any(other[: len(path)] == path != other for other in known))
                break
            path = (*path, rank)
        else:
            unknown.append(False)
        counts.append(len(path))
    return np.array(counts, dtype=np.int64), np.array(unknown, dtype=np.bool_)


@dataclass(frozen=True, slots=True)
class Replay:
    """A run of a tree over the recorded texts: what `specc.runtime.metrics` would count.

    `steps`, `tokens` (without the prefill's), and accepted tokens per step, for the error of their mean.
    """

    steps: int
    tokens: int
    squares: int

    @property
    def acceptance_length(self) -> float:
        """tau: tokens per step, the bonus included."""
        return self.tokens / self.steps if self.steps else 0.0

    @property
    def standard_error(self) -> float:
        """Of the acceptance length, steps taken as independent."""
        if self.steps < 2:
            return float("inf")
        variance = self.squares / self.steps - self.acceptance_length**2
        return float((max(variance, 0.0) / (self.steps - 1)) ** 0.5)


def replay(spans: Sequence[TextSpan], counts: Ints) -> Replay:
    """Decode every text with a tree that accepts counts[p] drafted tokens at position p."""
    listed = counts.tolist()
    steps = tokens = squares = 0
    for span in spans:
        place = span.start
        while place < span.stop:
            emitted = min(listed[place] + 1, span.stop - place)
            steps, tokens, squares = steps + 1, tokens + emitted, squares + emitted * emitted
            place += emitted
    return Replay(steps, tokens, squares)
