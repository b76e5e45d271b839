"""How often a verify schedule moves a state tile between memory and its working place, from the tree alone.

A tile is one layer's recurrent state [HV,V,K] of one sequence. A test holds these numbers equal to counts made while
the interpreter runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from specc.ir.ops.delta_schedules import heavy_chains

Schedule = Literal["replay", "serial", "hybrid", "tree"]
SCHEDULES: tuple[Schedule, ...] = ("replay", "serial", "hybrid", "tree")
FORM: Mapping[str, str] = {"replay": "steps", "serial": "steps", "hybrid": "steps", "tree": "rank_n"}
"""How factors are folded: one by one, in the order of operations of a schedule that goes token by token, or at once."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tiles read and written, and delta-rule steps computed, for one sequence and layer."""

    read: int
    written: int
    steps: int

    def __add__(self, other: Tiles) -> Tiles:
        return Tiles(self.read + other.read, self.written + other.written, self.steps + other.steps)


def _depths(parent_row: Sequence[int]) -> list[int]:
    depths: list[int] = []
    for above in parent_row:
        depths.append(depths[above - 1] + 1 if above else 0)
    return depths


def _replay(parent_row: Sequence[int], keep: bool) -> Tiles:
    """Every leaf's path from the committed state, each step reading and writing the tile; the states lie there."""
    inner = {above - 1 for above in parent_row if above}
    lengths = [depth + 1 for node, depth in enumerate(_depths(parent_row)) if node not in inner]
    return Tiles(sum(lengths), sum(lengths), sum(lengths))


def _serial(parent_row: Sequence[int], keep: bool) -> Tiles:
    """A node that does not follow its parent fetches the parent's state, which was stored for it."""
    far = [above for node, above in enumerate(parent_row) if above != node]
    stored = len(parent_row) if keep else len(set(far) - {0})
    return Tiles(1 + len(far), stored, len(parent_row))


def _hybrid(parent_row: Sequence[int], keep: bool) -> Tiles:
    """Every chain but the first fetches the state of the node that it hangs on."""
    chains = heavy_chains(list(parent_row))
    starts = {parent_row[chain[0]] for chain in chains} - {0}
    return Tiles(len(chains), len(parent_row) if keep else len(starts), len(parent_row))


def _tree(parent_row: Sequence[int], keep: bool) -> Tiles:
    return Tiles(1, len(parent_row) if keep else 0, 0)


_COUNTS: Mapping[Schedule, Callable[[Sequence[int], bool], Tiles]] = {
    "replay": _replay,
    "serial": _serial,
    "hybrid": _hybrid,
    "tree": _tree,
}


def verify_tiles(schedule: Schedule, parent_row: Sequence[int], keep: bool) -> Tiles:
    """What verifying one sequence moves; `parent_row` [N] (0: the committed context, node i is i + 1).

    `keep`: the states of all nodes are results (`commit.state: snapshots`).
    """
    return _COUNTS[schedule](parent_row, keep)


def chain_rows(nodes: int) -> list[int]:
    """`parent_row` of a chain."""
    return list(range(nodes))


def likely_rows(nodes: int, depth: int) -> list[int]:
    """`parent_row` of a tree of that many nodes and levels below the root, for a tree that is known only at run time.

    One path goes all the way down; the other nodes hang, one each in turn, on the nodes of that path above its end and
    come in the order of their levels, as drafters number them.
    """
    depth = min(depth, nodes - 1)
    rest = nodes - 1 - depth
    levels = [1 + rest // depth + (place < rest % depth) for place in range(depth)] if depth else []
    rows, spine = [0], 1
    for width in levels:
        rows += [spine] * width
        spine = len(rows) - width + 1
    return rows
