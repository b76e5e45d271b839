"""Configurations of the attention kernels by geometry: tiles, warps, stages, and how many programs fill the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """`rows` of a tile, `bn` columns a step, `bt` in the tail with `ahead` stages; `programs` at once on the device;
    `least` steps for a part of the columns; `tma`: bulk copies; `early` steps asked for while the kernel in front runs
    (a power of two or 0); `step`: rotary embeddings and new rows of the caches in the same launch. `apart`: by a kernel
    that has the new columns in a part of their own, of which only `rows`, `bn` and `warps` say something; without
    `step`, windows and more than 64 new columns still take the other one. `staged`: of the stages half are for what
    is looked up in a block table (tiles of several pages).
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
    apart: bool = False
    staged: bool = False


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


ByCapacity = Mapping[int, Sequence[tuple[int, int, int, AttentionConfig]]]
ONE_TILE = 64
APART: ByCapacity = {
    64: ((64, 4, 4096, AttentionConfig(16, 128, warps=4, stages=1, programs=0, step=True, apart=True)),)
}
"""For 16-bit rows by head dim: (packed rows, KV heads times sequences, capacity) at most, and the configuration.

On an H200, SmolLM2's whole steps at 512 committed rows, microseconds: 521 to 477 for one token (its own column as a
scalar product; predicted 485), 546 to 515 for 16 nodes (505). An attention alone in a chain of them 3.28 to 1.96, of
which 0.73 are the launch. Tiles of 256: 493 for one token. Going through the code once before the wait, without
operands, costs 1.1 a launch (512). Llama-3.2-1B at 4096 rows, tiles of 256: 977 to 967, but 16 nodes 1007 to 1171.
"""

SMALL: ByCapacity = {
    64: ((256, 4, 4096, AttentionConfig(64, 128, warps=4, stages=2, programs=264, bt=64, ahead=1, apart=True)),),
    128: ((256, 8, 2048, AttentionConfig(64, 64, warps=4, stages=3, programs=132)),),
}
"""As `APART`, for more rows than one tile has. On an H200, 64 nodes at 9/3/64 over 1024 rows: 6.98 to 5.91, and to 4.94
without a loop; 8 sequences of 32768 rows would take 157 instead of 109 with such tiles.
64 nodes at 32/8/128 over 1024 rows: 13.1 to 12.1, with the merge of several rows."""


def first_of(table: ByCapacity, dim: int, packed: int, groups: int, capacity: int) -> AttentionConfig | None:
    """The first configuration of such a table that takes so many rows, KV heads and so long caches."""
    for rows, most, longest, config in table.get(dim, ()):
        if packed <= rows and groups <= most and capacity <= longest:
            return config
    return None


def attention_config(dim: int, packed: int, groups: int, wide: bool, capacity: int, page: int = 0) -> AttentionConfig:
    """The configuration for a head dim, packed rows, `groups` KV heads of all sequences, float32 (`wide`), and caches
    of so many rows, in pages of so many (0: contiguous)."""
    small = None if wide or packed <= ONE_TILE else first_of(SMALL, dim, packed, groups, capacity)
    if small is not None:
        return small
    table = ATTENTION_FLOAT32 if wide else ATTENTION
    near = min(table, key=lambda known: abs(known - dim))
    found = next(config for rows, most, config in table[near] if packed <= rows and groups <= most)
    return in_pages(found, packed, page, capacity)


SHORT = AttentionConfig(rows=64, bn=128, warps=4, stages=4, programs=132, early=1, step=True)
TILES_OF_64 = replace(SHORT, bn=64, early=2)
STEP: ByCapacity = {
    64: (
        (64, 8, ALWAYS, SHORT),
        (64, 32, 2048, TILES_OF_64),
        (64, 32, 8192, replace(SHORT, bn=64, programs=264, least=2)),
        (64, 132, ALWAYS, SHORT),
    ),
    128: ((64, 132, ALWAYS, replace(SHORT, bn=64, least=2, bt=16)),),
}
"""As `APART`, for steps of few tokens in one launch; other geometries rotate and append in a launch of its own.

On an H200, microseconds a layer in a graph of 30 with 512 committed rows, 9 query heads of 64 (3 of keys), one row:
with the projections beside it 10.68 for a launch in front, 9.84 without (one token), 11.26 and 10.52 (16 nodes).
Parts are joined by a second launch: by the last program of a tile it takes 30 to 50 longer for 16 nodes, and not
less for one.

Whole steps of 8 rows at 9/3/64 in caches of 2,048 rows, plain and 16 nodes: at 512 committed rows 457 and 765 by tiles
of 128 columns, 460 and 762 by tiles of 64, 471 and 804 in twice as many parts; at 1,900 629 and 951, 600 and 904, 563
and 885. Attention alone at 4,096 rows of 8,192: 12.5 and 14.2, 13.3 and 15.5, 12.2 and 14.0; 32 rows at 1,024: 12.3
and 13.3, 13.9 and 15.0.
"""


def step_config(dim: int, packed: int, groups: int, wide: bool, capacity: int, page: int = 0) -> AttentionConfig:
    """As `attention_config`, for `rope_attention_` over caches of so many rows."""
    apart = None if wide else first_of(APART, dim, packed, groups, capacity)
    if apart is not None:
        return apart
    step = None if wide else first_of(STEP, dim, packed, groups, capacity)
    if step is not None:
        return in_pages(step, packed, page, capacity)
    return attention_config(dim, packed, groups, wide, capacity, page)


LONG = 8192
"""Rows that a sequence can have from which on look-ups have stages of their own."""
SMALLEST_BOX = 64
"""Rows of a page from which on a tile is one page."""


def in_pages(config: AttentionConfig, packed: int, page: int, capacity: int) -> AttentionConfig:
    """The configuration for packed rows and caches of `capacity` rows in pages of so many (0: no pages).

    Bulk copies must not go beyond a page, so that tiles of a smaller one come without. On an H200, 8 rows of SmolLM2 at
    512 and 1,900 committed rows, plain and 16 nodes, us: pages of 64 491, 801, 690, 1014, tiles of one page 472, 781,
    608, 933; pages of 16 with 4 stages 491, 803, 695, 1020, with 3 486, 790, 670, 990 (with a look-up for every row),
    with one for every page 477, 781 at 512. 16 nodes at 32/8/128 over 32,768 rows: 45.9 us with a look-up for every
    row, 43.0 with one for every page, 39.9 where look-ups have stages of their own (contiguous 38.7).
    """
    if config.apart or packed > ONE_TILE or not 0 < page < config.bn:
        return config
    if page < SMALLEST_BOX and capacity > LONG:
        return replace(config, stages=2 * config.stages, staged=True)
    if not config.step:
        return config
    return replace(config, bn=page) if page >= SMALLEST_BOX else replace(config, stages=min(config.stages, 3))
