"""A kernel that shares nothing with the row moves in front of it starts beside them, and waits for them at its end."""

from __future__ import annotations

import pytest
import torch
from torch.fx import GraphModule

from specc.backends.printing.regions import RegionCall
from specc.backends.triton.regions import plan, planning
from specc.ir import ops
from specc.ir.build import GraphBuilder, fake
from specc.ir.dims import BATCH

aten = torch.ops.aten


def graph(change: str = "") -> GraphModule:
    """Row moves of two layers, then a kernel on small integers."""
    b = GraphBuilder(("commit",))
    cache = b.placeholder("cache", fake((2, BATCH, 8, 1, 4), torch.int64))
    path, x = (b.placeholder(name, fake((BATCH, 4), torch.int64)) for name in ("path", "x"))
    start, count = (b.placeholder(name, fake((BATCH,), torch.int64)) for name in ("start", "count"))
    b.call(ops.commit_path_layers_, [cache], path, start, count, False)
    total = b.call(aten.mul.Tensor, b.call(aten.add.Tensor, x, path), 2)
    if change == "reads the rows":
        row = b.call(aten.select.int, b.call(aten.select.int, cache, 0, 0), 1, 3)
        total = b.call(aten.add.Tensor, total, b.call(aten.select.int, row, 1, 0))
    if change == "writes the path":
        b.call(aten.copy_.default, path, total)
    return b.output([total])


def between(what: str) -> GraphModule:
    """Row moves, something, and a kernel that shares nothing with the moves."""
    b = GraphBuilder(("commit",))
    cache = b.placeholder("cache", fake((2, BATCH, 8, 1, 4), torch.int64))
    path, x = (b.placeholder(name, fake((BATCH, 4), torch.int64)) for name in ("path", "x"))
    start, count = (b.placeholder(name, fake((BATCH,), torch.int64)) for name in ("start", "count"))
    wide = b.placeholder("wide", fake((BATCH, 4, 8192), torch.float32))
    left = b.placeholder("left", fake((BATCH, 4), torch.float32))
    right = b.placeholder("right", fake((4, 4), torch.float32))
    b.call(ops.commit_path_layers_, [cache], path, start, count, False)
    if what == "a view":
        first = b.call(aten.select.int, x, 1, 0)
        return b.output([b.call(aten.mul.Tensor, b.call(aten.add.Tensor, first, count), 2)])
    if what == "a launch":
        above = b.call(aten.gt.Scalar, b.call(aten.mm.default, left, right), 0.0)
        return b.output([b.call(aten.mul.Tensor, b.call(aten.add.Tensor, x, above), 2)])
    if what == "a launch in place":  # it gives its operand back, as a view does
        again = b.call(aten.bernoulli_.float, wide, 0.5)
        above = b.call(aten.select.int, b.call(aten.select.int, again, 2, 0), 1, 0)
        return b.output(
            [b.call(aten.add.Tensor, b.call(aten.mul.Tensor, b.call(aten.add.Tensor, start, count), 2), 1), above]
        )
    # Sums over a row are one kernel, what they scale is too wide for it.
    total = b.call(aten.mul.Tensor, b.call(aten.cumsum.default, b.call(aten.cumsum.default, x, 1), 1), 2)
    scaled = b.call(aten.mul.Tensor, wide, b.call(aten.unsqueeze.default, total, 2))
    return b.output([total, b.call(aten.add.Tensor, scaled, 2.0)])


def kernels(module: GraphModule) -> list[list[str]]:
    """The statements of every generated kernel."""
    calls = [unit for unit in plan(module).order if isinstance(unit, RegionCall)]
    texts = [call.generated.source.split("def NAME(")[0] for call in calls]
    return [[line.strip() for line in text.splitlines() if line.startswith("    ")] for text in texts]


def lines(module: GraphModule) -> list[str]:
    """The statements of the one kernel."""
    (found,) = kernels(module)
    return found


def waits(found: list[str]) -> str:
    """Where a kernel waits for the launch in front of it, which it does once."""
    assert found.count("follow()") == 1
    return {0: "first", len(found) - 1: "last"}[found.index("follow()")]


def test_it_waits_at_its_end() -> None:
    found = lines(graph())
    assert waits(found) == "last"
    assert "tl.store" in found[-2]


@pytest.mark.parametrize("change", ["reads the rows", "writes the path"])
def test_a_kernel_that_shares_memory_waits_first(change: str) -> None:
    assert waits(lines(graph(change))) == "first"


def test_a_view_launches_nothing_so_that_the_moves_are_still_in_front() -> None:
    assert waits(lines(between("a view"))) == "last"


@pytest.mark.parametrize(
    ("what", "expected"), [("a launch", ["first"]), ("a launch in place", ["first"]), ("a kernel", ["last", "first"])]
)
def test_only_the_launch_right_behind_the_moves_starts_beside_them(what: str, expected: list[str]) -> None:
    """What a launch in between gives must be there before the next kernel reads it."""
    assert [waits(found) for found in kernels(between(what))] == expected


def always(*arguments: object) -> bool:
    return True


@pytest.mark.parametrize("change", ["reads the rows", "writes the path"])
def test_a_planner_that_sees_no_shared_memory_is_noticed(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault that the tests above are for: the kernel would run beside the moves of rows that it reads."""
    monkeypatch.setattr(planning, "_apart", always)
    with pytest.raises(AssertionError):
        test_a_kernel_that_shares_memory_waits_first(change)


def test_a_planner_that_never_lets_a_kernel_start_early_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_late", lambda emitted: emitted)
    with pytest.raises(AssertionError):
        test_it_waits_at_its_end()
