"""cse: equal work is done once, invariant work leaves loops, and nothing crosses a write."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given
from torch.fx import GraphModule, symbolic_trace

from specc.ir.build import BodyBuilder, GraphBuilder, fake
from specc.ir.edit import bodies
from specc.ir.verifier import verify
from specc.passes.cse import cse_in_place, eliminate_common_subexpressions
from tests.ir_graphs import assert_same_outcome, count, graphs

aten = torch.ops.aten
F64 = torch.float64


@given(graphs())
def test_results_are_equal_bit_by_bit(module: GraphModule) -> None:
    made = eliminate_common_subexpressions(module)
    verify(made)
    assert_same_outcome(module, made)


@given(graphs(writes=True))
def test_results_and_written_inputs_are_equal_in_graphs_that_write(module: GraphModule) -> None:
    assert_same_outcome(module, eliminate_common_subexpressions(module))


@given(graphs())
def test_a_second_run_changes_nothing(module: GraphModule) -> None:
    assert not cse_in_place(eliminate_common_subexpressions(module))


def two(first: tuple[Any, ...], second: tuple[Any, ...]) -> GraphModule:
    """Two calls on x, summed."""
    b = GraphBuilder(("verify",))
    x = b.placeholder("x", fake((3, 4), F64))
    left = b.call(first[0], x, *first[1:])
    with b.spec("accept"):
        right = b.call(second[0], x, *second[1:])
    return b.output([b.call(aten.add.Tensor, left, right)])


def test_equal_nodes_are_merged_and_keep_both_spec_keys() -> None:
    made = eliminate_common_subexpressions(two((aten.mul.Tensor, 2), (aten.mul.Tensor, 2)))
    assert count(made, aten.mul.Tensor) == 1
    merged = next(node for node in made.graph.nodes if node.target is aten.mul.Tensor)
    assert set(merged.meta["keys"]) == {"verify", "accept"}
    assert merged.meta["passes"] == ("lower", "cse")


def test_an_int_and_a_float_argument_are_different() -> None:
    made = eliminate_common_subexpressions(two((aten.mul.Tensor, 2), (aten.mul.Tensor, 2.0)))
    assert count(made, aten.mul.Tensor) == 2


def test_reads_on_both_sides_of_a_write_stay_apart() -> None:
    b = GraphBuilder(("verify",))
    x = b.placeholder("x", fake((3,), F64))
    before = b.call(aten.mul.Tensor, x, 2)
    b.call(aten.add_.Tensor, x, 1.0)
    after = b.call(aten.mul.Tensor, x, 2)
    module = b.output([b.call(aten.sub.Tensor, after, before)])
    made = eliminate_common_subexpressions(module)
    assert torch.equal(made(torch.zeros(3, dtype=F64))[0], torch.full((3,), 2.0, dtype=F64))


def test_two_buffers_of_which_one_is_written_stay_two() -> None:
    b = GraphBuilder(("verify",))
    x = b.placeholder("x", fake((3,), F64))
    first, second = (b.call(aten.zeros_like.default, x) for _ in range(2))
    b.call(aten.add_.Tensor, b.call(aten.view.default, first, [3]), 1.0)
    module = b.output([b.call(aten.sub.Tensor, first, second)])
    assert torch.equal(eliminate_common_subexpressions(module)(torch.zeros(3, dtype=F64))[0], torch.ones(3, dtype=F64))


def test_two_outputs_stay_two_tensors() -> None:
    b = GraphBuilder(("verify",))
    x = b.placeholder("x", fake((3,), F64))
    module = b.output([b.call(aten.zeros_like.default, x), b.call(aten.zeros_like.default, x)])
    first, second = eliminate_common_subexpressions(module)(torch.zeros(3, dtype=F64))
    assert first.data_ptr() != second.data_ptr()


def test_random_draws_are_never_merged() -> None:
    b = GraphBuilder(("verify",))
    x = b.placeholder("x", fake((3,), F64))
    module = b.output([b.call(aten.sub.Tensor, b.call(aten.rand_like.default, x), b.call(aten.rand_like.default, x))])
    assert count(eliminate_common_subexpressions(module), aten.rand_like.default) == 2


def looped(*, write: bool) -> GraphModule:
    """A loop that computes neg(p) in every iteration, and takes p twice."""
    b = GraphBuilder(("verify",))
    x = b.placeholder("x", fake((3, 4), F64))
    p = b.placeholder("p", fake((4,), F64))
    body = BodyBuilder("layer", carried={}, sliced={"s": x}, invariant={"p": p, "again": p}, keys=("verify",))
    if write:
        body.call(aten.add_.Tensor, body["p"], 1.0)
    value = body.call(
        aten.mul.Tensor, body.call(aten.neg.default, body["p"]), body.call(aten.neg.default, body["again"])
    )
    row = body.call(aten.add.Tensor, value, body["s"])
    rows = body.close(b, 3, [row, row], "rows")
    return b.output([b.call(aten.add.Tensor, *rows)])


def test_invariant_work_leaves_the_loop_and_equal_operands_and_results_are_one() -> None:
    module = looped(write=False)
    made = eliminate_common_subexpressions(module)
    verify(made)
    _, body = next(bodies(made))
    assert [str(node.target) for node in body.graph.nodes if node.op == "call_function"] == ["aten.add.Tensor"]
    assert [count(made, target) for target in (aten.neg.default, aten.mul.Tensor)] == [1, 1]
    total = made.graph.output_node().args[0][0]  # type: ignore[index]
    assert total.args[0] is total.args[1]  # type: ignore[union-attr]
    values = torch.randn(3, 4, dtype=F64), torch.randn(4, dtype=F64)
    assert torch.equal(module(*values)[0], made(*values)[0])


def test_nothing_leaves_a_loop_that_writes() -> None:
    module = looped(write=True)
    made = eliminate_common_subexpressions(module)
    _, body = next(bodies(made))
    assert sum(node.target is aten.neg.default for node in body.graph.nodes) >= 1
    x = torch.randn(3, 4, dtype=F64)
    results = [graph(x, torch.ones(4, dtype=F64))[0] for graph in (module, made)]
    assert torch.equal(*results)


def test_a_users_untyped_function_passes_through() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        first = torch.relu(x)
        x.add_(1)
        return first + torch.relu(x)

    made = eliminate_common_subexpressions(symbolic_trace(function))
    assert torch.equal(made(torch.zeros(3)), torch.ones(3))
