"""Interval analysis on graphs: no observed value lies outside, and known cases are as narrow as they should be."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.fx import GraphModule, Node, symbolic_trace

from specc.ir import ops
from specc.ir.build import BodyBuilder, GraphBuilder, fake, output_values
from specc.ir.dims import BATCH, CHUNK
from specc.ir.interpreter import Event, Interpreter
from specc.ir.op import REGISTRY, info
from specc.ir.port import Port, ValueRange
from specc.ir.ranges import Ranges, analyse
from specc.ir.ranges.interval import Interval, limits
from specc.ir.ranges.rules import RULES

aten = torch.ops.aten
SHAPE = (3, 4)
INT = torch.int64


def assert_sound(module: GraphModule, ranges: Ranges, inputs: list[torch.Tensor]) -> None:
    """Run the module; every integer value of every node lies in the node's interval."""

    def check(event: Event) -> None:
        value = event.value
        if isinstance(value, torch.Tensor) and not value.dtype.is_floating_point and value.numel():
            seen = (int(value.min()), int(value.max()))
        elif isinstance(value, int):
            seen = (value, value)
        else:
            return
        held = ranges.of(event.node)
        low, high = held.low.constant, held.high.constant
        assert low is None or low <= seen[0], f"{event.node.format_node()}: {seen} below {held}"
        assert high is None or seen[1] <= high, f"{event.node.format_node()}: {seen} above {held}"

    Interpreter(module, hooks=[check]).run(*inputs)


def _spread(b: GraphBuilder, node: Node) -> Node:
    return b.call(aten.expand.default, node, list(SHAPE))


def _safe(b: GraphBuilder, index: Node, size: int) -> Node:
    return b.call(aten.remainder.Scalar, index, size)


def _through(b: GraphBuilder, x: Node, dtype: torch.dtype) -> Node:
    """Cast to another dtype and back."""
    return b.call(aten._to_copy.default, b.call(aten._to_copy.default, x, dtype=dtype), dtype=INT)


def _condition(b: GraphBuilder, x: Node, y: Node, number: int) -> Node:
    compare = (aten.lt, aten.le, aten.gt, aten.ge, aten.eq, aten.ne)[number % 6]
    one = b.call(compare.Tensor, x, y)
    if number % 4 == 1:
        return b.call(aten.logical_not.default, one)
    if number % 4 >= 2:
        other = b.call(aten.ge.Scalar, x, number - 6)
        return b.call((aten.logical_and, aten.logical_or)[number % 2].default, one, other)
    return one


# Every maker takes two [3,4] integer tensors and a number in [0, 12) and returns another [3,4] integer tensor.
MAKERS: dict[str, Callable[[GraphBuilder, Node, Node, int], Node]] = {
    "add": lambda b, x, y, n: b.call(aten.add.Tensor, x, y),
    "add_scaled": lambda b, x, y, n: b.call(aten.add.Tensor, x, y, alpha=n - 6),
    "sub": lambda b, x, y, n: b.call(aten.sub.Tensor, x, y),
    "rsub": lambda b, x, y, n: b.call(aten.rsub.Scalar, x, n),
    "mul": lambda b, x, y, n: b.call(aten.mul.Tensor, x, y),
    "mul_scalar": lambda b, x, y, n: b.call(aten.mul.Tensor, x, n - 6),
    "neg": lambda b, x, y, n: b.call(aten.neg.default, x),
    "abs": lambda b, x, y, n: b.call(aten.abs.default, x),
    "not": lambda b, x, y, n: b.call(aten.bitwise_not.default, x),
    "and": lambda b, x, y, n: b.call(aten.bitwise_and.Tensor, x, y),
    "floor": lambda b, x, y, n: b.call(aten.floor_divide.default, x, n - 6 or 1),
    "trunc": lambda b, x, y, n: b.call(aten.div.Tensor_mode, x, n - 6 or 1, rounding_mode="trunc"),
    "remainder": lambda b, x, y, n: b.call(aten.remainder.Scalar, x, n - 6 or 1),
    "minimum": lambda b, x, y, n: b.call(aten.minimum.default, x, y),
    "maximum": lambda b, x, y, n: b.call(aten.maximum.default, x, y),
    "clamp": lambda b, x, y, n: b.call(aten.clamp.default, x, n - 6, n),
    "where": lambda b, x, y, n: b.call(aten.where.self, _condition(b, x, y, n), x, y),
    "where_wraps": lambda b, x, y, n: b.call(
        aten.where.self, b.call(aten.lt.Scalar, x, 0), b.call(aten.add.Tensor, x, n), x
    ),
    "masked_fill": lambda b, x, y, n: b.call(aten.masked_fill.Scalar, x, _condition(b, x, y, n), n - 6),
    "sum": lambda b, x, y, n: _spread(b, b.call(aten.sum.dim_IntList, x, [n % 2], True)),
    "count": lambda b, x, y, n: _spread(b, b.call(aten.sum.dim_IntList, _condition(b, x, y, n), [n % 2], True)),
    "cumsum": lambda b, x, y, n: b.call(aten.cumsum.default, x, n % 2),
    "amax": lambda b, x, y, n: _spread(b, b.call(aten.amax.default, x, [n % 2], True)),
    "argmax": lambda b, x, y, n: _spread(b, b.call(aten.argmax.default, x, n % 2, True)),
    "argsort": lambda b, x, y, n: b.item(b.call(aten.sort.default, x, n % 2), n % 2),
    "topk": lambda b, x, y, n: _spread(b, b.item(b.call(aten.topk.default, x, 1, 1), n % 2)),
    "flip": lambda b, x, y, n: b.call(aten.flip.default, x, [n % 2]),
    "narrow_cat": lambda b, x, y, n: b.call(
        aten.cat.default, [b.call(aten.narrow.default, x, 1, 0, 1), b.call(aten.narrow.default, y, 1, 1, 3)], 1
    ),
    "stack": lambda b, x, y, n: b.call(aten.select.int, b.call(aten.stack.default, [x, y]), 0, n % 2),
    "int32": lambda b, x, y, n: _through(b, x, torch.int32),
    "uint8": lambda b, x, y, n: _through(b, x, torch.uint8),
    "bool": lambda b, x, y, n: _through(b, x, torch.bool),
    "gather": lambda b, x, y, n: b.call(aten.gather.default, x, 0, _safe(b, y, 3)),
    "index": lambda b, x, y, n: b.call(aten.select.int, b.call(aten.index.Tensor, x, [_safe(b, y, 3)]), 1, n % 4),
    "index_put": lambda b, x, y, n: b.call(
        aten.index_put.default, x, [_safe(b, b.call(aten.select.int, y, 1, 0), 3)], y
    ),
    "scatter": lambda b, x, y, n: b.call(aten.scatter.src, x, 1, _safe(b, y, 4), y),
    "scatter_add": lambda b, x, y, n: b.call(aten.scatter_add.default, x, 1, _safe(b, y, 4), y),
    "select_scatter": lambda b, x, y, n: b.call(
        aten.select_scatter.default, x, b.call(aten.select.int, y, 0, 1), 0, n % 3
    ),
    "slice_scatter": lambda b, x, y, n: b.call(
        aten.slice_scatter.default, x, b.call(aten.narrow.default, y, 1, 0, 2), 1, 2, 4
    ),
    "tril": lambda b, x, y, n: b.call(aten.tril.default, x),
    "pad": lambda b, x, y, n: b.call(
        aten.constant_pad_nd.default, b.call(aten.narrow.default, x, 1, 0, 3), [1, 0], n - 6
    ),
    "arange": lambda b, x, y, n: b.call(aten.add.Tensor, x, b.call(aten.arange.start_step, n, n - 8, -2)),
    "iota": lambda b, x, y, n: _spread(b, b.call(ops.iota, x, 4)),
    "batch_index": lambda b, x, y, n: _spread(b, b.call(ops.batch_index, x)),
    "full_rows": lambda b, x, y, n: b.call(ops.full_rows, x, [-1, 4], n - 6, INT),
}
STEPS = st.lists(
    st.tuples(st.sampled_from(sorted(MAKERS)), st.integers(0, 99), st.integers(0, 99), st.integers(0, 11)),
    min_size=1,
    max_size=8,
)
Step = tuple[str, int, int, int]


def _make(b: GraphBuilder, pool: list[Node], steps: list[Step]) -> None:
    for name, first, second, number in steps:
        pool.append(MAKERS[name](b, pool[first % len(pool)], pool[second % len(pool)], number))


@st.composite
def declared_inputs(draw: st.DrawFn) -> tuple[tuple[int, int], torch.Tensor]:
    low = draw(st.one_of(st.integers(-9, 9), st.sampled_from([-(2**62), 2**62, -1, 0])))
    high = low + draw(st.integers(0, 9))
    values = draw(st.lists(st.integers(low, high), min_size=12, max_size=12))
    return (low, high), torch.tensor(values).reshape(SHAPE)


@given(declared_inputs(), declared_inputs(), STEPS)
def test_no_value_lies_outside_its_interval(x: Any, y: Any, steps: list[Step]) -> None:
    b = GraphBuilder()
    pool = [b.placeholder("x", fake(SHAPE, INT)), b.placeholder("y", fake(SHAPE, INT))]
    _make(b, pool, steps)
    module = b.output(pool)
    assert_sound(module, analyse(module, {"x": x[0], "y": y[0]}), [x[1], y[1]])


@given(declared_inputs(), declared_inputs(), STEPS, STEPS, st.sampled_from([1, 2, 3, 5, 70, 140]))
def test_no_value_in_a_loop_lies_outside_its_interval(
    x: Any, y: Any, steps: list[Step], after: list[Step], trip: int
) -> None:
    """Carried values that settle, that are followed, and (above 128 trips) that are widened."""
    b = GraphBuilder()
    first, second = b.placeholder("x", fake(SHAPE, INT)), b.placeholder("y", fake(SHAPE, INT))
    body = BodyBuilder("step", carried={"x": first, "y": second}, sliced={}, invariant={"x0": first})
    counted = body.call(aten.full_like.default, body["x"], body.index)
    inside = [body["x"], body["y"], body["x0"], counted]
    _make(body, inside, steps)
    results = body.close(b, trip, [inside[-1], inside[-2], inside[-1]], "steps")
    pool = [*results[:2], b.call(aten.select.int, results[2], 0, 0)]
    _make(b, pool, after)
    module = b.output(pool)
    assert_sound(module, analyse(module, {"x": x[0], "y": y[0]}), [x[1], y[1]])


def interval(make: Callable[..., Node], ranges: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> Interval:
    b = GraphBuilder()
    nodes = [b.placeholder(name, fake(shape, INT)) for name, shape in shapes.items()]
    module = b.output([make(b, *nodes)])
    output = next(node for node in reversed(module.graph.nodes) if node.op == "output")
    return analyse(module, ranges).of(output.args[0][0])


def _wrap(b: GraphBuilder, i: Node) -> Node:
    return b.call(aten.where.self, b.call(aten.lt.Scalar, i, 0), b.call(aten.add.Tensor, i, 5), i)


def _guarded(b: GraphBuilder, i: Node) -> Node:
    inside = b.call(aten.logical_and.default, b.call(aten.ge.Scalar, i, 0), b.call(aten.lt.Scalar, i, 8))
    return b.call(aten.where.self, inside, i, b.call(aten.zeros_like.default, i))


def _unguarded(b: GraphBuilder, i: Node) -> Node:
    outside = b.call(aten.logical_or.default, b.call(aten.lt.Scalar, i, 0), b.call(aten.gt.Scalar, i, 7))
    return b.call(aten.masked_fill.Scalar, i, outside, 3)


def _flat(b: GraphBuilder, i: Node) -> Node:
    rows = b.call(ops.batch_index, i)
    return b.call(aten.add.Tensor, b.call(aten.mul.Tensor, rows, 7), b.call(aten.remainder.Scalar, i, 7))


def _looked_up(b: GraphBuilder, i: Node) -> Node:
    table = b.call(ops.int_table, i, [4, -1, 2], [3])
    return b.call(aten.index.Tensor, table, [i])


CASES: dict[str, tuple[Callable[..., Node], dict[str, Any], dict[str, tuple[int, ...]], str]] = {
    "wrapped index": (_wrap, {"i": (-1, 4)}, {"i": (4,)}, "[0, 4]"),
    "wrapped, any negative": (_wrap, {"i": (-5, 4)}, {"i": (4,)}, "[0, 4]"),
    "guarded by and": (_guarded, {}, {"i": (4,)}, "[0, 7]"),
    "guarded by or": (_unguarded, {}, {"i": (4,)}, "[0, 7]"),
    "clamped": (lambda b, i: b.call(aten.clamp.default, i, 0, 6), {}, {"i": (4,)}, "[0, 6]"),
    "last row": (lambda b, i: b.call(aten.sub.Tensor, i, 1), {"i": (0, CHUNK)}, {"i": (BATCH,)}, "[-1, T - 1]"),
    "values of a table": (_looked_up, {"i": (0, 2)}, {"i": (4,)}, "[-1, 4]"),
    "flattened rows": (_flat, {}, {"i": (BATCH, 3)}, "[0, 7*B - 1]"),
    "counted mask": (
        lambda b, i: b.call(aten.sum.dim_IntList, b.call(aten.ge.Scalar, i, 0), [1]),
        {},
        {"i": (BATCH, 6)},
        "[0, 6]",
    ),
    "running count": (
        lambda b, i: b.call(aten.cumsum.default, b.call(aten.ge.Scalar, i, 0), 1),
        {},
        {"i": (BATCH, 6)},
        "[0, 6]",
    ),
    "running sum of positive numbers": (
        lambda b, i: b.call(aten.cumsum.default, i, 1),
        {"i": (2, 5)},
        {"i": (BATCH, 6)},
        "[2, 30]",
    ),
    "meaning through a view": (
        lambda b, i: b.call(aten.unsqueeze.default, i, 1),
        {"i": ValueRange(-1, 7, "pad")},
        {"i": (4,)},
        "[-1, 7] (-1: pad)",
    ),
    "argmax": (lambda b, i: b.call(aten.argmax.default, i, 1), {}, {"i": (BATCH, CHUNK)}, "[0, T - 1]"),
    "a root among zeros": (lambda b, i: b.call(ops.root_table, i, 3, -1), {"i": (2, 5)}, {"i": (2, BATCH)}, "[0, 5]"),
    "undecided branch": (
        lambda b, i: b.call(aten.where.self, b.call(aten.ge.Scalar, i, 0), i, b.call(aten.neg.default, i)),
        {"i": (2, 5)},
        {"i": (4,)},
        "[2, 5]",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_known_cases_are_as_narrow_as_they_should_be(name: str) -> None:
    make, ranges, shapes, expected = CASES[name]
    assert str(interval(make, ranges, shapes)) == expected


def _loop(trip: int | None, step: Callable[[BodyBuilder], Node], start: int, shape: tuple[int, ...] = (4,)) -> Interval:
    b = GraphBuilder()
    like = b.placeholder("like", fake((*shape, CHUNK), INT))
    first = b.call(ops.full_rows, like, [-1], start, INT)
    body = BodyBuilder("token", carried={"x": first}, sliced={"part": like}, invariant={})
    (result,) = body.close(b, trip, [step(body)], "tokens")
    return analyse(b.output([result])).of(result)


def test_a_counter_is_followed_to_its_last_value() -> None:
    assert str(_loop(9, lambda b: b.call(aten.add.Tensor, b["x"], 1), -1)) == "[8, 8]"


def test_a_value_that_settles_needs_no_trip_count() -> None:
    held = _loop(
        None, lambda b: b.call(aten.maximum.default, b["x"], b.call(aten.full_like.default, b["x"], b.index)), 3
    )
    assert str(held) == "[3, T + 3]"


def test_a_followed_loop_types_its_body_for_the_last_iteration_too() -> None:
    b = GraphBuilder()
    like = b.placeholder("like", fake((4, CHUNK), INT))
    body = BodyBuilder("token", carried={"x": b.call(ops.full_rows, like, [-1], -1, INT)}, sliced={}, invariant={})
    more = body.call(aten.add.Tensor, body["x"], 1, name="more")
    module = b.output(body.close(b, 9, [more], "tokens"))
    found = analyse(module)
    assert str(found.of(body["x"])) == "[-1, 7]"
    assert str(found.of(more)) == "[0, 8]"


def test_growth_that_a_clamp_stops_is_widened_to_the_clamp() -> None:
    held = _loop(None, lambda b: b.call(aten.clamp_max.default, b.call(aten.add.Tensor, b["x"], 1), 50), 0)
    assert str(held) == "[1, 50]"


def test_growth_that_nothing_stops_may_overflow() -> None:
    held = _loop(None, lambda b: b.call(aten.add.Tensor, b["x"], 1), 0)
    assert held == limits(INT)


def test_doubling_in_a_long_loop_may_overflow() -> None:
    held = _loop(70, lambda b: b.call(aten.mul.Tensor, b["x"], 2), 1)
    assert held.low.constant is not None
    assert held.low.constant <= 0, "2 ** 70 wraps around to 0"


def test_a_loop_index_is_below_its_trip_count() -> None:
    held = _loop(6, lambda b: b.call(aten.full_like.default, b["x"], b.index), 0)
    assert str(held) == "[0, 5]"


def test_ranges_are_declared_by_port_too() -> None:
    b = GraphBuilder()
    node = b.placeholder("length_1", fake((BATCH,), INT), Port("slot", "length"))
    module = b.output([node])
    assert str(analyse(module, {"slot:length": ValueRange(0, 64)}).of(node)) == "[0, 64]"


def test_constants_of_a_module_are_read() -> None:
    class Table(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("rows", torch.tensor([[0, 2, -1]]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.rows + x

    module = symbolic_trace(Table())
    node = next(node for node in module.graph.nodes if node.op == "get_attr")
    assert str(analyse(module).of(node)) == "[-1, 2]"


def test_an_op_says_by_metadata_what_its_results_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    def ranges(values: dict[str, Any], known: dict[str, tuple[int, int]]) -> list[tuple[int, int] | None]:
        return [(0, values["scores"].shape[1] + known["k"][1]), None]

    declared = info(ops.stable_topk)
    assert declared is not None
    monkeypatch.setitem(REGISTRY, ops.stable_topk, replace(declared, meta={"ranges": ranges}))
    monkeypatch.delitem(RULES, "specc::stable_topk")
    b = GraphBuilder()
    x = b.placeholder("x", fake((BATCH, 6), INT))
    both = b.call(ops.stable_topk, x, 2)
    first, second = b.item(both, 0), b.item(both, 1)
    found = analyse(b.output([first, second]))
    assert str(found.of(first)) == "[0, 8]"
    assert found.of(second) == limits(INT)


def written_ops(nodes: int, size: int) -> GraphModule:
    """Ops that only a backend writes, and their integer results."""
    b = GraphBuilder(("draft",))
    logits = b.placeholder("logits", fake((2, nodes, size), torch.float32))
    shapes = {"history": (2, 9), "length": (2,), "root": (2,), "tokens": (2, nodes), "parent": (2, nodes), "rng": (2,)}
    x = {name: b.placeholder(name, fake(shape, INT)) for name, shape in shapes.items()}
    valid = b.placeholder("valid", fake((2, nodes), torch.bool))
    looked = b.call(ops.lookup_tree, x["history"], x["length"], x["root"], nodes, 3, 2, 1, 2)
    tree = (x["tokens"], x["parent"], valid)
    greedy = b.call(ops.greedy_tree, b.call(ops.argmax_parts, logits, 4), *tree, nodes)
    walked = b.call(ops.reject_tree, logits, None, *tree, x["rng"], x["length"], nodes, 0.9, 0)
    drawn = b.call(ops.draw_children, logits, x["rng"], x["tokens"], x["tokens"], 2, 0.9)
    best = b.call(ops.topk_log_probs, logits, 2)
    items = [b.item(made, place) for made, count in ((looked, 3), (greedy, 4), (walked, 4)) for place in range(count)]
    items += [b.item(drawn, 0), b.item(best, 1), b.call(ops.vocabulary_argmax, logits)]
    return b.output(items)


@given(seed=st.integers(0, 10**6), nodes=st.integers(2, 6), size=st.integers(2, 9))
def test_results_of_written_ops_lie_in_their_intervals(seed: int, nodes: int, size: int) -> None:
    module = written_ops(nodes, size)
    made = torch.Generator().manual_seed(seed)
    parent = torch.tensor([[-1, *(int(torch.randint(0, i, (1,), generator=made)) for i in range(1, nodes))]] * 2)
    length, tokens = (torch.randint(0, high, shape, generator=made) for high, shape in ((9, (2,)), (size, (2, nodes))))
    text, root = (torch.randint(-3, 4, shape, generator=made) for shape in ((2, 9), (2,)))
    rows = [text, length, root, tokens, parent, length]
    logits, valid = torch.randn(2, nodes, size, generator=made), torch.rand(2, nodes, generator=made) < 0.9
    assert_sound(module, analyse(module), [logits, *rows, valid])


def test_intervals_of_written_ops_are_narrow() -> None:
    module = written_ops(5, 8)
    ranges = analyse(module)
    bounds = [(held.low.constant, held.high.constant) for held in map(ranges.of, output_values(module))]
    assert bounds[1:3] == [(-1, 5), (0, 1)]
    assert bounds[3:7] == [(0, 4), (0, 4), (0, 4), (-(2**31), 2**31 - 1)]
    assert bounds[7:] == [(0, 4), (0, 4), (0, 4), *[(0, 7)] * 4]


def test_numbers_of_python_are_integers_too() -> None:
    b = GraphBuilder()
    x = b.placeholder("x", fake((4,), INT))
    body = BodyBuilder("step", carried={"x": x}, sliced={}, invariant={})
    number = body.call(operator.add, body.index, 1, name="node")
    body.close(b, 5, [body.call(aten.full_like.default, body["x"], number)], "steps")
    module = b.output([x])
    assert str(analyse(module).of(number)) == "[1, 5]"
