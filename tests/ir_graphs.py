"""Random typed FX graphs with nested loops, in-place writes included: material for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from torch.fx import GraphModule, Node

from specc.ir.build import BodyBuilder, GraphBuilder, fake
from specc.ir.edit import modules
from specc.ir.interpreter import Interpreter

aten = torch.ops.aten
SHAPE = (3, 4)
INPUTS = ("x", "y", "i", "j")


def _through(b: GraphBuilder, x: Node, *steps: tuple[Any, ...]) -> Node:
    for target, *rest in steps:
        x = b.call(target, x, *rest)
    return x


def _round_trip(b: GraphBuilder, x: Node, number: int) -> Node:
    """One of several ways there and back, some of them no-ops."""
    ways: list[list[tuple[Any, ...]]] = [
        [(aten.flatten.using_ints, 0, 1), (aten.unflatten.int, 0, [3, 4])],
        [(aten.unsqueeze.default, 1), (aten.squeeze.dim, 1)],
        [(aten.transpose.int, 0, 1), (aten.transpose.int, 1, 0)],
        [(aten.view.default, [12]), (aten.view.default, [3, 4])],
        [(aten.reshape.default, [2, 6]), (aten.reshape.default, [4, 3]), (aten.reshape.default, [3, 4])],
        [(aten.expand.default, [3, 4])],
        [(aten.narrow.default, 0, 0, 3)],
        [(aten.clone.default,)],
        [(aten.slice.Tensor, 1, 0, 4, 1)],
    ]
    return _through(b, x, *ways[number % len(ways)])


Step = Callable[[GraphBuilder, list[Node], list[Node], int], tuple[list[Node], list[Node]]]


def _pick(pool: Sequence[Node], number: int) -> Node:
    return pool[number % len(pool)]


def _choose(b: GraphBuilder, f: list[Node], i: list[Node], n: int) -> tuple[list[Node], list[Node]]:
    positive = b.call(aten.gt.Scalar, _pick(i, n), 0)
    return [b.call(aten.where.self, positive, _pick(f, n), _pick(f, n // 2))], []


def _pure_steps() -> list[Step]:
    def binary(target: Any) -> Step:
        return lambda b, f, i, n: ([b.call(target, _pick(f, n), _pick(f, n // 7))], [])

    def unary(target: Any, *rest: Any) -> Step:
        return lambda b, f, i, n: ([b.call(target, _pick(f, n), *rest)], [])

    def integer(target: Any) -> Step:
        return lambda b, f, i, n: ([], [b.call(target, _pick(i, n), n // 5 % 3 - 1)])

    return [
        binary(aten.add.Tensor),
        binary(aten.mul.Tensor),
        unary(aten.neg.default),
        unary(aten.mul.Tensor, 1),
        unary(aten.add.Scalar, 0),
        integer(aten.add.Tensor),
        integer(aten.sub.Tensor),
        lambda b, f, i, n: ([_round_trip(b, _pick(f, n // 3), n)], []),
        lambda b, f, i, n: ([], [_round_trip(b, _pick(i, n // 3), n)]),
        lambda b, f, i, n: (
            [b.call(aten.where.self, b.call(aten.gt.Scalar, _pick(i, n), 0), _pick(f, n), _pick(f, n // 2))],
            [],
        ),
        lambda b, f, i, n: ([b.call(aten.to.dtype, _pick(i, n), torch.float64)], []),
        lambda b, f, i, n: ([b.call(aten.cat.default, [_pick(f, n)], 0)], []),
    ]


def _write(b: GraphBuilder, f: list[Node], i: list[Node], n: int) -> tuple[list[Node], list[Node]]:
    """x += y in place; the result is the same memory."""
    return [b.call(aten.add_.Tensor, _pick(f, n), _pick(f, n // 7))], []


def _loop(draw: st.DrawFn, b: GraphBuilder, f: list[Node], i: list[Node], depth: int, writes: bool) -> list[Node]:
    """A loop over rows: one carried value, one slice, two invariants, a stacked row."""
    pick = draw(st.integers(0, 999))
    carried = {"c": _pick(f, pick), "k": _pick(f, pick // 3)}
    invariant = {"p": _pick(f, pick // 5), "q": _pick(f, pick // 5 + draw(st.integers(0, 1))), "m": _pick(i, pick)}
    body = BodyBuilder(
        "layer", carried=carried, sliced={"s": _pick(f, pick // 11)}, invariant=invariant, keys=("verify",)
    )
    inner_f = [body["c"], body["k"], body["p"], body["q"]]
    inner_f.append(body.call(aten.add.Tensor, body["p"], body["s"]))
    _steps(draw, body, inner_f, [body["m"]], depth, writes, 6)
    results = [_pick(inner_f, draw(st.integers(0, 99))), body["k"] if draw(st.booleans()) else inner_f[-1]]
    rows = [body.call(aten.select.int, _pick(inner_f, draw(st.integers(0, 99))), 0, 1)]
    rows.append(draw(st.sampled_from([rows[0], body["s"]])))
    return body.close(b, 3, [*results, *rows], f"loop{depth}")


def _steps(draw: st.DrawFn, b: GraphBuilder, f: list[Node], i: list[Node], depth: int, writes: bool, most: int) -> None:
    steps = _pure_steps() + ([_write] * 3 if writes else [])
    for _ in range(draw(st.integers(1, most))):
        number = draw(st.integers(0, len(steps) + depth))
        if number < len(steps):
            new_f, new_i = steps[number](b, f, i, draw(st.integers(0, 60)))
            f.extend(new_f)
            i.extend(new_i)
        elif depth:
            f.extend(_loop(draw, b, f, i, depth - 1, writes))


@st.composite
def graphs(draw: st.DrawFn, *, writes: bool = False) -> GraphModule:
    """A module x, y f64[3,4], i, j i64[3,4] -> a few of its values; with loops two deep, and in-place writes."""
    b = GraphBuilder(("verify", "target"))
    f = [b.placeholder(name, fake(SHAPE, torch.float64)) for name in ("x", "y")]
    i = [b.placeholder(name, fake(SHAPE, torch.int64)) for name in ("i", "j")]
    _steps(draw, b, f, i, 2, writes, 12)
    chosen = draw(st.lists(st.sampled_from(f[-6:] + i[-2:]), min_size=1, max_size=4))
    return b.output(chosen)


def inputs(seed: int = 0) -> list[torch.Tensor]:
    """Values for the placeholders of `graphs`."""
    g = torch.Generator().manual_seed(seed)
    floats = [torch.randn(SHAPE, generator=g, dtype=torch.float64) for _ in range(2)]
    return [*floats, *(torch.randint(-2, 3, SHAPE, generator=g) for _ in range(2))]


def outcome(module: GraphModule) -> list[torch.Tensor]:
    """All that can be seen of a run: the outputs, and the inputs afterwards."""
    values = inputs()
    results = Interpreter(module).run(*values)
    return [*(item.clone() for item in results), *values]


def assert_same_outcome(before: GraphModule, after: GraphModule) -> None:
    """Equal bit by bit, what was written into the inputs included."""
    for left, right in zip(outcome(before), outcome(after), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)


def count(module: GraphModule, target: Any) -> int:
    """How many nodes call `target`, loop bodies included."""
    return sum(node.target is target for item in modules(module) for node in item.graph.nodes)
