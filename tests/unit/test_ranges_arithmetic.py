"""Bounds and intervals: sound for every value of the sizes, and exact where they can be."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from specc.ir.dims import BATCH, CHUNK
from specc.ir.port import ValueRange
from specc.ir.ranges import interval as iv
from specc.ir.ranges.bounds import INFINITY, MINUS_INFINITY, Bound, above, below, integer, of_declared, of_size, symbol
from specc.ir.ranges.interval import Interval, between, exactly

B, T = symbol("B"), symbol("T")
SIZES = st.fixed_dictionaries({"B": st.integers(1, 9), "T": st.integers(1, 9)})


@st.composite
def polynomials(draw: st.DrawFn) -> Bound:
    total = integer(draw(st.integers(-9, 9)))
    for monomial in (B, T, B * T, T * T):
        total = total + integer(draw(st.integers(-3, 3))) * monomial
    return total


def value(bound: Bound, sizes: dict[str, int]) -> float:
    if bound.infinite:
        return float("inf") * bound.infinite
    total = 0
    for monomial, factor in bound.terms:
        for name in monomial:
            factor *= sizes[name]
        total += factor
    return total


@given(polynomials(), polynomials(), SIZES)
def test_bounds_compute_and_compare_as_their_values_do(left: Bound, right: Bound, sizes: dict[str, int]) -> None:
    one, other = value(left, sizes), value(right, sizes)
    assert value(left + right, sizes) == one + other
    assert value(left - right, sizes) == one - other
    assert value(left * right, sizes) == one * other
    assert value(below(left, right), sizes) <= min(one, other)
    assert value(above(left, right), sizes) >= max(one, other)
    if left <= right:
        assert one <= other


@pytest.mark.parametrize(
    ("left", "right", "holds"),
    [
        (integer(3), integer(3), True),
        (integer(4), integer(3), False),
        (T - integer(1), T, True),
        (T, T - integer(1), False),
        (integer(1), T, True),  # sizes are at least 1
        (integer(2), T, False),
        (integer(9999), B, False),  # never by the size of the placeholder number
        (B, T, False),
        (T, B * T, True),
        (B * T - B, B * T - integer(1), True),
        (MINUS_INFINITY, integer(0), True),
        (T, INFINITY, True),
        (INFINITY, T, False),
    ],
)
def test_a_bound_is_below_another_only_for_all_sizes(left: Bound, right: Bound, holds: bool) -> None:
    assert (left <= right) is holds


def test_sizes_and_declared_ends_become_symbols() -> None:
    assert of_size(BATCH) == B
    assert of_size(3 * CHUNK) == integer(3) * T
    assert of_size(BATCH * CHUNK) == B * T
    assert of_size(64) == integer(64)
    assert of_declared(CHUNK - 1) == T - integer(1)
    assert of_declared(BATCH - 1) == B - integer(1)
    assert of_declared(CHUNK + 1) == T + integer(1)
    assert str(iv.declared(ValueRange(-1, CHUNK - 1, "pad"))) == "[-1, T - 1] (-1: pad)"


def test_dynamic_sizes_of_exported_graphs_become_symbols() -> None:
    class Twice(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([x, x]).reshape(-1)

    size = torch.export.Dim("rows", min=2, max=1000)
    exported = torch.export.export(Twice(), (torch.ones(5, 3),), dynamic_shapes=({0: size},))
    output = next(node for node in reversed(exported.graph.nodes) if node.op == "call_function")
    (rows,) = output.meta["val"].shape
    (name,) = {str(item) for item in rows.node.expr.free_symbols}
    assert of_size(rows) == integer(6) * symbol(name)


intervals = st.tuples(st.integers(-12, 12), st.integers(0, 12)).map(lambda ends: between(ends[0], ends[0] + ends[1]))


def members(interval: Interval) -> range:
    low, high = interval.low.constant, interval.high.constant
    assert low is not None
    assert high is not None
    return range(low, high + 1)


BINARY: dict[str, tuple[Callable[[Interval, Interval], Interval], Callable[[int, int], int]]] = {
    "add": (iv.add, lambda x, y: x + y),
    "subtract": (iv.subtract, lambda x, y: x - y),
    "multiply": (iv.multiply, lambda x, y: x * y),
    "minimum": (iv.minimum, min),
    "maximum": (iv.maximum, max),
    "floor_divide": (iv.floor_divide, lambda x, y: x // y),
    "truncate_divide": (iv.truncate_divide, lambda x, y: int(x / y)),
    "remainder": (iv.remainder, lambda x, y: x % y),
}


@pytest.mark.parametrize("name", BINARY)
@given(left=intervals, right=intervals)
def test_interval_arithmetic_holds_every_result(name: str, left: Interval, right: Interval) -> None:
    abstract, concrete = BINARY[name]
    divides = name in ("floor_divide", "truncate_divide", "remainder")
    assume(not divides or 0 not in members(right))
    result = abstract(left, right)
    values = [concrete(x, y) for x in members(left) for y in members(right)]
    assert between(min(values), max(values)).within(result)
    if not divides:
        assert (result.low.constant, result.high.constant) == (min(values), max(values)), "these are exact"


@given(intervals, st.integers(1, 5))
def test_division_by_a_constant_is_exact(left: Interval, divisor: int) -> None:
    result = iv.floor_divide(left, exactly(divisor))
    values = [x // divisor for x in members(left)]
    assert (result.low.constant, result.high.constant) == (min(values), max(values))


def test_a_meaning_of_minus_one_lasts_as_long_as_minus_one_does() -> None:
    parent = iv.declared(ValueRange(-1, 4, "committed"))
    assert parent.sentinels == {"committed"}
    assert iv.join(parent, exactly(-1)).sentinels == {"committed"}
    assert iv.add(parent, exactly(1)).sentinels == frozenset()
    assert iv.maximum(parent, exactly(0)).sentinels == frozenset()


def test_what_may_overflow_has_the_whole_range_of_its_dtype() -> None:
    assert iv.fit(between(0, 200), torch.uint8) == between(0, 200)
    assert iv.fit(between(0, 300), torch.uint8) == between(0, 255)
    assert iv.fit(between(0, 2**63), torch.int64) == iv.limits(torch.int64)
