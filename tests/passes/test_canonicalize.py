"""canonicalize: each rule fires where it is exact, changes no result, and reaches a fixed point."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from hypothesis import given
from torch.fx import GraphModule, Node, symbolic_trace

from specc.ir.build import BodyBuilder, GraphBuilder, fake
from specc.ir.edit import bodies, loop_parts
from specc.ir.verifier import verify
from specc.passes.canonicalize import canonicalize, canonicalize_in_place
from tests.ir_graphs import assert_same_outcome, count, graphs

aten = torch.ops.aten


def chain(*steps: tuple[Any, ...], dtype: torch.dtype = torch.float64) -> GraphModule:
    """x [3,4] through the steps."""
    b = GraphBuilder(("verify",))
    x = b.placeholder("x", fake((3, 4), dtype))
    for target, *rest in steps:
        x = b.call(target, x, *rest)
    return b.output([x])


def calls(module: GraphModule) -> list[str]:
    return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]


@given(graphs())
def test_results_are_equal_bit_by_bit(module: GraphModule) -> None:
    made = canonicalize(module)
    verify(made)
    assert_same_outcome(module, made)


@given(graphs(writes=True))
def test_results_and_written_inputs_are_equal_in_graphs_that_write(module: GraphModule) -> None:
    assert_same_outcome(module, canonicalize(module))


@given(graphs())
def test_a_second_run_changes_nothing(module: GraphModule) -> None:
    assert not canonicalize_in_place(canonicalize(module))


@pytest.mark.parametrize(
    "steps",
    [
        [(aten.flatten.using_ints, 0, 1), (aten.unflatten.int, 0, [3, 4])],
        [(aten.unsqueeze.default, 1), (aten.squeeze.dim, 1)],
        [(aten.unsqueeze.default, 0), (aten.unsqueeze.default, 0), (aten.squeeze.dim, 0), (aten.squeeze.dim, 0)],
        [(aten.squeeze.dim, 0)],
        [(aten.view.default, [3, 4])],
        [(aten.expand.default, [3, 4])],
        [(aten.narrow.default, 1, 0, 4)],
        [(aten.slice.Tensor, 0, 0, 2**63 - 1)],
        [(aten.clone.default,)],
        [(aten.contiguous.default,)],
        [(aten.to.dtype, torch.float64)],
        [(aten.transpose.int, 0, 1), (aten.transpose.int, -1, 0)],
        [(aten.mul.Tensor, 1)],
        [(aten.mul.Tensor, 1.0)],
    ],
)
def test_what_does_nothing_goes(steps: list[tuple[Any, ...]]) -> None:
    assert calls(canonicalize(chain(*steps))) == []


@pytest.mark.parametrize(
    "steps",
    [
        [(aten.narrow.default, 1, 0, 3)],
        [(aten.to.dtype, torch.float32)],
        [(aten.transpose.int, 0, 1), (aten.neg.default,), (aten.transpose.int, 0, 1)],
        [(aten.mul.Tensor, 2)],
        [(aten.add.Tensor, 0)],
        [(aten.div.Tensor, 1)],
    ],
)
def test_what_does_something_stays(steps: list[tuple[Any, ...]]) -> None:
    assert len(calls(canonicalize(chain(*steps)))) == len(steps)


def test_adding_zero_to_floats_stays_because_it_turns_minus_zero_into_zero() -> None:
    module = chain((aten.add.Tensor, 0))
    assert calls(canonicalize(module)) == ["aten.add.Tensor"]


def test_transposes_of_different_dims_stay() -> None:
    b = GraphBuilder(("verify",))
    x = b.placeholder("x", fake((2, 2, 2), torch.float64))
    y = b.call(aten.transpose.int, b.call(aten.transpose.int, x, 0, 1), 1, 2)
    z = b.call(aten.transpose.int, b.call(aten.transpose.int, x, 0, 2), -1, -3)
    assert calls(canonicalize(b.output([y, z]))) == ["aten.transpose.int"] * 2


def test_integer_sums_are_collected() -> None:
    module = chain((aten.add.Tensor, 3), (aten.sub.Tensor, 1), (aten.add.Tensor, 5), dtype=torch.int64)
    made = canonicalize(module)
    assert calls(made) == ["aten.add.Tensor"]
    assert next(node for node in made.graph.nodes if node.op == "call_function").args[1] == 7
    assert calls(canonicalize(chain((aten.add.Tensor, 3), (aten.sub.Tensor, 3), dtype=torch.int64))) == []


def test_a_transposed_copy_keeps_its_layout() -> None:
    """contiguous() after transpose has other strides than its operand, so it is not a no-op."""
    module = chain((aten.transpose.int, 0, 1), (aten.contiguous.default,))
    assert calls(canonicalize(module)) == ["aten.transpose.int", "aten.contiguous.default"]


def test_reshapes_with_an_absolute_shape_go_straight_from_the_source() -> None:
    module = chain((aten.reshape.default, [2, 6]), (aten.flatten.using_ints, 0, 1), (aten.reshape.default, [6, 2]))
    assert calls(canonicalize(module)) == ["aten.reshape.default"]


def test_copies_stay_in_a_graph_that_writes() -> None:
    b = GraphBuilder(("verify",))
    x = b.placeholder("x", fake((3, 4), torch.float64))
    copy = b.call(aten.clone.default, x)
    b.call(aten.add_.Tensor, x, 1.0)
    module = b.output([copy])
    made = canonicalize(module)
    assert count(made, aten.clone.default) == 1
    zeros = torch.zeros(3, 4, dtype=torch.float64)
    assert torch.equal(made(zeros.clone())[0], zeros)


def looped(value: int) -> GraphModule:
    """A loop with a constant operand, a carried value that never changes, and arithmetic on the index."""
    b = GraphBuilder(("verify",))
    x = b.placeholder("x", fake((3, 4), torch.float64))
    y = b.placeholder("y", fake((4,), torch.float64))
    body = BodyBuilder("layer", carried={"c": x, "k": y}, sliced={"s": x}, invariant={}, keys=("verify",))
    offset = body.placeholder("offset", 0)
    total = body.call(operator.add, body.call(operator.mul, offset, 2), 1)
    row = body.call(aten.add.Tensor, body["s"], body["k"])
    moved = body.call(aten.add.Tensor, body["c"], body.call(aten.full_like.default, row, total))
    module = body.output([moved, body["k"], row])
    carried, sliced, _ = body.outer
    constant: Any = value
    out = b.loop("layer", module, trip=3, carried=carried, sliced=sliced, invariant=[constant], name="rows")
    return b.output(out)


def test_constants_enter_loops_and_fold_there() -> None:
    module = looped(20)
    made = canonicalize(module)
    _, body = next(bodies(made))
    fill = next(node for node in body.graph.nodes if node.target is aten.full_like.default)
    assert fill.args[1] == 41
    values = torch.randn(3, 4, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    for left, right in zip(module(*values), made(*values), strict=True):
        assert torch.equal(left, right)


def test_a_carried_value_that_never_changes_is_read_from_outside() -> None:
    made = canonicalize(looped(1))
    node, body = next(bodies(made))
    parts = loop_parts(node)
    row = next(
        item for item in body.graph.nodes if item.target is aten.add.Tensor and item.args[0] is parts.sliced_inside[0]
    )
    assert row.args[1] in parts.invariant_inside
    output = made.graph.output_node().args[0]
    assert isinstance(output, tuple)
    assert isinstance(output[1], Node)
    assert output[1].op == "placeholder"
    verify(made)


def test_a_users_untyped_function_passes_through() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.add(x.view(-1), 1).clone()

    module = symbolic_trace(function)
    x = torch.randn(2, 3)
    assert torch.equal(canonicalize(module)(x), function(x))


def test_exported_functions_lose_their_no_ops() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.unsqueeze(0).squeeze(0) + x

    module = torch.export.export(Model(), (torch.randn(2, 3),)).module(check_guards=False)
    assert isinstance(module, GraphModule)
    made = canonicalize(module)
    assert count(made, aten.unsqueeze.default) == 0
    assert torch.equal(made(torch.ones(2, 3)), torch.full((2, 3), 2.0))


def rejoined(pieces: list[int], dim: int = -1, split_dim: int = -1) -> GraphModule:
    """cat of these parts of x [3,4] split into 1, 2 and 1 columns."""
    b = GraphBuilder(("verify",))
    x = b.placeholder("x", fake((3, 4), torch.float64))
    sizes = [1, 2, 1] if split_dim in (-1, 1) else [1, 1, 1]
    parts = b.call(aten.split_with_sizes.default, x, sizes, split_dim)
    return b.output([b.call(aten.cat.default, [b.item(parts, place) for place in pieces], dim)])


@pytest.mark.parametrize("pieces", [[0, 1], [1, 2], [0, 1, 2]])
def test_neighbours_of_a_split_that_are_joined_again_are_a_narrow(pieces: list[int]) -> None:
    module = rejoined(pieces)
    made = canonicalize(module)
    assert calls(made) == ([] if len(pieces) == 3 else ["aten.narrow.default"])
    verify(made)
    assert_same_outcome(module, made)


@pytest.mark.parametrize(
    "module", [rejoined([1, 0]), rejoined([0, 2]), rejoined([0, 0]), rejoined([0, 1], 1, 0), rejoined([2, 1, 0])]
)
def test_other_joins_of_parts_stay(module: GraphModule) -> None:
    made = canonicalize(module)
    assert "aten.cat.default" in calls(made)
    assert_same_outcome(module, made)


def test_a_sum_that_decides_a_case_keeps_its_form() -> None:
    b = GraphBuilder(("verify",))
    x = b.placeholder("x", fake((3,), torch.int64))
    less = b.call(aten.sub.Tensor, x, 1)
    wrapped = b.call(aten.where.self, b.call(aten.lt.Scalar, less, 0), b.call(aten.add.Tensor, less, 4), less)
    module = b.output([wrapped])
    made = canonicalize(module)
    assert [target for target in calls(made) if "add" in target or "sub" in target] == [
        "aten.sub.Tensor",
        "aten.add.Tensor",
    ]
    (term,) = [node for node in made.graph.nodes if node.target is aten.add.Tensor]
    assert term.args[1] == 4
