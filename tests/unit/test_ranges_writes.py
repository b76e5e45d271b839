"""Interval analysis of users' functions: writes in place, aliases, numbers as truth values, bits as numbers."""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
import torch
from torch.fx import symbolic_trace

from specc.ir import ops
from specc.ir.ranges import analyse
from specc.ir.ranges.interval import between
from specc.passes.rewrite_negative_indices.types import record_types

INT = torch.int64


def _written_view(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros_like(x)
    y[0].add_(7)
    return y + 0


def _written_before(x: torch.Tensor) -> torch.Tensor:
    y = torch.ones_like(x)
    early = y.view(-1)
    y.mul_(5)
    return early + 0


def _written_as_out(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros_like(x)
    torch.add(x, 4, out=y)
    return y + 0


def _written_between_test_and_use(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros_like(x)
    low = y < 5
    y.fill_(9)
    return torch.where(low, y, torch.zeros_like(x))


def _numbers_as_truth(x: torch.Tensor) -> torch.Tensor:
    five = torch.full_like(x, 5)
    return torch.where(torch.logical_not(five), x, five)


def _bits_as_numbers(x: torch.Tensor) -> torch.Tensor:
    return torch.full_like(x, -1).view(torch.uint8) + 0


def _positions_by_count(x: torch.Tensor) -> torch.Tensor:
    return torch.repeat_interleave(torch.full_like(x[0], 7))


@pytest.mark.parametrize(
    "function",
    [
        _written_view,
        _written_before,
        _written_between_test_and_use,
        _written_as_out,
        _numbers_as_truth,
        _bits_as_numbers,
        _positions_by_count,
    ],
)
def test_what_torch_does_with_storage_and_truth_is_kept(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    module = symbolic_trace(function)
    x = torch.ones(2, 3, dtype=INT)
    record_types(module, [x])
    ranges = analyse(module)
    output = next(node for node in reversed(module.graph.nodes) if node.op == "output")
    seen, held = function(x), ranges.of(output.args[0])
    low, high = held.low.constant, held.high.constant
    assert low is None or low <= int(seen.min())
    assert high is None or int(seen.max()) <= high


def test_an_op_that_returns_nothing_leaves_its_values_in_what_it_writes() -> None:
    def appended(x: torch.Tensor) -> torch.Tensor:
        cache = torch.zeros_like(x)
        ops.append_rows_(cache, torch.full_like(x[:, :3], 9), x[:, 0] * 0)
        return cache + 0

    def tabled(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        table, owner = torch.zeros_like(x[:1, :4]), torch.zeros_like(x.view(-1)[:9])
        ops.take_pages_(table, owner, x[:1, 0] * 0, None, 6, 4)
        return table + 0, owner + 0

    found = []
    for function in (appended, tabled):
        module = symbolic_trace(function)
        record_types(module, [torch.ones(2, 8, dtype=INT)])
        ranges = analyse(module)
        found += [ranges.of(node) for node in module.graph.nodes if node.target is operator.add]
    cache, table, owner = found
    assert between(0, 9).within(cache)
    assert cache.within(between(0, 9))
    assert between(0, 8).within(table)
    assert table.within(between(0, 9))
    assert not owner.within(between(-100, 100))


def test_an_assignment_by_index_is_a_write() -> None:
    module = symbolic_trace(lambda x: torch.zeros_like(x) + 0)
    zeros = next(node for node in module.graph.nodes if node.target is torch.zeros_like)
    with module.graph.inserting_after(zeros):
        module.graph.call_function(operator.setitem, (zeros, 1, 9))
    held = analyse(module).of(next(node for node in module.graph.nodes if node.target is operator.add))
    assert not held.within(between(0, 0))
    assert between(0, 9).within(held)
