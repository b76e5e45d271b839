"""The best static tree of n nodes and at most d levels for given acceptance probabilities: an exact dynamic program.

The model is Sequoia's (arXiv:2402.12374, section 4.1) with probabilities that may depend on the depth: a child of rank
r of an accepted node at depth l - 1 is accepted with probability p[l - 1][r], siblings exclude each other, and what
happens below a node depends on its depth only. A node is accepted with the product of the probabilities on its path,
and a tree's expected accepted tokens are the sum of these products.

Let V_l(m) be the best value of m nodes whose uppermost one stands at depth l and is known to be accepted. Then

    V_l(m) = 1 + max over m_0 + m_1 + ... = m - 1 of sum_r p[l][r] V_{l+1}(m_r),    V_l(0) = 0,

where the maximum is a knapsack over the ranks: O(levels * ranks * nodes^2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

RankPath = tuple[int, ...]
Probabilities = Sequence[Sequence[float]]
"""p[l][r]: acceptance of the child of rank r at depth l + 1, given that its parent was accepted."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A static tree: rank paths sorted by length, then by rank; and its expected accepted drafted tokens."""

    choices: tuple[RankPath, ...]
    value: float

    @property
    def depth(self) -> int:
        """Levels below the root."""
        return max((len(path) for path in self.choices), default=0)


@dataclass(slots=True)
class _Level:
    """Of one depth: value[m] (-inf: impossible) and, per m, the sizes of the children's trees by rank."""

    value: list[float]
    split: list[tuple[int, ...]]


def best_shapes(probabilities: Probabilities, nodes: int, depth: int) -> list[Shape | None]:
    """The best tree of exactly n drafted nodes and at most `depth` levels for n = 0 ... `nodes`; None where there is
    none, as for more nodes than ranks and levels give.

    Of equally good trees the one with more nodes under lower ranks is returned. Raises ValueError for a depth beyond
    the probabilities and for values that are no probabilities.
    """
    if depth > len(probabilities):
        raise ValueError(f"there are probabilities of {len(probabilities)} depths, not of {depth}")
    for row in probabilities:
        if any(not 0 <= value <= 1 for value in row) or sum(row) > 1 + 1e-9:
            raise ValueError(f"{list(row)} are no probabilities of siblings, of which one at most is accepted")
    levels = [_leaf(nodes)]
    for row in reversed(probabilities[:depth]):
        levels.insert(0, _level(row, levels[0], nodes))
    made: list[Shape | None] = []
    for count in range(nodes + 1):
        value = levels[0].value[count + 1]
        found = sorted(_paths(levels, 0, count + 1, ()), key=lambda path: (len(path), path)) if value > 0 else []
        made.append(Shape(tuple(found), value - 1) if value > 0 else None)
    return made


def _leaf(nodes: int) -> _Level:
    """The deepest level: one node or none."""
    return _Level([0.0, 1.0] + [-math.inf] * nodes, [()] * (nodes + 2))


def _level(row: Sequence[float], below: _Level, nodes: int) -> _Level:
    """V_l from V_{l+1}: ranks join one by one, `best[j]` is the value of j nodes under the ranks so far."""
    best = [0.0] + [-math.inf] * nodes
    split: list[tuple[int, ...]] = [()] * (nodes + 1)
    for share in row:
        joined = [-math.inf] * (nodes + 1)
        chosen: list[tuple[int, ...]] = [()] * (nodes + 1)
        for total in range(nodes + 1):
            for own in range(total + 1):
                value = best[total - own] + (share * below.value[own] if own else 0.0)
                if value > joined[total]:
                    joined[total], chosen[total] = value, (*split[total - own], own)
        best, split = joined, chosen
    return _Level([0.0] + [1 + value for value in best], [(), *split])


def _paths(levels: Sequence[_Level], depth: int, size: int, above: RankPath) -> list[RankPath]:
    """The rank paths of the tree of `size` nodes at `depth` whose uppermost node is `above`."""
    found = [above] if above else []
    for rank, own in enumerate(levels[depth].split[size]):
        if own:
            found += _paths(levels, depth + 1, own, (*above, rank))
    return found


def expected_accepted(choices: Sequence[RankPath], probabilities: Probabilities) -> float:
    """Expected accepted drafted tokens of any static tree: the sum over its nodes of the products on their paths."""
    return sum(math.prod(probabilities[level][rank] for level, rank in enumerate(path)) for path in choices)
