"""A kernel that shares nothing with the row moves in front of it starts beside them, and waits for them at its end."""

from __future__ import annotations

import pytest
import torch
from torch.fx import GraphModule

from specc.backends.printing.regions import RegionCall
from specc.backends.triton.regions import plan
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


def lines(module: GraphModule) -> list[str]:
    """The statements of the one kernel."""
    (call,) = [unit for unit in plan(module).order if isinstance(unit, RegionCall)]
    kernel = call.generated.source.split("def NAME(")[0]
    return [line.strip() for line in kernel.splitlines() if line.startswith("    ")]


def test_it_waits_at_its_end() -> None:
    found = lines(graph())
    assert found.count("follow()") == 1
    assert found[-1] == "follow()"
    assert "tl.store" in found[-2]


@pytest.mark.parametrize("change", ["reads the rows", "writes the path"])
def test_a_kernel_that_shares_memory_waits_first(change: str) -> None:
    found = lines(graph(change))
    assert found.count("follow()") == 1
    assert found[0] == "follow()"
