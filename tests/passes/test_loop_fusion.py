"""Loop fusion: one loop instead of two with the same results, or the reason why not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.fx import GraphModule, Node

from specc.ir.build import BodyBuilder, GraphBuilder, fake
from specc.ir.edit import finish, is_loop
from specc.passes.loop_fusion import fuse_loops

aten = torch.ops.aten
LAYERS = 3
Make = Callable[[GraphBuilder, Node, Node], list[Node]]


def produce(b: GraphBuilder, x: Node, shift: Node, *, axis: str = "layer", carried: bool = False) -> list[Node]:
    """y[l] = 2 x[l] + shift."""
    body = BodyBuilder(axis, carried={"sum": shift} if carried else {}, sliced={"x": x}, invariant={"shift": shift})
    doubled = body.call(aten.mul.Tensor, body["x"], 2)
    y = body.call(aten.add.Tensor, doubled, body["shift"])
    return body.close(b, LAYERS, [y, y] if carried else [y], "produce")


def consume(b: GraphBuilder, y: Node, x: Node, start: Node, *, whole: bool = False) -> list[Node]:
    """s <- s + y[l] * x[l]; z[l] = s."""
    sliced = {"x": x} if whole else {"y": y, "x": x}
    body = BodyBuilder("layer", carried={"s": start}, sliced=sliced, invariant={"y": y} if whole else {})
    read = body.call(aten.select.int, body["y"], 0, 0) if whole else body["y"]
    s = body.call(aten.add.Tensor, body["s"], body.call(aten.mul.Tensor, read, body["x"]))
    return body.close(b, LAYERS, [s, s], "consume")


def graph(
    *, axis: str = "layer", carried: bool = False, whole: bool = False, early: bool = False
) -> tuple[GraphModule, Node, Node]:
    b = GraphBuilder()
    x, shift = b.placeholder("x", fake((LAYERS, 4), torch.float64)), b.placeholder("shift", fake((4,), torch.float64))
    y = produce(b, x, shift, axis=axis, carried=carried)[-1]
    start = b.call(aten.select.int, y, 0, 1) if early else shift
    last, steps = consume(b, y, x, start, whole=whole)
    module = b.output([last, steps, y])
    loops = [node for node in module.graph.nodes if is_loop(node)]
    return module, loops[0], loops[1]


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    draw = {"generator": generator, "dtype": torch.float64}
    return torch.randn(LAYERS, 4, **draw), torch.randn(4, **draw)  # type: ignore[arg-type]


def test_two_loops_become_one_with_the_same_results() -> None:
    module, producer, consumer = graph()
    wanted = module(*inputs())
    assert fuse_loops(module, producer, consumer, "test") is None
    finish(module)
    assert sum(is_loop(node) for node in module.graph.nodes) == 1
    for left, right in zip(wanted, module(*inputs()), strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"carried": True}, "carries values"),
        ({"whole": True}, "reads all of"),
        ({"early": True}, "before the consuming loop runs"),
        ({"axis": "step"}, "the loops differ"),
    ],
)
def test_what_is_not_legal_is_refused_with_the_reason_and_nothing_changes(
    options: dict[str, bool], reason: str
) -> None:
    module, producer, consumer = graph(**options)  # type: ignore[arg-type]
    before = str(module.graph)
    said = fuse_loops(module, producer, consumer, "test")
    assert said is not None
    assert reason in said
    assert str(module.graph) == before
