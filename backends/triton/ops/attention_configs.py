"""Configurations of the attention kernels by geometry: tiles, warps, stages, and how many programs fill the device."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """`bn` columns a step; `programs` that the device holds at once; `least` steps for a part of the columns."""

    bn: int
    warps: int
    stages: int
    programs: int
    least: int = 1


ATTENTION = {
    (64, 16): AttentionConfig(bn=64, warps=4, stages=4, programs=396),
    (64, 64): AttentionConfig(bn=64, warps=4, stages=4, programs=264),
    (64, 128): AttentionConfig(bn=128, warps=8, stages=3, programs=132),
    (128, 16): AttentionConfig(bn=64, warps=4, stages=3, programs=264),
    (128, 64): AttentionConfig(bn=64, warps=4, stages=3, programs=264),
    (128, 128): AttentionConfig(bn=64, warps=8, stages=3, programs=132),
    (256, 16): AttentionConfig(bn=32, warps=4, stages=3, programs=264),
    (256, 64): AttentionConfig(bn=32, warps=4, stages=3, programs=132),
    (256, 128): AttentionConfig(bn=64, warps=8, stages=2, programs=132),
}
"""For 16-bit rows by (head dim, rows of a tile)."""

ATTENTION_FLOAT32 = {
    (64, 16): AttentionConfig(bn=32, warps=4, stages=2, programs=264),
    (128, 16): AttentionConfig(bn=32, warps=4, stages=2, programs=132),
    (256, 16): AttentionConfig(bn=16, warps=4, stages=2, programs=132),
}
"""For float32 rows: tiles have 16 rows at most."""

MOST_PARTS = 128


def attention_config(dim: int, rows: int, wide: bool) -> AttentionConfig:
    """The configuration for a head dim (padded) and the rows of a tile; that of the nearest geometry."""
    table = ATTENTION_FLOAT32 if wide else ATTENTION
    return table[min(table, key=lambda known: (abs(known[0] - dim), abs(known[1] - rows)))]


def attention_rows(packed: int, wide: bool) -> int:
    """Rows of a tile for so many packed rows: a power of two, so that few tiles read the same columns."""
    most = 16 if wide else 128
    return min(most, max(16, 1 << (packed - 1).bit_length()))
