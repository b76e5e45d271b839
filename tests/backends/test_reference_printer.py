"""Single graphs as Python: loops whose carried values depend on each other, writes, names, unknown ops."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule

from specc.backends.printing.expression import Expr
from specc.backends.printing.names import Names
from specc.backends.printing.printer import GraphPrinter
from specc.backends.reference.backend import DIALECT
from specc.ir import ops
from specc.ir.build import BodyBuilder, GraphBuilder, fake

aten = torch.ops.aten


def run_printed(module: GraphModule, *arguments: Any) -> tuple[Any, ...]:
    """Run the printed form of a graph whose helpers are the ops themselves."""
    names = Names({"torch", "F", "Tensor"})
    places = [node for node in module.graph.nodes if node.op == "placeholder"]
    bound = {node: Expr(names.fresh(node.name)) for node in places}
    printer = GraphPrinter(DIALECT, lambda target: f"torch.ops.specc.{target._schema.name.split('::')[1]}", names)
    values = printer.print(module, bound)
    source = "\n".join(
        [
            "import torch",
            "import torch.nn.functional as F",
            "from torch import Tensor",
            f"def run({', '.join(item.text for item in bound.values())}):",
            *printer.lines,
            f"    return ({', '.join(value.text for value in values)},)",
        ]
    )
    scope: dict[str, Any] = {}
    exec(source, scope)
    return scope["run"](*arguments)


def equal(module: GraphModule, *arguments: Any) -> None:
    wanted = module(*[item.clone() if isinstance(item, torch.Tensor) else item for item in arguments])
    found = run_printed(module, *arguments)
    assert len(wanted) == len(found)
    assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))


def swap_loop(outputs: str) -> GraphModule:
    """x, y = y, x + y three times; `outputs` picks which values leave the loop."""
    b = GraphBuilder()
    x, y = (b.placeholder(name, fake((2, 3), torch.float64)) for name in ("x", "y"))
    body = BodyBuilder("step", carried={"x": x, "y": y}, sliced={}, invariant={})
    total = body.call(aten.add.Tensor, body["x"], body["y"])
    out = body.close(b, 3, [body["y"], total, body["x"], total], "steps")
    return b.output([out["xyst".index(letter)] for letter in outputs])


def test_carried_values_that_read_each_other_are_assigned_at_once() -> None:
    x, y = torch.rand(2, 3, dtype=torch.float64), torch.rand(2, 3, dtype=torch.float64)
    for outputs in ("xyst", "x", "y", "st", "ty"):
        equal(swap_loop(outputs), x, y)


def test_a_late_read_of_the_old_carried_value_sees_the_old_one() -> None:
    b = GraphBuilder()
    x = b.placeholder("x", fake((2, 3), torch.float64))
    body = BodyBuilder("step", carried={"x": x}, sliced={}, invariant={})
    old = body.call(aten.neg.default, body["x"])
    new = body.call(aten.mul.Tensor, body["x"], 3)
    late = body.call(aten.add.Tensor, old, new)
    later = body.call(aten.sub.Tensor, late, body["x"])
    out = body.close(b, 2, [new, late, later], "steps")
    equal(b.output(out), torch.rand(2, 3, dtype=torch.float64))


def test_nothing_moves_across_a_write() -> None:
    b = GraphBuilder()
    cache = b.placeholder("cache", fake((1, 4, 2), torch.float64))
    rows = b.placeholder("rows", fake((1, 2, 2), torch.float64))
    start = b.placeholder("start", fake((1,), torch.int64))
    before = b.call(aten.mul.Tensor, cache, 2)
    b.call(ops.append_rows_, cache, rows, start)
    after = b.call(aten.mul.Tensor, cache, 2)
    module = b.output([b.call(aten.sub.Tensor, after, before)])
    equal(module, torch.rand(1, 4, 2, dtype=torch.float64), torch.ones(1, 2, 2, dtype=torch.float64), torch.tensor([1]))


def test_integers_precedence_and_unknown_ops_keep_their_meaning() -> None:
    b = GraphBuilder()
    x = b.placeholder("class", fake((2, 3), torch.float64))
    y = b.placeholder("print", fake((2, 3), torch.float64))
    both = b.call(
        aten.mul.Tensor, b.call(aten.add.Tensor, x, y), b.call(aten.neg.default, b.call(aten.sub.Tensor, x, y))
    )
    nested = b.call(aten.sub.Tensor, x, b.call(aten.sub.Tensor, x, y))
    less = b.call(aten.logical_not.default, b.call(aten.lt.Tensor, x, y))
    odd = b.call(aten.addcmul.default, x, y, y, value=0.5)
    last = b.call(aten.select.int, b.call(aten.slice.Tensor, x, 1, 1, 3), -1, 0)
    top = b.call(aten.topk.default, x, 2, -1)
    values, index = b.item(top, 0), b.item(top, 1)
    module = b.output([both, nested, less, odd, last, values, index])
    equal(module, torch.rand(2, 3, dtype=torch.float64), torch.rand(2, 3, dtype=torch.float64))


def test_loop_over_a_tuple_and_index_arithmetic() -> None:
    b = GraphBuilder()
    x = b.placeholder("x", fake((2, 3), torch.float64))
    w = b.placeholder("w", (fake((3,), torch.float64), fake((3,), torch.float64)))
    body = BodyBuilder("layer", carried={"x": x}, sliced={"w": w}, invariant={})
    number = body.call(operator.mul, body.call(operator.add, body.index, 1), 2)
    scaled = body.call(aten.mul.Tensor, body["w"], number)
    out = body.close(b, 2, [body.call(aten.add.Tensor, body["x"], scaled), scaled], "layers")
    weights = (torch.rand(3, dtype=torch.float64), torch.rand(3, dtype=torch.float64))
    equal(b.output(out), torch.rand(2, 3, dtype=torch.float64), weights)
