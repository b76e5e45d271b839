"""Caches in pages: Triton's host functions against the ops' reference forms, and the Decoder's text and pages."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.backends.triton.kernels.attention import cache_rows
from specc.backends.triton.ops import pages as own
from specc.backends.triton.ops.attention import tree_attention_cached
from specc.backends.triton.ops.attention_paged import tree_attention_paged
from specc.ir import ops
from tests.backends.triton.modules import Cell, modules
from tests.paged import Pages, check_moving, check_taking, pages, well_formed

FUNCTIONS = {"append_pages_": own.append_pages_, "commit_pages_": own.commit_pages_}
TYPES = st.sampled_from([torch.float32, torch.bfloat16])


@settings(max_examples=25, deadline=None)
@given(case=pages(), data=st.data())
def test_pages_are_taken_as_far_as_they_are_lacking(case: Pages, data: st.DataObject) -> None:
    check_taking(case, own.take_pages_, data)


def test_pages_are_found_beyond_those_that_one_look_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the reference takes them, with looks of a few pages and a few sequences, some of them owned already."""
    monkeypatch.setattr(own, "CHUNK", 4)
    monkeypatch.setattr(own, "SEQUENCES", 2)
    generator = torch.Generator().manual_seed(1)
    owner = (torch.rand(29, generator=generator) < 0.3).to(torch.int32) * 9
    owner[0] = 0
    tables = [torch.zeros(5, 4, dtype=torch.int32) for _ in range(2)]
    owners = [owner.clone(), owner.clone()]
    for length in (torch.tensor([3, 0, 2, 0, 1]), torch.tensor([8, 0, 7, 5, 1])):
        for take, table, held in zip((own.take_pages_, ops.take_pages_), tables, owners, strict=True):
            take(table, held, length, None, 1, 3)
        assert torch.equal(*tables)
        assert torch.equal(*owners)


def test_a_pool_without_a_free_page_leaves_nobodys() -> None:
    table, owner = torch.zeros(2, 2, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    own.take_pages_(table, owner, torch.tensor([4, 4]), None, 0, 2)
    well_formed(table, owner)
    assert table.tolist() == [[1, 2], [3, 0]]


@settings(max_examples=25, deadline=None)
@given(case=pages(), data=st.data(), dtype=TYPES)
def test_rows_move_as_in_the_caches_that_the_table_names(case: Pages, data: st.DataObject, dtype: torch.dtype) -> None:
    check_moving(case, FUNCTIONS, data, dtype)


@settings(max_examples=10, deadline=None)
@given(case=pages(), data=st.data(), fast=st.booleans())
def test_a_path_is_compacted_in_every_layer(case: Pages, data: st.DataObject, fast: bool) -> None:
    count = torch.tensor([data.draw(st.integers(0, case.nodes)) for _ in case.table])
    path = torch.zeros(len(case.table), case.nodes, dtype=torch.int64)
    for row, kept in enumerate(count.tolist()):
        path[row, :kept] = torch.tensor(sorted(data.draw(st.permutations(range(case.nodes)))[:kept]))
    pools = [torch.stack([case.pool(3, 5, seed=seed + layer) for layer in range(3)]) for seed in (0, 9)]
    expected = [pool.clone() for pool in pools]
    ops.commit_pages_layers_(expected, case.table, path, case.length, count, fast)
    own.commit_pages_layers_(pools, case.table, path, case.length, count, fast)
    for made, wanted in zip(pools, expected, strict=True):
        assert torch.equal(made, wanted)


@settings(max_examples=6, deadline=None)
@given(case=pages(sizes=(16,)), seed=st.integers(0, 99))
def test_attention_is_that_of_the_caches_that_the_table_names(case: Pages, seed: int) -> None:
    """Bit for bit, and whatever stands in pages of others and in free ones."""
    keys, values = (case.pool(1, 16, seed=seed + n, dtype=torch.float32) for n in range(2))
    batch, nodes = len(case.table), case.nodes
    q = torch.randn(batch, nodes, 2, 16, generator=torch.Generator().manual_seed(seed))
    mask = torch.ones(nodes, nodes, dtype=torch.bool).tril().expand(batch, -1, -1).contiguous()
    rest = (case.length, mask, case.length[:, None] + torch.arange(nodes), 0.25, 0)
    expected = tree_attention_cached(q, case.caches(keys), case.caches(values), *rest)
    free = case.owner == 0
    for pool in (keys, values):
        pool[free] = 1e30
    assert torch.equal(tree_attention_paged(q, keys, values, case.table, *rest), expected)


@triton.jit
def note_rows(pool: Any, table: Any, rows: Any, C: Any, blocks: Any, BN: tl.constexpr, PAGE: tl.constexpr) -> None:
    """rows int64 [B,steps,BN]: which of the pool's rows (of one byte) a step of BN columns would read."""
    b, step = tl.program_id(0), tl.program_id(1)
    found = cache_rows(pool, table + b * blocks, step * BN, C, 1, BN, PAGE).to(tl.int64) - pool.to(tl.int64)
    tl.store(rows + (b * tl.num_programs(1) + step) * BN + tl.arange(0, BN), found)


@pytest.mark.parametrize(("page", "step"), [(16, 16), (16, 32), (16, 64), (64, 64), (128, 64)])
def test_steps_behind_the_last_look_up_pages_in_their_own_line_of_the_table(page: int, step: int) -> None:
    """A pipelined loop looks up the pages of steps that it won't make: nothing masks that, so that the index has to
    stay inside. Behind the table lies what is no page."""
    batch, blocks, ahead = 3, 3, 4
    guarded = torch.full((batch * blocks + ahead * max(step // page, 1),), 1 << 30, dtype=torch.int32)
    table = guarded[: batch * blocks].view(batch, blocks)
    table[:] = torch.randperm(batch * blocks, generator=torch.Generator().manual_seed(page)).view(batch, blocks) + 1
    capacity = page * blocks
    steps = -(-capacity // step) + ahead
    rows = torch.empty(batch, steps * step, dtype=torch.int64)
    note_rows[(batch, steps)](torch.empty(1, dtype=torch.uint8), table, rows, capacity, blocks, BN=step, PAGE=page)
    column = torch.arange(steps * step)
    entries = table.long()[:, torch.minimum(column // page, torch.tensor(blocks - 1))]
    assert torch.equal(rows, entries * page + column % page)


def test_the_decoder_writes_the_contiguous_text_to_pages_of_its_own() -> None:
    """Speculative and plain; to the capacity; a second text with the same decoder."""
    cell = Cell("pangu", "lookup tree", "path", page=16)
    paged, plain = modules(cell), modules(Cell("pangu", "lookup tree", "path"))
    prompts = [[3, 4, 6, 3, 4, 7, 3, 4], [1]]
    expected = plain.reference.module.Decoder(plain.reference.weights).generate(prompts, 1000).tokens
    assert max(len(text) for text in expected) > 16
    with paged.triton.module.Decoder(paged.triton.weights, "cpu") as decoder:
        for speculative in (True, False):
            assert decoder.generate(prompts, 1000, speculative=speculative).tokens == expected
            state = decoder.state
            well_formed(state.block_table, state.page_owner)
            held = (state.block_table > 0).sum(1) * 16
            assert bool((held >= state.length).all())


def test_the_rows_of_a_padded_batch_share_its_pools() -> None:
    """What the Decoder shows of a batch that is padded for a captured step: rows are cut off, pools are whole."""
    module = modules(Cell("pangu", "lookup tree", "path", page=16)).triton.module
    state = module.init_state(4, "cpu")
    shown = module.first_rows(state, 3)
    assert shown.length.shape == (3,)
    assert shown.block_table.shape == (3, state.block_table.shape[1])
    assert shown.page_owner is state.page_owner
    assert shown.k_cache is state.k_cache
    assert module.check_state(shown) == 3
