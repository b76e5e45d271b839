"""GE graphs of the real torchair, run by the evaluator, against torch: one property for each family of ops."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from tests.backends.ascend.harness_support import FEW, TYPES, check, normal, shuffled, whole

pytestmark = pytest.mark.usefixtures("torch_npu_wheel")
SIZES = st.integers(1, 4)
SEEDS = st.integers(0, 1 << 16)


@FEW
@given(SIZES, SIZES, TYPES, SEEDS)
def test_arithmetic(rows: int, columns: int, dtype: torch.dtype, seed: int) -> None:
    x, y = normal(seed, rows, columns, dtype=dtype), normal(seed + 1, columns, dtype=dtype)
    check(
        lambda x, y: (x + y, x - y, x * y, x / y.abs().clamp(min=1), 1 - x, x * 2.5, torch.add(x, y, alpha=3)),
        x,
        y,
        scale=4,
    )


@FEW
@given(SIZES, SIZES, SEEDS)
def test_whole_numbers(rows: int, columns: int, seed: int) -> None:
    x, y = whole(seed, 9, rows, columns, low=-8), whole(seed + 1, 5, rows, columns, low=1)
    check(
        lambda x, y: (
            (x + y, x * y, 3 - x, x // y, x % y, torch.div(x, 2, rounding_mode="trunc"), x / y),
            (x.clamp(0, 2), x.minimum(y), x.maximum(y), x & y, x | y, x.to(torch.int32) + 1),
        ),
        x,
        y,
    )


@FEW
@given(SIZES, TYPES, SEEDS)
def test_elementary_functions(size: int, dtype: torch.dtype, seed: int) -> None:
    check(
        lambda x: (
            (x.exp(), x.abs().log1p(), x.sigmoid(), functional.silu(x), x.tanh(), x.sin(), x.cos(), x.neg()),
            (x.square(), x.abs().rsqrt(), x.abs().sqrt(), x.expm1(), x.erf(), x.sign(), x.relu(), x.round()),
            (x.floor(), x.ceil(), x.reciprocal(), x.pow(3), x.isinf(), functional.gelu(x, approximate="tanh")),
        ),
        normal(seed, size, 3, dtype=dtype) + 0.01,
        scale=8,
    )


@FEW
@given(SIZES, SIZES, SEEDS)
def test_comparisons_logic_and_choice(rows: int, columns: int, seed: int) -> None:
    x, y = whole(seed, 3, rows, columns), whole(seed + 1, 3, rows, columns)
    check(
        lambda x, y: (
            (x < y, x <= y, x > y, x >= y, x == y, x != y, x < 1, x == 2),
            ((x < y) & (y > 1), (x < y) | (y > 1), ~(x < y), torch.logical_and(x < y, x > 0)),
            (torch.where(x < y, x, y), torch.where(x < y, 1.5, 0.0), x.masked_fill(x < y, -1)),
        ),
        x,
        y,
    )


@FEW
@given(SIZES, SIZES, TYPES, SEEDS)
def test_reductions(rows: int, columns: int, dtype: torch.dtype, seed: int) -> None:
    check(
        lambda x: (
            (x.sum(), x.sum(-1), x.sum(0, keepdim=True), x.mean(-1), x.max(-1), x.max(), x.cumsum(1)),
            (x.argmax(-1), x.argmin(0), x.softmax(-1), x.log_softmax(0), x.logsumexp(-1), (x > 0).any(1)),
            ((x > 0).sum(-1), (x > 0).all(), (x > 0).any(), functional.softmax(x, -1, dtype=torch.float32)),
        ),
        normal(seed, rows, columns, dtype=dtype),
        scale=4,
    )


def test_argmax_takes_the_first_of_equal_values() -> None:
    check(lambda x: (x.argmax(-1), x.max(-1)), torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]]))


@FEW
@given(SIZES, SIZES, SEEDS)
def test_layout(rows: int, columns: int, seed: int) -> None:
    check(
        lambda x, y: (
            (x.reshape(-1), x.t(), x.unsqueeze(1), x.unsqueeze(1).squeeze(1), x.flatten(), x[:, :1], x[0], x[:, -1:]),
            (x[:, ::2], x.select(1, 0), x.expand(2, *x.shape), x.repeat(2, 3), x.repeat_interleave(2, 0), x.flip(1)),
            (torch.cat([x, y], 1), torch.stack([x, y]), x.unbind(0), x.split([1, x.shape[1] - 1], 1), x.tril()),
            (functional.pad(x, (1, 2), value=2.5), x.triu(1), torch.slice_scatter(x, y[:, :1], 1, 0, 1), x.t() @ y),
        ),
        normal(seed, rows, columns),
        normal(seed + 1, rows, columns),
        scale=4,
    )


@FEW
@given(SIZES, SEEDS)
def test_made_from_nothing(size: int, seed: int) -> None:
    check(
        lambda x: (
            (torch.zeros_like(x), torch.ones_like(x), torch.full_like(x, 7), torch.arange(x.shape[0]) + x),
            (torch.arange(1, 9, 2), torch.full((2,), 3.5), x.new_zeros(3), torch.tensor(3) * x),
        ),
        whole(seed, 9, size),
    )


@FEW
@given(st.integers(2, 5), st.integers(1, 4), SEEDS)
def test_gathers(rows: int, columns: int, seed: int) -> None:
    x, index = normal(seed, rows, columns), whole(seed, rows, 3, columns)
    check(
        lambda x, i: (x.gather(0, i), x.index_select(0, i[0]), functional.embedding(i, x), x[i[0]], x[i[0], i[0] * 0]),
        x,
        index,
    )


@FEW
@given(st.integers(2, 5), SIZES, SEEDS)
def test_scatters_into_a_new_tensor(rows: int, columns: int, seed: int) -> None:
    index = torch.stack(
        [torch.randperm(rows, generator=torch.Generator().manual_seed(seed)) for _ in range(columns)], 1
    )
    check(
        lambda x, i, u: (x.scatter(0, i, u), x.scatter(0, i[:1], 2.0), x.scatter_add(0, i * 0, u)),
        normal(seed, rows, columns),
        index,
        normal(seed + 1, rows, columns),
        scale=4,
    )


@FEW
@given(st.integers(1, 3), st.integers(1, 5), SEEDS)
def test_topk_and_sort_of_different_values(k: int, more: int, seed: int) -> None:
    x = torch.stack([shuffled(seed, k + more), shuffled(seed + 1, k + more)])
    check(
        lambda x: (torch.topk(x, k, -1), torch.topk(x, k, -1, largest=False), x.sort(-1), x.argsort(descending=True)),
        x.float(),
    )


@FEW
@given(SIZES, SIZES, SIZES, TYPES, SEEDS)
def test_matrix_products(rows: int, inner: int, columns: int, dtype: torch.dtype, seed: int) -> None:
    x, w, b = (
        normal(seed + n, *shape, dtype=dtype) for n, shape in enumerate([(rows, inner), (columns, inner), (columns,)])
    )
    check(lambda x, w, b: (x @ w.t(), functional.linear(x, w), functional.linear(x, w, b)), x, w, b, scale=16)
    y = normal(seed, 2, columns, inner, dtype=dtype)
    check(lambda x, y: (x[None].expand(2, -1, -1) @ y.mT, torch.bmm(y, y.transpose(1, 2)), x @ y.mT), x, y, scale=16)
