"""Configurations of the attention kernels by geometry: tiles, warps, stages, and how many programs fill the device."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """`rows` of a tile, `bn` columns a step, `bt` in the tail with `ahead` stages; `programs` at once on the device;
    `least` steps for a part of the columns; `tma`: bulk copies; `early` steps asked for while the kernel in front runs
    (a power of two or 0); `step`: rotary embeddings and new rows of the caches in the same launch.
    """

    rows: int
    bn: int
    warps: int
    stages: int
    programs: int
    least: int = 1
    bt: int = 32
    ahead: int = 2
    tma: bool = True
    early: int = 0
    step: bool = False


ALWAYS = 1 << 30
ATTENTION = {
    64: (
        (64, ALWAYS, AttentionConfig(rows=64, bn=128, warps=4, stages=4, programs=132, bt=16, early=1)),
        (ALWAYS, ALWAYS, AttentionConfig(rows=64, bn=64, warps=4, stages=3, programs=396, bt=64)),
    ),
    128: (
        (64, 132, AttentionConfig(rows=64, bn=64, warps=4, stages=4, programs=132, least=2, early=1)),
        (64, ALWAYS, AttentionConfig(rows=64, bn=64, warps=4, stages=3, programs=264, early=2)),
        (ALWAYS, 32, AttentionConfig(rows=64, bn=64, warps=4, stages=3, programs=264)),
        (ALWAYS, ALWAYS, AttentionConfig(rows=128, bn=64, warps=8, stages=4, programs=132)),
    ),
    256: ((ALWAYS, ALWAYS, AttentionConfig(rows=64, bn=32, warps=8, stages=3, programs=132, bt=16)),),
}
"""For 16-bit rows by head dim: (packed rows, KV heads times sequences) at most, and the configuration for them.

Measured on an H200 (specc/bench/results/kernels_attention.json) but for head dim 256. Tiles have 64 rows even for one
token: products of fewer rows go through slower instructions, and rows that are not there cost nothing.
"""

ATTENTION_FLOAT32 = {
    64: ((ALWAYS, ALWAYS, AttentionConfig(rows=16, bn=32, warps=4, stages=2, programs=264)),),
    128: ((ALWAYS, ALWAYS, AttentionConfig(rows=16, bn=32, warps=4, stages=2, programs=132)),),
    256: ((ALWAYS, ALWAYS, AttentionConfig(rows=16, bn=16, warps=4, stages=2, programs=132, bt=16)),),
}
"""For float32 rows."""

MOST_PARTS = 128


def attention_config(dim: int, packed: int, groups: int, wide: bool) -> AttentionConfig:
    """The configuration for a head dim, packed rows, `groups` KV heads of all sequences, and float32 (`wide`)."""
    table = ATTENTION_FLOAT32 if wide else ATTENTION
    near = min(table, key=lambda known: abs(known - dim))
    return next(config for rows, most, config in table[near] if packed <= rows and groups <= most)


SHORT = AttentionConfig(rows=64, bn=128, warps=4, stages=4, programs=132, early=1, step=True)
STEP = {
    64: ((64, 132, SHORT),),
    128: ((64, 132, replace(SHORT, bn=64, least=2, bt=16)),),
}
"""As `ATTENTION`, for steps of few tokens in one launch; other geometries rotate and append in a launch of its own.

On an H200, microseconds a layer in a graph of 30 with 512 committed rows, 9 query heads of 64 (3 of keys), one row:
with the projections beside it 10.68 for a launch in front, 9.84 without (one token), 11.26 and 10.52 (16 nodes).
Parts are joined by a second launch: by the last program of a tile it takes 30 to 50 longer for 16 nodes, and not
less for one.
"""


def step_config(dim: int, packed: int, groups: int, wide: bool) -> AttentionConfig:
    """As `attention_config`, for `rope_attention_`."""
    for rows, most, config in () if wide else STEP.get(dim, ()):
        if packed <= rows and groups <= most:
            return config
    return attention_config(dim, packed, groups, wide)
