"""Ranking, packing and what stands for aten ops without a GE form: ties and empty rows as the ops define them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specc.backends.ascend.ops import aten, draft
from tests.backends.ascend.op_support import agree, assert_close, assert_convertible, strictly

# Few values, so that most draws tie.
SCORES = st.sampled_from([0.0, -0.5, -0.5, -1.0, 3.0, -math.inf, math.nan, torch.finfo(torch.float32).min])
NUMBERS = st.sampled_from([0.0, 0.5, 1.0, 1.0, -2.0, 30.0, -30.0])


@st.composite
def tables(draw: st.DrawFn, values: st.SearchStrategy[Any], max_size: int = 9) -> torch.Tensor:
    """Numbers [B,C]."""
    rows, size = draw(st.integers(1, 3)), draw(st.integers(1, max_size))
    return torch.tensor(draw(st.lists(values, min_size=rows * size, max_size=rows * size))).reshape(rows, size)


@given(tables(SCORES), st.data(), st.sampled_from([torch.float32, torch.float64]))
def test_ranks_and_the_best_agree(scores: torch.Tensor, data: st.DataObject, dtype: torch.dtype) -> None:
    scores = scores.to(dtype)
    agree("score_rank", (scores,))
    agree("stable_topk", (scores, data.draw(st.integers(1, scores.shape[1]))))
    agree("stable_topk", (scores.unsqueeze(1), data.draw(st.integers(1, scores.shape[1]))))


@st.composite
def candidates(draw: st.DrawFn) -> tuple[Any, ...]:
    """Candidates with an ancestor-closed choice among them, and room for it."""
    rows, count = draw(st.integers(1, 3)), draw(st.integers(1, 8))
    parents, chosen = [], []
    for _ in range(rows):
        # Outside [0, C) is the root.
        above = [draw(st.sampled_from([-1, -7, count, 1 << 40, *range(place)])) for place in range(count)]
        taken: list[bool] = []
        for place, parent in enumerate(above):
            taken.append(draw(st.booleans()) and (not 0 <= parent < place or taken[parent]))
        parents.append(above)
        chosen.append(taken)
    marks = torch.tensor(chosen)
    nodes = draw(st.integers(int(marks.sum(1).max()) + 1, count + 3))
    token = torch.randint(100, (rows, count), generator=torch.Generator().manual_seed(count))
    return marks, token, torch.tensor(parents), token / 7.0, torch.arange(rows) + 50, nodes


@given(candidates())
def test_packed_trees_agree(operands: tuple[Any, ...]) -> None:
    agree("pack_tree", operands)


@given(tables(st.sampled_from([0, 1, 1, 2])), st.booleans())
def test_reductions_name_the_first(x: torch.Tensor, keepdim: bool) -> None:
    for value in (x, x.float(), x > 0, x.unsqueeze(0), x.unsqueeze(2)):
        for dim in range(value.dim()):
            if value.dtype != torch.bool:
                made = strictly(aten.argmax, value, dim, keepdim)
                assert torch.equal(made, value.argmax(dim, keepdim))
            wanted = value.to(torch.int64).argmax(dim, keepdim)
            assert torch.equal(strictly(aten.argmax, value, dim, keepdim), wanted)
    assert torch.equal(strictly(aten.amax, x, [1], keepdim), x.amax([1], keepdim))
    assert torch.equal(strictly(aten.amax, x.double(), [0], keepdim), x.double().amax([0], keepdim))


def test_argmax_of_nan_is_in_range() -> None:
    x = torch.tensor([[math.nan, 1.0, 2.0], [0.0, math.nan, math.nan]])
    assert bool((strictly(aten.argmax, x, 1) < 3).all())


@given(tables(st.sampled_from([0, 1, 1, 1])), st.integers(-9, 9))
def test_running_products_and_rolls_agree(x: torch.Tensor, shift: int) -> None:
    for dim in (0, 1):
        assert torch.equal(aten.cumprod(x, dim), x.cumprod(dim))
        assert torch.equal(aten.roll(x, [shift], [dim]), x.roll([shift], [dim]))
        for index in {0, x.shape[dim] - 1, -1}:
            part = x.select(dim, 0) + 5
            wanted = x.select_scatter(part, dim, index)
            assert torch.equal(aten.select_scatter(x, part, dim, index), wanted)


@given(tables(NUMBERS), tables(NUMBERS), st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
def test_formulas_agree(x: torch.Tensor, y: torch.Tensor, dtype: torch.dtype) -> None:
    x, y = (value.flatten()[: min(x.numel(), y.numel())].to(dtype) for value in (x, y))
    bound = 1e-2 if dtype == torch.bfloat16 else 1e-6
    assert_close(aten.softplus(x), torch.nn.functional.softplus(x), bound)
    assert_close(aten.logaddexp(x, y), torch.logaddexp(x, y), bound)
    assert_close(aten.xlogy(x, y.abs()), torch.xlogy(x, y.abs()), bound)
    assert_close(aten.clamp_max(x, 0.5), x.clamp_max(0.5), None)


def test_softplus_is_finite_far_out() -> None:
    assert bool(aten.softplus(torch.tensor([1e30, 200.0, -200.0])).isfinite().all())
    assert torch.equal(aten.logaddexp(torch.tensor([-math.inf]), torch.tensor([-math.inf])), torch.tensor([-math.inf]))


X = torch.rand(2, 4)
TABLE = (X > 0.5, X.long(), X.long(), X, torch.zeros(2, dtype=torch.int64), 5)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (draft.score_rank, (X,)),
        (draft.stable_topk, (X, 3)),
        (draft.pack_tree, TABLE),
        (aten.argmax, (X, -1)),
        (aten.argmax, (X.long(), 1, True)),
        (aten.amax, (X.long(), [1], True)),
        (aten.clamp_max, (X.long(), 3)),
        (aten.cumprod, (X.long(), 1)),
        (aten.roll, (X.long(), [1], [1])),
        (aten.select_scatter, (X, X[:, 0], 1, 2)),
        (aten.softplus, (X.half(),)),
        (aten.xlogy, (X, X)),
        (aten.logaddexp, (X, X)),
    ],
)
def test_ge_has_every_op(function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    assert_convertible(function, *arguments)
