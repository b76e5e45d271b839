"""Kernels that count places out, and that keep small integers in 32 bits, give the nodes' values."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.fx import GraphModule

from specc.ir import ops
from specc.ir.build import GraphBuilder, fake
from specc.ir.dims import BATCH
from tests.backends.triton.regions_support import ROWS, compiled, printed, region_calls

aten = torch.ops.aten


def last_places(width: int, k: int, none: int, offset: int = 0, mark: int = 1) -> GraphModule:
    """The k greatest of where(x == mark [B,W], offset, offset + 1, …, none)."""
    b = GraphBuilder()
    x = b.placeholder("x", fake((BATCH, width), torch.int64))
    marked = b.call(aten.eq.Scalar, x, mark)
    place = b.call(ops.iota, x, width)
    place = b.call(aten.add.Tensor, place, offset) if offset else place
    filler = b.call(aten.full_like.default, x, none)
    keys = b.call(aten.where.self, marked, place, filler)
    return b.output([b.item(b.call(aten.topk.default, keys, k, 1), 0)])


def results(module: GraphModule, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What the graph gives with its nodes and with its kernels."""
    one, other = (compiled(printed(module, regions=regions))(x)[0] for regions in (False, True))
    return one, other


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    width=st.sampled_from([64, 100, 129]), k=st.sampled_from([2, 5, 16]), share=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    none=st.sampled_from([-1, -7]), mark=st.integers(0, 1), seed=st.integers(0, 99),
)  # fmt: skip
@example(width=100, k=5, share=0.0, none=-1, mark=0, seed=0)
def test_the_last_marked_places_are_counted_out(
    width: int, k: int, share: float, none: int, mark: int, seed: int
) -> None:
    """Zeros may be what is marked, too: they are what lanes behind the row hold."""
    module = last_places(width, k, none, mark=mark)
    x = (torch.rand(ROWS, width, generator=torch.Generator().manual_seed(seed)) < share).long()
    wanted, got = results(module, x)
    assert torch.equal(wanted, got)
    assert "last_places(" in region_calls(module)[0].generated.source


@pytest.mark.parametrize(("none", "offset"), [(3, 0), (-1, 2)])
def test_other_keys_are_compared(none: int, offset: int) -> None:
    module = last_places(100, 4, none, offset)
    wanted, got = results(module, torch.arange(300).reshape(3, 100) % 7 % 2)
    assert torch.equal(wanted, got)
    assert "last_places(" not in region_calls(module)[0].generated.source


def moved_and_summed(large: bool) -> GraphModule:
    """Sums, extremes, running sums and gathers of integers that int32 holds, or does not."""
    b = GraphBuilder()
    x = b.placeholder("x", fake((BATCH, 6), torch.int64))
    y = x if large else b.call(aten.clamp.default, x, -9, 9)
    y = b.call(aten.add.Tensor, y, 1)
    other = b.call(aten.clamp.default, b.call(aten.mul.Tensor, y, 2), 0, 5)
    made = [
        b.call(aten.sum.dim_IntList, y, [1]),
        b.call(aten.amax.default, y, [1]),
        b.call(aten.amin.default, y, [1]),
        b.call(aten.argmax.default, y, 1),
        b.call(aten.cumsum.default, y, 1),
        b.call(aten.gather.default, y, 1, other),
        b.call(aten.select.int, y, 1, 2),
        b.call(aten.cumprod.default, b.call(aten._to_copy.default, b.call(aten.gt.Scalar, y, 0), dtype=torch.int64), 1),
    ]
    return b.output([b.call(aten.add.Tensor, item, 3) for item in made])


@settings(max_examples=10, deadline=None, derandomize=True)
@given(large=st.booleans(), seed=st.integers(0, 99))
def test_integers_are_narrowed_only_where_int32_holds_them(large: bool, seed: int) -> None:
    module = moved_and_summed(large)
    x = torch.randint(-(2**42), 2**42, (ROWS, 6), generator=torch.Generator().manual_seed(seed))
    wanted, got = (compiled(printed(module, regions=regions))(x.clone()) for regions in (False, True))
    assert all(torch.equal(one, other) and one.dtype == other.dtype for one, other in zip(wanted, got, strict=True))
    source = region_calls(module)[0].generated.source
    assert large or ".to(tl.int32), 0).to(tl.int64)" in source
