"""Configurations of the delta rule's kernels by geometry: tile sizes, warps, stages.

The bits of the walk (plain decoding and all schedules that go token by token) depend on how its sums over K are split
between threads: on `e`, which is therefore fixed for a geometry. Rows of the state per program and warps may change
with the number of sequences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ALWAYS = 1 << 30


@dataclass(frozen=True, slots=True)
class TreeConfig:
    """The tree schedule: tiles [bv,bk] of the state in the second phase; `pieces`: bfloat16 pieces of the state;
    `whole`: both phases in one program for each tile; `bulk`: tiles that are folded come and go by bulk copies;
    `inside`: a fold's weights are made when the first chunks are on their way, which takes some 30 registers more;
    `prepare_registers`: those of the first phase's threads, where the compiler by itself is content with too few."""

    bv: int
    bk: int
    warps: int
    stages: int
    prepare_warps: int = 1
    prepare_bk: int = 256
    pieces: int = 2
    whole: bool = False
    bulk: bool = False
    inside: bool = True
    prepare_registers: int | None = None


@dataclass(frozen=True, slots=True)
class WalkConfig:
    """Token by token: `bv` rows of the state per program, parts of `e` columns (four of a row in each thread);
    `registers`: the most per thread, where the compiler would take more than leave room for four programs at once."""

    bv: int
    e: int
    warps: int
    registers: int | None = None


@dataclass(frozen=True, slots=True)
class CommitConfig:
    """The rank-n commit: tiles of [bv, bk]; `ahead`: chunks of the state too are loaded stages ahead."""

    bv: int
    bk: int
    warps: int
    stages: int
    ahead: bool = False


WALK: Mapping[tuple[int, int], tuple[tuple[int, WalkConfig], ...]] = {
    (128, 128): (
        (64, WalkConfig(bv=16, e=32, warps=4)),
        (128, WalkConfig(bv=32, e=32, warps=4)),
        (ALWAYS, WalkConfig(bv=64, e=32, warps=4, registers=128)),
    ),
    (256, 256): (
        (16, WalkConfig(bv=8, e=64, warps=4, registers=128)),
        (32, WalkConfig(bv=16, e=64, warps=4, registers=128)),
        (ALWAYS, WalkConfig(bv=32, e=64, warps=4, registers=128)),
    ),
}
"""By (K, V): configurations with the largest number of value heads times sequences that they are for.

On an H200, microseconds for chains of 16 tokens at 1 / 8 / 32 rows: GDN-1.3B (K = 256) 7.5 / 20.3 / 64.4, Qwen3-Next
(K = 128) 7.0 / 21.4 / 68.2.
"""
FORKED: Mapping[tuple[int, int], tuple[tuple[int, WalkConfig], ...]] = {
    (128, 128): (
        (64, WalkConfig(bv=16, e=32, warps=4)),
        (ALWAYS, WalkConfig(bv=32, e=32, warps=4, registers=128)),
    ),
    (256, 256): (
        (16, WalkConfig(bv=8, e=64, warps=4, registers=128)),
        (ALWAYS, WalkConfig(bv=16, e=64, warps=4, registers=128)),
    ),
}
"""As WALK, for trees and single arrays of nodes: there four rows of a thread, and a tile that waits beside, leave room
for fewer programs at once."""
SINGLE: Mapping[tuple[int, int], WalkConfig] = {
    (128, 128): WalkConfig(bv=16, e=32, warps=4),
    (256, 256): WalkConfig(bv=8, e=64, warps=4),
}
"""By (K, V): for one token, which reads and writes the state and does little else. `e` is that of WALK.

On an H200, microseconds at 1 / 8 / 32 rows: K = 256 3.2 / 10.8 / 37.4, K = 128 3.4 / 11.4 / 38.0.
"""
COMMIT: Mapping[tuple[int, int], CommitConfig] = {
    (128, 128): CommitConfig(bv=32, bk=128, warps=4, stages=2, ahead=True),
    (256, 256): CommitConfig(bv=32, bk=64, warps=4, stages=3, ahead=True),
}
"""By (K, V)."""

TREE: Mapping[tuple[int, int, int], tuple[tuple[int, TreeConfig], ...]] = {
    (128, 128, 16): (
        (64, TreeConfig(bv=32, bk=128, warps=4, stages=1, whole=True)),
        (512, TreeConfig(bv=128, bk=32, warps=4, stages=3, prepare_warps=2, prepare_bk=128)),
        (
            ALWAYS,
            TreeConfig(bv=64, bk=32, warps=4, stages=3, prepare_warps=1, prepare_bk=128, prepare_registers=128),
        ),
    ),
    (256, 256, 16): (
        (16, TreeConfig(bv=16, bk=128, warps=4, stages=1, whole=True)),
        (128, TreeConfig(bv=64, bk=32, warps=4, stages=4, prepare_warps=4, prepare_bk=128)),
        (ALWAYS, TreeConfig(bv=64, bk=32, warps=4, stages=3, prepare_warps=2, prepare_bk=128)),
    ),
    (128, 128, 32): (
        (64, TreeConfig(bv=32, bk=128, warps=4, stages=1, whole=True)),
        (512, TreeConfig(bv=128, bk=32, warps=4, stages=3, prepare_warps=4, prepare_bk=128)),
        (ALWAYS, TreeConfig(bv=64, bk=32, warps=4, stages=4, prepare_warps=4, prepare_bk=128)),
    ),
    (256, 256, 32): (
        (16, TreeConfig(bv=16, bk=64, warps=4, stages=1, whole=True)),
        (128, TreeConfig(bv=64, bk=32, warps=4, stages=4, prepare_warps=4, prepare_bk=128)),
        (ALWAYS, TreeConfig(bv=128, bk=32, warps=8, stages=4, prepare_warps=4, prepare_bk=128)),
    ),
    (128, 128, 64): ((ALWAYS, TreeConfig(bv=64, bk=32, warps=4, stages=3, prepare_warps=8, prepare_bk=64)),),
    (256, 256, 64): ((ALWAYS, TreeConfig(bv=64, bk=32, warps=4, stages=3, prepare_warps=8, prepare_bk=64)),),
}
"""By (K, V, T): configurations with the largest number of value heads times sequences that they are for.

On an H200, microseconds at 1 / 8 / 32 rows: 16 nodes GDN-1.3B (K = 256) 5.2 / 9.6 / 27.2, Qwen3-Next (K = 128) 5.0 /
10.5 / 31.6; 32 nodes 8.3 / 13.3 / 40.8 and 8.1 / 17.1 / 66.1.
"""
PENDING: Mapping[tuple[int, int, int], tuple[tuple[int, TreeConfig], ...]] = {
    (128, 128, 16): (
        (32, TreeConfig(bv=32, bk=64, warps=4, stages=3, prepare_warps=2, prepare_bk=128)),
        (512, TreeConfig(bv=64, bk=32, warps=4, stages=4, prepare_warps=2, prepare_bk=128)),
        (
            ALWAYS,
            TreeConfig(
                bv=64,
                bk=32,
                warps=4,
                stages=3,
                prepare_warps=1,
                prepare_bk=128,
                bulk=True,
                inside=False,
                prepare_registers=128,
            ),
        ),
    ),
    (256, 256, 16): (
        (16, TreeConfig(bv=16, bk=64, warps=2, stages=5, prepare_warps=4, prepare_bk=256)),
        (128, TreeConfig(bv=64, bk=64, warps=4, stages=3, prepare_warps=4, prepare_bk=128, bulk=True)),
        (ALWAYS, TreeConfig(bv=64, bk=64, warps=4, stages=3, prepare_warps=2, prepare_bk=128, bulk=True)),
    ),
    (128, 128, 32): ((ALWAYS, TreeConfig(bv=64, bk=32, warps=4, stages=3, prepare_warps=4, prepare_bk=128)),),
    (256, 256, 32): ((ALWAYS, TreeConfig(bv=64, bk=32, warps=4, stages=3, prepare_warps=4, prepare_bk=128)),),
    (128, 128, 64): ((ALWAYS, TreeConfig(bv=64, bk=32, warps=4, stages=3, prepare_warps=8, prepare_bk=64)),),
    (256, 256, 64): ((ALWAYS, TreeConfig(bv=64, bk=32, warps=4, stages=3, prepare_warps=8, prepare_bk=64)),),
}
"""With factors pending.

On an H200, microseconds at 1 / 8 / 32 rows with eight of them folded: GDN-1.3B 7.3 / 15.9 / 48.2, Qwen3-Next 7.2 / 16.3
/ 54.7.
"""


def tree_config(keys: int, values: int, nodes: int, programs: int, pending: bool = False) -> TreeConfig:
    """The configuration for K, V, T (a power of two) and value heads times sequences; that of the nearest geometry."""
    table = PENDING if pending else TREE
    nearest = min(table, key=lambda known: (abs(known[2] - nodes), abs(known[0] - keys) + abs(known[1] - values)))
    return next(config for most, config in table[nearest] if programs <= most)


def walk_config(keys: int, values: int, programs: int, single: bool = False, ordered: bool = False) -> WalkConfig:
    """The configuration for K, V and value heads times sequences, of a chain, a tree or one array of nodes (`ordered`),
    or a `single` token of each; that of the nearest geometry."""
    nearest = min(WALK, key=lambda known: abs(known[0] - keys) + abs(known[1] - values))
    if single:
        return SINGLE[nearest]
    return next(config for most, config in (FORKED if ordered else WALK)[nearest] if programs <= most)


def commit_config(keys: int, values: int) -> CommitConfig:
    """The configuration of the rank-n commit for K, V; that of the nearest geometry."""
    return COMMIT[min(COMMIT, key=lambda known: abs(known[0] - keys) + abs(known[1] - values))]
