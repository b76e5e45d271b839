"""Configurations of the kernels by geometry: tile sizes, warps, stages.

The walk's configuration may not depend on the batch or on the number of nodes: a token's bits do (sums over K are split
between threads), and plain decoding and all schedules that go token by token have to agree. All others may.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TreeConfig:
    """The tree schedule. `fused`: one kernel instead of two phases. `pieces`: bfloat16 pieces of the state."""

    fused: bool
    bv: int
    bk: int
    warps: int
    stages: int
    prepare_warps: int = 1
    prepare_bk: int = 128
    pieces: int = 2


@dataclass(frozen=True, slots=True)
class WalkConfig:
    """Token by token: `bv` rows of the state per program, `e` neighbouring columns along the threads."""

    bv: int
    e: int
    warps: int


@dataclass(frozen=True, slots=True)
class CommitConfig:
    """The rank-n commit: tiles of [bv, bk]."""

    bv: int
    bk: int
    warps: int
    stages: int


WALK: Mapping[tuple[int, int], WalkConfig] = {
    (128, 128): WalkConfig(bv=16, e=32, warps=1),
    (256, 256): WalkConfig(bv=8, e=32, warps=1),
}
COMMIT = CommitConfig(bv=64, bk=64, warps=4, stages=3)

FEW = TreeConfig(fused=False, bv=64, bk=32, warps=4, stages=4, prepare_warps=2)
MANY = TreeConfig(fused=False, bv=64, bk=64, warps=4, stages=2)
CROWD = TreeConfig(fused=False, bv=64, bk=32, warps=4, stages=4)
TILES32 = TreeConfig(fused=False, bv=64, bk=32, warps=4, stages=4, prepare_warps=2, prepare_bk=64)
TILES64 = TreeConfig(fused=False, bv=64, bk=32, warps=4, stages=3, prepare_warps=4, prepare_bk=64)
ALWAYS = 1 << 30
TREE: Mapping[tuple[int, int, int], tuple[tuple[int, TreeConfig], ...]] = {
    (128, 128, 16): ((128, FEW), (512, MANY), (ALWAYS, CROWD)),
    (256, 256, 16): ((128, FEW), (ALWAYS, MANY)),
    (128, 128, 32): ((ALWAYS, TILES32),),
    (256, 256, 32): ((ALWAYS, TILES32),),
    (128, 128, 64): ((ALWAYS, TILES64),),
    (256, 256, 64): ((ALWAYS, TILES64),),
}
"""By (K, V, T): configurations with the largest number of value heads times sequences that they are for.

Measured on an H200 (specc/bench/results/kernels_delta.json) but for K = V = 128 with T = 32 and for T = 64.
"""


PENDING: Mapping[tuple[int, int, int], tuple[tuple[int, TreeConfig], ...]] = {
    **TREE,
    (256, 256, 16): ((128, FEW), (ALWAYS, CROWD)),
}
"""With factors pending."""


def tree_config(keys: int, values: int, nodes: int, programs: int, pending: bool = False) -> TreeConfig:
    """The configuration for K, V, T (16, 32 or 64) and value heads times sequences; that of the nearest geometry."""
    table = PENDING if pending else TREE
    nearest = min(table, key=lambda known: (known[2] != nodes, abs(known[0] - keys) + abs(known[1] - values)))
    return next(config for most, config in table[nearest] if programs <= most)


def walk_config(keys: int, values: int) -> WalkConfig:
    """The configuration for K, V; that of the nearest geometry."""
    return WALK[min(WALK, key=lambda known: abs(known[0] - keys) + abs(known[1] - values))]
