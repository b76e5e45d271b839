"""A layer's attention in one launch over caches in pages: what the table names, in the interpreter."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
import triton
import triton.language as tl

from specc.backends.triton.kernels.pages import pages_at, row_of
from specc.backends.triton.ops import attention_step
from specc.backends.triton.ops.attention import stages_of
from specc.backends.triton.ops.attention_configs import (
    SHORT,
    TILES_OF_64,
    AttentionConfig,
    attention_config,
    in_pages,
    step_config,
)
from specc.backends.triton.ops.attention_paged import rope_attention_paged_, rope_attention_paged_linear_
from specc.ir import ops
from tests.backends.triton.test_attention_apart import APART, poisoned
from tests.backends.triton.test_attention_projection import ONCE
from tests.backends.triton.test_attention_step import BOUNDS, Case

Tensor = torch.Tensor
STEP = AttentionConfig(rows=16, bn=32, warps=4, stages=2, programs=8, bt=16, tma=True, step=True)
KINDS: dict[str, AttentionConfig] = {
    "apart": replace(APART, bn=32),
    "one launch": STEP,
    "one launch, tiles of a page or more": replace(STEP, bn=64),
    "one launch, look-ups in stages of their own": replace(STEP, bn=64, stages=4, staged=True),
    "a launch in front": replace(STEP, step=False),
    "a launch in front, new columns apart": replace(APART, bn=32, step=False),
}
"""The ways in which a step's attention is launched."""


@dataclass(frozen=True, slots=True, repr=False)
class Paged:
    """A case whose caches are what `table` names in pools, the rest of which belongs to others."""

    case: Case
    k_pool: Tensor
    v_pool: Tensor
    table: Tensor

    def operands(self) -> tuple[list[Any], list[Any]]:
        """Of the op, (in front of, behind) the pools."""
        case = self.case
        return [case.q, case.k, case.v, case.cos, case.sin], [
            self.table, case.length, case.count, case.mask, case.scale
        ]  # fmt: skip

    def run(self) -> tuple[Tensor, Tensor, Tensor]:
        """(out, pools) of the op."""
        pools, (front, behind) = [self.k_pool.clone(), self.v_pool.clone()], self.operands()
        with patch.object(attention_step, "config_of", lambda *_: self.case.config):
            return rope_attention_paged_(*front, pools[0], pools[1], *behind), pools[0], pools[1]

    def named(self, pool: Tensor) -> Tensor:
        """The caches [B,C,…] that the table names: a copy."""
        return pool[self.table.long()].flatten(1, 2)

    def new_rows(self) -> list[tuple[int, int]]:
        """(page, place in it) of all rows that the step keeps."""
        case, page = self.case, self.k_pool.shape[1]
        tokens = [case.q.shape[1]] * len(self.table) if case.count is None else case.count.tolist()
        places = [(b, int(case.length[b]) + j) for b, kept in enumerate(tokens) for j in range(kept)]
        return [(int(self.table[b, at // page]), at % page) for b, at in places if at < self.table.shape[1] * page]


def paged(page: int, batch: int, tokens: int, config: AttentionConfig, *, tree: bool = False,
          kind: torch.dtype = torch.float32, lengths: list[int] | None = None, count: list[int] | None = None,
          seed: int = 0) -> Paged:  # fmt: skip
    """Sequences whose pages interleave in pools with some of others; lengths end in the table's last page."""
    made, heads, shared, dim = torch.Generator().manual_seed(seed), 4, 2, 16

    def rand(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=made).to(kind)

    blocks = -(-150 // page)
    table = (torch.randperm(batch * blocks + 3, generator=made)[: batch * blocks] + 1).view(batch, blocks)
    pools = [rand(batch * blocks + 4, page, shared, dim) for _ in range(2)]
    ends = [blocks * page - tokens, 0, page - 1][:batch]
    projected = rand(batch, tokens, (heads + 2 * shared) * dim).split([heads * dim, shared * dim, shared * dim], -1)
    angle = torch.rand(batch, tokens, dim // 2, generator=made) * 6
    parents = torch.tensor([[int(torch.randint(0, i + 1, (1,), generator=made)) for i in range(tokens)]] * batch)
    mask = ops.ancestor_mask(parents, torch.ones(batch, tokens, dtype=torch.bool)) if tree else None
    q, k, v = (x.unflatten(-1, (-1, dim)) for x in projected)
    caches = [pool[table].flatten(1, 2) for pool in pools]
    case = Case(
        q, k, v, angle.cos().to(kind), angle.sin().to(kind), caches[0], caches[1], torch.tensor(lengths or ends),
        None if count is None else torch.tensor(count), mask, config,
    )  # fmt: skip
    return Paged(case, pools[0], pools[1], table.to(torch.int32))


def same_as_contiguous(made: Paged) -> None:
    """Bits of the results and of the rows that the table names; all other rows are as they were."""
    out, *pools = made.run()
    expected, *caches = made.case.run(made.case.config)
    assert torch.equal(out, expected)
    for pool, cache, before in zip(pools, caches, (made.k_pool, made.v_pool), strict=True):
        assert torch.equal(made.named(pool), cache)
        changed = {(int(page), int(place)) for page, place in (pool != before).flatten(2).any(-1).nonzero()}
        assert changed == set(made.new_rows())


@pytest.mark.parametrize("launched", list(KINDS))
@pytest.mark.parametrize("page", [16, 64, 128])
@pytest.mark.parametrize(("batch", "tokens"), [(1, 1), (1, 16), (3, 1), (3, 16)])
def test_it_has_the_bits_of_the_caches_that_the_table_names(launched: str, page: int, batch: int, tokens: int) -> None:
    """Chains and trees, to the last row of the table; of ragged batches some rows are kept, or none."""
    for tree, count in ((False, None), (True, [tokens, 0, tokens // 2][:batch])):
        same_as_contiguous(paged(page, batch, tokens, KINDS[launched], tree=tree, count=count, seed=page + tokens))


@pytest.mark.parametrize("launched", ["apart", "one launch"])
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_it_is_what_the_reference_says(launched: str, kind: torch.dtype) -> None:
    """In float64; pages that nobody or another one holds are poisoned, and so are rows behind the committed ones."""
    made = paged(16, 3, 5, KINDS[launched], tree=True, kind=kind, lengths=[140, 0, 33])
    front, behind = made.operands()
    wide = [x.double() for x in (*front, made.k_pool, made.v_pool)]
    expected = ops.rope_attention_paged_(*wide, *behind, False)
    held = torch.zeros(made.k_pool.shape[:2], dtype=torch.bool)
    for b, end in enumerate(made.case.length.tolist()):
        row = torch.arange(end)
        held[made.table[b].long()[row // 16], row % 16] = True
    for pool in (made.k_pool, made.v_pool):
        pool[~held] = float("nan")
    with patch.object(torch, "empty", poisoned):
        found = made.run()[0].double()
    assert float((found - expected).norm() / expected.norm()) <= BOUNDS[kind]


@pytest.mark.parametrize("launched", list(KINDS))
def test_rows_that_do_not_fit_go_nowhere(launched: str) -> None:
    """Behind a full table's end, where padded rows may be: nobody's page is touched, and none of its own."""
    same_as_contiguous(paged(16, 2, 5, KINDS[launched], lengths=[158, 160], count=[2, 5]))


@pytest.mark.parametrize("page", [16, 64])
@pytest.mark.parametrize("joined", [0, 1])
def test_the_projection_behind_it_has_the_bits_of_contiguous_caches(page: int, joined: int) -> None:
    """Which joins the parts itself, or not."""
    made = paged(page, 1, 1, KINDS["apart"], lengths=[77])
    front, behind = made.operands()
    weight = torch.randn(24, 64, generator=torch.Generator().manual_seed(1))
    results = []
    for op, caches, rest in (
        (rope_attention_paged_linear_, (made.k_pool, made.v_pool), behind),
        (attention_step.rope_attention_linear_, made.case.caches(), behind[1:]),
    ):
        with (
            patch.object(attention_step, "config_of", lambda *_: made.case.config),
            patch.object(attention_step, "linear_config", lambda *_: ONCE),
            patch.object(attention_step, "JOINED_ROWS", joined),
        ):
            results.append(op(*front, *(x.clone() for x in caches), *rest, True, weight, None, None))
    assert torch.equal(*results)


@triton.jit
def note_rows(table: Any, rows: Any, C: Any, N: tl.constexpr, PAGE: tl.constexpr) -> None:
    """rows int64 [N]: where the rows [0, N) of a sequence lie."""
    row = tl.arange(0, N)
    tl.store(rows + row, row_of(table, row, C, PAGE))


@pytest.mark.parametrize("page", [16, 64, 128])
def test_no_entry_behind_a_tables_end_is_read(page: int) -> None:
    """There lies what is no page: rows of all tiles are looked up, whatever the length."""
    guarded = torch.tensor([3, 1, *([1 << 30] * (256 // page))], dtype=torch.int32)
    rows = torch.empty(256, dtype=torch.int64)
    note_rows[(1,)](guarded, rows, 2 * page, N=256, PAGE=page)
    row = torch.arange(256)
    assert torch.equal(rows, torch.where(row < page, 3, 1) * page + row % page)


@triton.jit
def note_tile(table: Any, pool: Any, tile: Any, first: Any, C: Any, BN: tl.constexpr, D: tl.constexpr,
              PAGE: tl.constexpr, STAGED: tl.constexpr) -> None:  # fmt: skip
    """tile [BN,D]: the rows of columns first + [0, BN) of a pool [P,PAGE,D]."""
    row = tl.arange(0, BN)[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(tile + row, tl.load(pages_at(pool, table, first, C, D, D, BN, PAGE, STAGED)))


def tile_of(pages: list[int], first: int, rows: int, staged: bool = False) -> Tensor:
    """Row numbers of the pool that a tile of 64 rows has, where `pages` of 16 hold a sequence of so many rows; what
    follows in memory names page 6."""
    table = torch.tensor([*pages, *([6] * 64)], dtype=torch.int32)
    pool = torch.arange(7 * 16, dtype=torch.float32).repeat_interleave(16).view(7, 16, 16)
    tile = torch.full((64, 16), -1.0)
    note_tile[(1,)](table, pool, tile, first, rows, BN=64, D=16, PAGE=16, STAGED=staged)
    assert torch.equal(tile, tile[:, :1].expand(-1, 16))
    return tile[:, 0].long()


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("first", [0, 64])
def test_a_tile_of_several_pages_has_the_rows_of_its_columns(first: int, staged: bool) -> None:
    """In order, whatever the order of its pages is."""
    pages = [3, 1, 5, 2, 0, 4, 1, 3]
    expected = torch.tensor([pages[column // 16] * 16 + column % 16 for column in range(first, first + 64)])
    assert torch.equal(tile_of(pages, first, 128, staged), expected)


@pytest.mark.parametrize(("pages", "first"), [([3, 1, 5, 2, 0], 64), ([3, 1, 5, 2], 64), ([3, 1, 5, 2], 640), ([4], 0),
                                              ([4, 2], 0), ([4, 2], 64)])  # fmt: skip
def test_no_page_behind_a_tables_end_is_looked_up_for_a_tile(pages: list[int], first: int) -> None:
    """A loop looks ahead to tiles that are not there, or of which the sequence has a part."""
    assert set((tile_of(pages, first, 16 * len(pages)) // 16).tolist()) <= set(pages)


def test_tiles_of_a_step_are_pages_that_are_large_enough() -> None:
    """Whose rows bulk copies take; contiguous caches, other kernels and larger pages have their own configurations."""
    assert in_pages(SHORT, 48, 64, 2048) == in_pages(SHORT, 48, 64, 1 << 20) == replace(SHORT, bn=64)
    assert in_pages(SHORT, 48, 16, 2048) == replace(SHORT, stages=3)
    assert in_pages(SHORT, 48, 0, 2048) == in_pages(SHORT, 48, 128, 2048) == in_pages(SHORT, 48, 0, 1 << 20) == SHORT
    for config in (KINDS["apart"], replace(SHORT, step=False)):
        assert in_pages(config, 48, 16, 2048) == config
    for dim in (64, 128):
        for page in (16, 32, 64, 128):
            config = step_config(dim, 48, 24, False, 2048, page)
            assert config.step
            assert config.bn % config.bt == 0


def test_look_ups_have_stages_where_sequences_can_be_long() -> None:
    """Each tile that is asked for ahead takes two: half as many where rows are read without them."""
    for config in (SHORT, replace(SHORT, bn=64), replace(SHORT, step=False)):
        for page in (16, 32):
            long = in_pages(config, 48, page, 1 << 14)
            assert long == replace(config, stages=8, staged=True)
            assert (stages_of(long, True), stages_of(long, False)) == (8, 4)
    assert step_config(128, 64, 8, False, 1 << 15, 16).staged
    assert attention_config(128, 64, 8, False, 1 << 15, 16).staged
    assert not attention_config(128, 65, 8, False, 1 << 15, 16).staged
    assert not in_pages(KINDS["apart"], 48, 16, 1 << 14).staged
    assert not in_pages(SHORT, 65, 16, 1 << 14).staged
    assert stages_of(SHORT, True) == stages_of(SHORT, False) == 4


def test_more_parts_where_sequences_can_be_long() -> None:
    """One row and many rows have tiles of 128 columns; in pages of 64 a tile is one."""
    assert step_config(64, 48, 24, False, 2048) == step_config(64, 3, 24, False, 512) == TILES_OF_64
    long = step_config(64, 48, 24, False, 2049)
    assert (long.bn, long.programs, long.least) == (64, 264, 2)
    assert step_config(64, 48, 24, False, 8193) == SHORT
    for groups in (8, 33, 132):
        assert step_config(64, 48, groups, False, 2048) == step_config(64, 48, groups, False, 8192) == SHORT
    assert step_config(64, 48, 24, False, 2048, 64) == TILES_OF_64
    assert step_config(64, 48, 24, False, 2048, 16) == replace(TILES_OF_64, stages=3)
