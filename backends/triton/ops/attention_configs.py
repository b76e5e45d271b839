"""Configurations of the attention kernels by geometry: tiles, warps, stages, and how many programs fill the device."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """`rows` of a tile, `bn` columns a step, `bt` in the tail with `ahead` stages; `programs` at once on the device;
    `least` steps for a part of the columns; `tma`: bulk copies; `early` steps asked for while the kernel in front runs
    (a power of two or 0); `registers` a thread at most (0: any)."""

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
    registers: int = 0


ALWAYS = 1 << 30
ATTENTION = {
    64: (
        (16, AttentionConfig(rows=16, bn=64, warps=4, stages=4, programs=132)),
        (64, AttentionConfig(rows=64, bn=128, warps=4, stages=4, programs=132)),
        (ALWAYS, AttentionConfig(rows=64, bn=64, warps=4, stages=3, programs=396)),
    ),
    128: (
        (16, AttentionConfig(rows=16, bn=64, warps=4, stages=3, programs=264)),
        (64, AttentionConfig(rows=64, bn=64, warps=4, stages=3, programs=132)),
        (ALWAYS, AttentionConfig(rows=64, bn=64, warps=4, stages=3, programs=264)),
    ),
    256: (
        (16, AttentionConfig(rows=16, bn=32, warps=4, stages=3, programs=264, bt=16)),
        (ALWAYS, AttentionConfig(rows=64, bn=32, warps=8, stages=3, programs=132, bt=16)),
    ),
}
"""For 16-bit rows by head dim: configurations with the largest number of packed rows that they are for."""

ATTENTION_FLOAT32 = {
    64: ((ALWAYS, AttentionConfig(rows=16, bn=32, warps=4, stages=2, programs=264)),),
    128: ((ALWAYS, AttentionConfig(rows=16, bn=32, warps=4, stages=2, programs=132)),),
    256: ((ALWAYS, AttentionConfig(rows=16, bn=16, warps=4, stages=2, programs=132, bt=16)),),
}
"""For float32 rows."""

MOST_PARTS = 128


def attention_config(dim: int, packed: int, wide: bool) -> AttentionConfig:
    """The configuration for a head dim, packed rows and float32 (`wide`); that of the nearest head dim."""
    table = ATTENTION_FLOAT32 if wide else ATTENTION
    near = min(table, key=lambda known: abs(known - dim))
    config = next(config for most, config in table[near] if packed <= most)
    return replace(config, rows=min(config.rows, max(16, 1 << (packed - 1).bit_length())))
