"""Points, inputs, exact results and candidate configurations for the benchmark of the attention kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from specc.backends.triton.ops.attention import attend
from specc.backends.triton.ops.attention_configs import AttentionConfig, attention_config
from specc.bench.gpu_timing import RATE, Call
from specc.ir import ops

ARITHMETIC = 790e12
"""Operations per second that bfloat16 products reach on an H200."""
ROOM = 128
"""Rows of capacity behind the context."""
DEVICE = "cuda"
GRAPH_US = 800.0
"""Microseconds that a graph takes at least: starting one takes about 6."""


@dataclass(frozen=True, slots=True)
class Point:
    """A case: heads of queries and of keys, head dim, nodes, sequences, committed rows; `page` 0: contiguous."""

    heads: int
    shared: int
    dim: int
    nodes: int
    batch: int
    context: int
    page: int = 0
    chain: bool = False

    @property
    def label(self) -> dict[str, int | str]:
        geometry = f"{self.heads}/{self.shared}/{self.dim}"
        kind = "chain" if self.chain else "tree"
        return {"geometry": geometry, "kind": kind, "nodes": self.nodes, "batch": self.batch,
                "context": self.context, "page": self.page}  # fmt: skip

    @property
    def read_bytes(self) -> int:
        """Keys and values once."""
        return 4 * self.batch * (self.context + self.nodes) * self.shared * self.dim

    @property
    def operations(self) -> int:
        """Of both products."""
        return 4 * self.batch * self.nodes * self.heads * self.dim * (self.context + self.nodes)

    @property
    def bar_us(self) -> float | None:
        """What a time may be at most, where that was fixed beforehand (16 nodes for 32/8/128; 64 nodes for all)."""
        read, compute = self.read_bytes / RATE * 1e6, self.operations / ARITHMETIC * 1e6
        if self.nodes == 64:
            return 5 + 1.6 * max(read, compute)
        fixed = {(1, 1024): 8.0, (1, 32768): 40.0, (8, 32768): 1.05 * read, (32, 4096): 1.15 * read}
        return fixed.get((self.batch, self.context)) if self.nodes == 16 and self.dim == 128 else None


QWEN, SMOL = (32, 8, 128), (9, 3, 64)
POINTS = (
    *(Point(*QWEN, 16, batch, context) for batch, context in
      ((1, 1024), (1, 8192), (1, 32768), (1, 65536), (8, 4096), (8, 32768), (32, 1024), (32, 4096))),
    Point(*QWEN, 32, 1, 32768),
    *(Point(*QWEN, 64, batch, context) for batch, context in ((1, 1024), (1, 32768), (8, 4096), (8, 32768))),
    *(Point(*SMOL, 16, batch, context) for batch, context in ((1, 1024), (1, 32768), (8, 4096), (32, 4096))),
    *(Point(*SMOL, 64, batch, context) for batch, context in ((1, 1024), (8, 32768))),
    *(Point(*QWEN, 16, batch, 32768, page) for batch, page in ((1, 16), (1, 64), (8, 64))),
    Point(*QWEN, 64, 8, 32768, 64),
    *(Point(*QWEN, 1, batch, 4096, chain=True) for batch in (1, 32)),
    Point(*SMOL, 1, 1, 1024, chain=True),
    *(Point(*QWEN, nodes, batch, context, chain=True) for nodes, batch, context in
      ((4, 1, 32768), (4, 8, 4096), (16, 1, 32768))),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Inputs:
    """Operands of one call, new rows in the caches; see `specc.ir.ops.tree_attention_cached`."""

    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    length: Tensor
    mask: Tensor | None
    positions: Tensor
    table: Tensor | None

    def rows(self, b: int) -> tuple[Tensor, Tensor]:
        """K and V [capacity,Hkv,D] of a sequence."""
        if self.table is None:
            return self.k_cache[b], self.v_cache[b]
        pages = self.table[b].long()
        return self.k_cache[pages].flatten(0, 1), self.v_cache[pages].flatten(0, 1)


@cache
def tree_mask(batch: int, nodes: int) -> Tensor:
    """bool [B,N,N] of random trees that go deep more often than wide."""
    made = torch.Generator().manual_seed(0)
    rows = [[max(0, i - int(3 * torch.rand(1, generator=made) ** 2 * 2)) for i in range(nodes)] for _ in range(batch)]
    parent_row = torch.tensor(rows)
    return ops.ancestor_mask(parent_row, torch.ones_like(parent_row, dtype=torch.bool)).to(DEVICE)


def inputs(point: Point, seed: int) -> Inputs:
    """Random rows; what lies behind the new rows is not a number. Pages are in random order."""
    made = torch.Generator(DEVICE).manual_seed(seed)
    capacity = point.context + ROOM

    def rand(*shape: int) -> Tensor:
        return torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16, generator=made)

    shape, table = (point.batch, capacity), None
    if point.page:
        blocks = capacity // point.page
        shape = (point.batch * blocks, point.page)
        order = torch.randperm(shape[0], device=DEVICE, generator=made)
        table = order.to(torch.int32).view(point.batch, blocks)
    k, v = (rand(*shape, point.shared, point.dim) for _ in range(2))
    if table is None:
        for cache in (k, v):
            cache[:, point.context + point.nodes :] = float("nan")
    length = torch.full((point.batch,), point.context, device=DEVICE)
    positions = length.unsqueeze(1) + torch.arange(point.nodes, device=DEVICE)
    q = rand(point.batch, point.nodes, point.heads, point.dim)
    mask = None if point.chain else tree_mask(point.batch, point.nodes)
    return Inputs(q, k, v, length, mask, positions, table)


def ragged(one: Inputs) -> Inputs:
    """The same with other lengths: the first sequence empty, the last as it was."""
    share = torch.linspace(0, 1, len(one.length), device=DEVICE) if len(one.length) > 1 else one.length.new_zeros(1)
    return replace(one, length=(one.length * share).long())


def exact(one: Inputs) -> Tensor:
    """In float64, sequence by sequence [B,N,Hq,D]."""
    batch, nodes, heads, dim = one.q.shape
    results = []
    for b in range(batch):
        committed = int(one.length[b])
        k, v = (x[: committed + nodes].double() for x in one.rows(b))
        q = one.q[b].double().view(nodes, k.shape[1], heads // k.shape[1], dim)
        scores = torch.einsum("nhgd,rhd->hgnr", q, k) * dim**-0.5
        mask = torch.ones(nodes, nodes, device=DEVICE, dtype=torch.bool).tril() if one.mask is None else one.mask[b]
        scores[..., committed:] = scores[..., committed:].masked_fill(~mask, float("-inf"))
        results.append(torch.einsum("hgnr,rhd->nhgd", scores.softmax(-1), v).reshape(nodes, heads, dim))
    return torch.stack(results)


def call(one: Inputs, config: AttentionConfig | None, out: Tensor | None = None) -> Callable[[], Tensor]:
    """One call of the kernels with a configuration (None: the table's)."""
    nodes, dim = one.q.shape[1], one.q.shape[-1]
    return lambda: attend(
        one.q, one.k_cache, one.v_cache, one.length, nodes, dim**-0.5, 0,
        mask=one.mask, positions=one.positions, table=one.table, config=config, out=out,
    )  # fmt: skip


def repeated(calls: Sequence[Call], point: Point) -> list[Call]:
    """So many calls that starting the graph is a small part of it, but no longer than that: large inputs by turns."""
    floor = max(point.read_bytes / RATE, point.operations / ARITHMETIC) * 1e6
    return list(calls) * max(1, int(GRAPH_US / floor / len(calls)))


def candidates(point: Point) -> Iterator[AttentionConfig]:
    """Configurations to try, the table's first; those that the page size rules out are left out."""
    packed = point.nodes * point.heads // point.shared
    own = attention_config(point.dim, packed, point.batch * point.shared, False, point.context + ROOM, point.page)
    yield own
    seen = {own}
    for config in SEARCHED[point.dim, 64 if packed <= 64 else 256]:
        if point.page and point.page < config.bn:
            config = replace(config, tma=False)
        if config not in seen:
            seen.add(config)
            yield config


def _many(rows: int, *choices: tuple[int, int, int, int], **more: int | bool) -> tuple[AttentionConfig, ...]:
    return tuple(
        AttentionConfig(rows=rows, bn=bn, warps=warps, stages=stages, programs=programs, **more)  # type: ignore[arg-type]
        for bn, warps, stages, programs in choices
    )


SEARCHED = {
    (128, 64): (
        *_many(64, (64, 4, 4, 132), (128, 4, 3, 132), (64, 4, 3, 264), (64, 4, 3, 132)),
        *_many(64, (64, 4, 4, 132), early=1), *_many(64, (64, 4, 4, 132), (64, 4, 3, 264), early=2),
        *_many(64, (64, 4, 4, 132), early=4), *_many(64, (64, 4, 4, 132), early=2, least=2),
    ),
    (128, 256): (
        *_many(64, (64, 4, 3, 264)), *_many(64, (64, 4, 3, 264), bt=64, ahead=1), *_many(64, (64, 4, 3, 264), early=2),
        *_many(128, (64, 8, 4, 132)), *_many(128, (64, 8, 4, 132), early=2), *_many(256, (64, 8, 3, 132), bt=16),
    ),
    (64, 64): (
        *_many(64, (64, 4, 4, 264), (64, 4, 4, 132), (128, 4, 4, 132)), *_many(64, (64, 4, 4, 132), bt=16),
        *_many(64, (128, 4, 4, 132), (64, 4, 4, 132), early=2), *_many(64, (128, 4, 4, 132), early=1, bt=16),
    ),
    (64, 256): (
        *_many(64, (64, 4, 3, 396), bt=64), *_many(64, (64, 4, 3, 396)),
        *_many(64, (128, 4, 2, 264), bt=64, ahead=1), *_many(64, (64, 4, 3, 396), bt=64, early=2),
    ),
}  # fmt: skip
"""By (head dim, packed rows at most)."""
