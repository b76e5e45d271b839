"""Row moves of all layers in one call: the same results as the loops, whatever else stands in them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx import GraphModule, Node

from specc.backends.triton.layers import batch_layers
from specc.ir import ops
from specc.ir.build import BodyBuilder, GraphBuilder, fake
from specc.ir.edit import is_loop, modules
from specc.ir.interpreter import Interpreter

aten = torch.ops.aten
LAYERS, BATCH, CAPACITY, NODES, LONGEST = 3, 2, 6, 4, 3
CACHES, ROWS = ("c0", "c1", "c2"), ("r0", "r1", "w0")
SHAPES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(CACHES, (LAYERS, BATCH, CAPACITY, 2)),
    "w0": (LAYERS, BATCH, 2, 2),
    **dict.fromkeys(("r0", "r1"), (LAYERS, BATCH, NODES, 2)),
}
INTEGERS: dict[str, tuple[int, ...]] = {"path": (BATCH, LONGEST), "start": (BATCH,), "count": (BATCH,)}
KINDS = ("commit", "append", "append_path", "append_made", "window", "scale", "add_rows", "add_whole", "read")


def _step(body: BodyBuilder, kind: str, cache: str, other: str, seen: list[Node]) -> None:
    """One op of a body, or a few."""
    at = body[cache]
    if kind == "commit":
        body.call(ops.commit_path_, at, body["path"], body["start"], body["count"], True)
    elif kind == "append":
        body.call(ops.append_rows_, at, body[other], body["start"], body["count"])
    elif kind == "append_path":
        rows = body.call(aten.index.Tensor, body[other], [body.call(ops.batch_index, body["path"]), body["path"]])
        body.call(ops.append_rows_, at, rows, body["start"], body["count"])
    elif kind == "append_made":
        body.call(ops.append_rows_, at, body.call(aten.neg.default, body[other]), body["start"], body["count"])
    elif kind == "window":
        after = body.call(ops.conv_commit, body["w0"], body[other], body["path"], body["count"])
        body.call(aten.copy_.default, body["w0"], after)
    elif kind == "scale":
        body.call(aten.mul_.Scalar, at, 2.0)
    elif kind == "add_rows":
        body.call(aten.add_.Tensor, body[other], 1.0)
    elif kind == "add_whole":
        body.call(aten.add_.Tensor, at, body.call(aten.select.int, body["whole"], 0, 0))
    else:
        seen.append(body.call(aten.add.Tensor, at, 0.0))


def build(loops: list[list[tuple[str, str, str]]], between: tuple[str, str] = ("", "")) -> GraphModule:
    """Loops over layers, one behind the other, over the same tensors; results: what bodies read.

    `between` (kind, tensor): what stands behind each loop.
    """
    b = GraphBuilder(("commit",))
    held = {name: b.placeholder(name, fake(shape, torch.float64)) for name, shape in SHAPES.items()}
    numbers = {name: b.placeholder(name, fake(shape, torch.int64)) for name, shape in INTEGERS.items()}
    results: list[Node] = []
    for steps in loops:
        whole = {"whole": held["c1"]} if any(kind == "add_whole" for kind, _, _ in steps) else {}
        body = BodyBuilder("layer", carried={}, sliced=held, invariant=numbers | whole, keys=("commit",))
        seen: list[Node] = []
        for step in steps:
            _step(body, *step, seen)
        results += body.close(b, LAYERS, seen, "loop")
        kind, name = between
        if kind == "read":
            results.append(b.call(aten.add.Tensor, (held | numbers)[name], 0))
        elif kind == "clear":
            b.call(aten.mul_.Scalar, (held | numbers)[name], 0)
    return b.output(results)


def outcome(module: GraphModule, seed: int) -> list[torch.Tensor]:
    """Results, and all tensors afterwards."""
    made = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(shape, generator=made, dtype=torch.float64) for shape in SHAPES.values()]
    numbers = [torch.tensor([[0, 2, 3], [1, 2, 0]]), torch.tensor([1, 0]), torch.tensor([3, 2 * (seed % 2)])]
    return [*(item.clone() for item in Interpreter(module).run(*tensors, *numbers)), *tensors]


def calls(module: GraphModule) -> list[Any]:
    """The targets of all row ops, loops among them."""
    return [
        node.target
        for block in modules(module)
        for node in block.graph.nodes
        if is_loop(node) or str(node.target).startswith("specc.")
    ]


STEPS = st.tuples(st.sampled_from(KINDS), st.sampled_from(CACHES), st.sampled_from(("r0", "r1")))


@settings(max_examples=60, deadline=None)
@given(
    loops=st.lists(st.lists(STEPS, min_size=1, max_size=5), min_size=1, max_size=3),
    between=st.tuples(st.sampled_from(["", "read", "clear"]), st.sampled_from(["c0", "c1", "r0", "count", "start"])),
    seed=st.integers(0, 3),
)
def test_nothing_but_the_number_of_calls_changes(
    loops: list[list[tuple[str, str, str]]], between: tuple[str, str], seed: int
) -> None:
    module = build(loops, between)
    made, _ = batch_layers(module)
    for left, right in zip(outcome(module, seed), outcome(made, seed), strict=True):
        assert torch.equal(left, right)


def test_loops_that_only_move_rows_become_one_call_for_each_kind() -> None:
    keys, values = [("commit", "c0", "r0")], [("commit", "c1", "r0")]
    made, notes = batch_layers(build([keys, values]))
    assert calls(made) == [ops.commit_path_layers_]
    appends = [("append_path", f"c{turn}", "r0") for turn in range(3)]
    made, more = batch_layers(build([appends, [("window", "c0", "r1")]]))
    assert calls(made) == [ops.append_path_layers_, ops.conv_commit_layers_]
    assert notes == more == []


@pytest.mark.parametrize("between", [("read", "c1"), ("clear", "count"), ("clear", "c1")])
def test_a_call_is_not_moved_across_what_could_notice(between: tuple[str, str]) -> None:
    module = build([[("commit", "c0", "r0")], [("commit", "c1", "r0")]], between)
    made, _ = batch_layers(module)
    assert calls(made) == [ops.commit_path_layers_] * 2
    for left, right in zip(outcome(module, 1), outcome(made, 1), strict=True):
        assert torch.equal(left, right)


def test_a_compaction_leaves_a_loop_that_stays() -> None:
    made, notes = batch_layers(build([[("commit", "c0", "r0"), ("append_made", "c0", "r1"), ("read", "c0", "r0")]]))
    assert [name for name in calls(made) if name is ops.commit_path_layers_] == [ops.commit_path_layers_]
    assert any(is_loop(node) for node in made.graph.nodes)
    assert len(notes) == 1
    assert "is not a layer of a stacked tensor" in notes[0]


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ([("scale", "c0", "r0"), ("commit", "c0", "r0")], "touches `c0` before"),
        ([("add_rows", "c0", "r0"), ("append", "c1", "r0")], "touches `r0` before"),
        ([("add_whole", "c0", "r0"), ("commit", "c1", "r0")], "reads all of `c1`"),
    ],
)
def test_what_must_stay_stays_with_a_reason(steps: list[tuple[str, str, str]], reason: str) -> None:
    made, notes = batch_layers(build([steps]))
    assert ops.commit_path_layers_ not in calls(made)
    assert len(notes) == 1
    assert reason in notes[0]
