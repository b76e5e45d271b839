"""Rows that Ascend modules move: caches, joined rows, convolutions along paths, tables."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specc.backends.ascend.ops import cache, conv, create
from specc.backends.ascend.ops.rows import take_entries, take_rows
from tests.backends.ascend.op_support import agree, assert_close, assert_convertible, strictly
from tests.unit.delta_cases import tree_of

SEEDS = st.integers(0, 1 << 20)
SHAPES = st.sampled_from([(), (3,), (2, 4)])


def rows_of(seed: int, *shape: int, whole: bool = False) -> torch.Tensor:
    """Random rows, int64 where `whole`."""
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return (made * 100).to(torch.int64) if whole else made


@st.composite
def written(draw: st.DrawFn) -> tuple[torch.Tensor, ...]:
    """A cache [B,C,…], M rows, and for each sequence a start and a count that fit."""
    batch, capacity, more = draw(st.integers(1, 3)), draw(st.integers(1, 9)), draw(st.integers(1, 5))
    rest, whole = draw(SHAPES), draw(st.booleans())
    counts = [draw(st.integers(0, min(more, capacity))) for _ in range(batch)]
    starts = [draw(st.integers(0, capacity - kept)) for kept in counts]
    seed = draw(SEEDS)
    made = rows_of(seed, batch, capacity, *rest, whole=whole), rows_of(seed + 1, batch, more, *rest, whole=whole)
    return *made, torch.tensor(starts), torch.tensor(counts)


@given(written())
def test_appended_rows_agree(operands: tuple[torch.Tensor, ...]) -> None:
    agree("append_rows", operands)


@given(written(), st.data())
def test_committed_rows_agree(operands: tuple[torch.Tensor, ...], data: st.DataObject) -> None:
    kept, _, start, count = operands
    nodes, width = data.draw(st.integers(1, 6)), max(1, int(count.max()))
    candidate = rows_of(data.draw(SEEDS), kept.shape[0], nodes, *kept.shape[2:]).to(kept.dtype)
    path = torch.randint(nodes, (kept.shape[0], width), generator=torch.Generator().manual_seed(nodes))
    agree("commit_path", (kept, candidate, path, start, count, data.draw(st.booleans())))
    rows = data.draw(st.sampled_from([None, candidate.flip(1)]))
    agree("joined_rows", (candidate, rows, path, count))
    agree("joined_rows", (candidate, rows, path[:1], count))


@pytest.mark.parametrize("start", [-5, 7, 1 << 40])
def test_rows_that_do_not_fit_form_no_address(start: int) -> None:
    """Of sequences that are written nowhere, and of paths behind their count."""
    kept, rows = rows_of(0, 2, 6, 3), rows_of(1, 2, 4, 3)
    starts, counts = torch.tensor([start, 1]), torch.tensor([0, 2])
    made = strictly(cache.append_rows, kept, rows, starts, counts)
    assert torch.equal(made[0], kept[0])
    assert torch.equal(made[1, 1:3], rows[1, :2])
    path = torch.tensor([[start, -1], [2, 0]])
    made = strictly(cache.commit_path, kept, rows, path, starts, counts, False)
    assert torch.equal(made[0], kept[0])
    assert torch.equal(made[1, 1:3], rows[1, [2, 0]])
    strictly(cache.joined_rows, rows, kept, path, counts)
    strictly(cache.joined_rows, rows, None, path, counts)
    window = rows_of(2, 2, 3, 3)
    assert torch.equal(strictly(conv.conv_commit, window, rows, path, counts)[0], window[0])


@st.composite
def convolved(draw: st.DrawFn) -> tuple[torch.Tensor, ...]:
    """window, x, weight, bias (or None), parent_row, and how many rows count."""
    batch, nodes, channels = draw(st.integers(1, 3)), draw(st.integers(1, 9)), draw(st.integers(1, 5))
    taps, seed = draw(st.integers(2, 4)), draw(SEEDS)
    parents = [[draw(st.integers(0, i)) for i in range(nodes)] for _ in range(batch)]
    real = [draw(st.integers(0, nodes)) for _ in range(batch)]
    weight = rows_of(seed + 2, channels, 1, taps)
    bias = draw(st.sampled_from([None, rows_of(seed + 3, channels)]))
    tree = tree_of(parents, real)[0]
    x = rows_of(seed + 1, batch, nodes, channels)
    return rows_of(seed, batch, taps - 1, channels), x, weight, bias, tree, torch.tensor(real)


@given(convolved(), st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
def test_convolutions_agree(case: tuple[torch.Tensor, ...], dtype: torch.dtype) -> None:
    window, x, weight = (value.to(dtype) for value in case[:3])
    bias = None if case[3] is None else case[3].to(dtype)
    bound = 1e-2 if dtype == torch.bfloat16 else 1e-5
    agree("tree_conv", (window, x, weight, bias, case[4]), bound)
    agree("short_conv", (window, x, weight, bias, None), bound)
    live = torch.arange(x.shape[1]) < case[5].unsqueeze(1)
    assert torch.equal(agree("short_conv", (window, x, weight, bias, live), bound)[1][case[5] == 0],
                       window[case[5] == 0])  # fmt: skip


@given(convolved(), st.data())
def test_committed_windows_agree(case: tuple[torch.Tensor, ...], data: st.DataObject) -> None:
    window, rows = case[0], case[1]
    batch, nodes = rows.shape[:2]
    width = data.draw(st.integers(1, 6))
    path = torch.randint(nodes, (batch, width), generator=torch.Generator().manual_seed(data.draw(SEEDS)))
    count = torch.tensor([data.draw(st.integers(0, width)) for _ in range(batch)])
    made = agree("conv_commit", (window, rows, path, count))
    assert torch.equal(made[count == 0], window[count == 0])


def test_a_parent_out_of_range_forms_no_address() -> None:
    window, x, weight = rows_of(0, 1, 3, 2), rows_of(1, 1, 4, 2), rows_of(2, 2, 1, 4)
    strictly(conv.tree_conv, window, x, weight, None, torch.tensor([[-1, 1, 99, 2]]))


@pytest.mark.parametrize("values", [[0, 1, 2, 3], [5, 3, 1, -1], [7, 7, 7, 7], [-1], [1, 0, 0, 2, 5, 9]])
def test_tables_agree(values: list[int]) -> None:
    like = torch.zeros(2, 3)
    agree("int_table", (like, values, [len(values)]))
    agree("int_table", (like, values, [1, len(values)]))
    for rows, root in ((1, 0), (4, 0), (4, -1), (4, 2)):
        agree("root_table", (rows_of(0, 2, 3, 5), rows, root))


@given(st.integers(1, 3), st.integers(1, 5), st.integers(1, 4), SHAPES, SEEDS)
def test_taken_rows_are_those_of_the_index(batch: int, size: int, taken: int, rest: tuple[int, ...], seed: int) -> None:
    x = rows_of(seed, batch, size, *rest)
    index = torch.randint(size, (batch, taken), generator=torch.Generator().manual_seed(seed))
    assert_close(strictly(take_rows, x, index), x[torch.arange(batch).unsqueeze(1), index], None)
    assert_close(strictly(take_entries, x[0], index), x[0][index], None)


@pytest.mark.parametrize("batch", [1, 2])
def test_ge_has_every_op(batch: int) -> None:
    kept, rows, window = rows_of(0, batch, 6, 3), rows_of(1, batch, 4, 3), rows_of(2, batch, 3, 3)
    path, count = torch.zeros(batch, 2, dtype=torch.int64), torch.zeros(batch, dtype=torch.int64)
    assert_convertible(cache.append_rows, kept, rows, count, count)
    assert_convertible(cache.append_rows, path, path, count, count)
    assert_convertible(cache.commit_path, kept, rows, path, count, count, False)
    assert_convertible(cache.joined_rows, rows, kept, path, count)
    assert_convertible(cache.joined_rows, rows, None, path, count)
    assert_convertible(conv.conv_commit, window, rows, path, count)
    parent_row, weight = torch.zeros(batch, 4, dtype=torch.int64), rows_of(3, 3, 1, 4)
    assert_convertible(conv.tree_conv, window, rows, weight, rows_of(4, 3), parent_row)
    assert_convertible(conv.short_conv, window, rows, weight, None, parent_row > 0)
    assert_convertible(conv.short_conv, window.half(), rows.half(), weight.half(), None, None)
    assert_convertible(create.int_table, kept, [1, 0, 5], [3])
    assert_convertible(create.root_table, kept.unsqueeze(0), 4, 2)
