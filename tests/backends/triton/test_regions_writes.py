"""Kernels that write: caches, slots, whole loops; what orders they keep, and that one node is one line."""

from __future__ import annotations

import difflib

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch.fx import GraphModule, Node

from specc.backends.triton.regions.planning import plan
from specc.backends.triton.regions.saved import saved_reads
from specc.ir import ops
from specc.ir.build import BodyBuilder, GraphBuilder, fake
from specc.ir.dims import BATCH
from tests.backends.triton.regions_support import both, outside, printed, region_calls

aten = torch.ops.aten
SETTINGS = settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
)


def equal(module: GraphModule, seed: int) -> None:
    """Outputs and written inputs of the regions are those of the nodes."""
    wanted, got = both(module, seed)
    for one, other in zip(wanted, got, strict=True):
        assert torch.equal(one, other)


def integers(b: GraphBuilder, name: str, *shape: int) -> Node:
    return b.placeholder(name, fake((BATCH, *shape), torch.int64))


def within(b: GraphBuilder, x: Node, size: int) -> Node:
    """An index below `size`."""
    return b.call(aten.remainder.Scalar, x, size)


def bookkeeping() -> GraphModule:
    """Slots that take new values, one of which another writes with its old value."""
    b = GraphBuilder()
    length, root, text, count = (integers(b, name) for name in ("length", "root", "pending", "count"))
    history, tokens = integers(b, "history", 20), integers(b, "tokens", 3)
    taken = within(b, count, 4)
    start = within(b, length, 17)
    old = b.call(aten.clone.default, length)
    written = b.call(ops.append_rows, history, tokens, start, taken)
    moved = b.call(aten.gt.Scalar, taken, 0, name="moved")
    raised = b.call(aten.add.Tensor, root, 1, name="raised")
    new_root = b.call(aten.where.self, moved, raised, root)
    b.call(aten.copy_.default, text, old)
    b.call(aten.copy_.default, length, b.call(aten.add.Tensor, length, taken))
    b.call(aten.copy_.default, root, new_root)
    b.call(aten.copy_.default, history, written)
    return b.output([new_root])


@SETTINGS
@given(st.integers(0, 999))
def test_slots_are_stored_after_all_was_read(seed: int) -> None:
    module = bookkeeping()
    calls = region_calls(module)
    assert len(calls) == 1
    assert not [node for node in outside(module) if node.target is aten.copy_.default]
    equal(module, seed)


def cached(tokens: int, *, counted: bool) -> GraphModule:
    """Rows written into two caches in place, one of them rotated."""
    b = GraphBuilder()
    length, count = integers(b, "length"), integers(b, "count")
    x = b.placeholder("x", fake((BATCH, tokens, 3, 4), torch.float32))
    cos, sin = (b.placeholder(name, fake((BATCH, tokens, 2), torch.float32)) for name in ("cos", "sin"))
    caches = [b.placeholder(name, fake((BATCH, 13, 3, 4), torch.float32)) for name in ("k", "v")]
    start = within(b, length, 13 - tokens)
    given = [within(b, count, tokens + 1)] if counted else []
    rotated = b.call(ops.rope, x, cos, sin)
    b.call(ops.append_rows_, caches[0], rotated, start, *given)
    b.call(ops.append_rows_, caches[1], b.call(aten.mul.Tensor, x, 2.0), start, *given)
    return b.output([rotated])


@SETTINGS
@given(st.sampled_from((1, 4)), st.booleans(), st.integers(0, 999))
def test_rows_go_into_caches_in_the_kernel_that_makes_them(tokens: int, counted: bool, seed: int) -> None:
    module = cached(tokens, counted=counted)
    assert not [node for node in outside(module) if node.target is ops.append_rows_]
    equal(module, seed)


def walk(steps: int) -> GraphModule:
    """An acceptance walk: carried integers and a path, tokens read by an index that the walk computes."""
    b = GraphBuilder()
    tokens, parent, choice = (integers(b, name, steps) for name in ("tokens", "parent", "choice"))
    zero = b.call(ops.full_rows, tokens, [-1], 0, torch.int64)
    path = b.call(ops.full_rows, tokens, [-1, 5], 0, torch.int64)
    body = BodyBuilder(
        "token",
        carried={"current": zero, "path": path},
        sliced={"token": tokens, "above": parent},
        invariant={"choice": choice},
    )
    row = body.call(aten.squeeze.dim, body["token"], 1)
    above = body.call(aten.remainder.Scalar, body.call(aten.squeeze.dim, body["above"], 1), 3)
    at = body.call(aten.unsqueeze.default, body["current"], 1)
    wanted = body.call(aten.index.Tensor, body["choice"], [body.call(ops.batch_index, at), at])
    hit = body.call(aten.le.Tensor, body.call(aten.squeeze.dim, wanted, 1), row)
    hit = body.call(aten.logical_and.default, hit, body.call(aten.le.Tensor, above, body["current"]))
    place = body.call(ops.iota, body["path"], 5)
    column = body.call(aten.unsqueeze.default, body["current"], 1)
    here = body.call(aten.eq.Tensor, place, body.call(aten.remainder.Scalar, column, 5))
    new_path = body.call(aten.where.self, here, body.call(aten.unsqueeze.default, row, 1), body["path"])
    moved = body.call(aten.full_like.default, body["current"], body.index)
    current = body.call(aten.where.self, hit, moved, body["current"])
    shown = body.call(aten.add.Tensor, body["token"], at)
    results = body.close(b, steps, [current, new_path, shown], name="walk")
    return b.output([*results, b.call(aten.sum.dim_IntList, results[1], [1])])


@SETTINGS
@given(st.integers(2, 6), st.integers(0, 999))
def test_a_walk_over_tokens_is_a_loop_in_one_kernel(steps: int, seed: int) -> None:
    module = walk(steps)
    calls = region_calls(module)
    assert len(calls) == 1
    assert "tl.static_range" in calls[0].generated.source
    equal(module, seed)


def late_reader() -> GraphModule:
    """A slot that an op outside kernels reads, with something the kernel makes, before it is written."""
    b = GraphBuilder()
    length, count = integers(b, "length"), integers(b, "count")
    path = integers(b, "path", 3)
    cache = b.placeholder("cache", fake((BATCH, 20, 2), torch.float32))
    taken = within(b, count, 3)
    ascending = b.call(aten.add.Tensor, b.call(aten.zeros_like.default, path), b.call(ops.iota, path, 3))
    start = within(b, length, 10)
    b.call(aten.copy_.default, length, start)
    b.call(ops.commit_path_, cache, ascending, length, taken, True)
    b.call(aten.copy_.default, length, b.call(aten.add.Tensor, start, taken))
    return b.output([taken])


def test_a_write_does_not_pass_a_read_and_a_read_not_a_write() -> None:
    module = late_reader()
    order = [unit.nodes if not isinstance(unit, Node) else (unit,) for unit in plan(module).order]
    place = {node.name: number for number, nodes in enumerate(order) for node in nodes}
    assert place["copy__default"] < place["commit_path__default"] < place["copy__default_1"]
    equal(module, 3)


def committed() -> GraphModule:
    """A slot that an op outside kernels reads, with something a kernel makes, before it takes its new value."""
    b = GraphBuilder()
    length, count = integers(b, "length"), integers(b, "count")
    cache = b.placeholder("cache", fake((BATCH, 30, 2), torch.float32))
    path = integers(b, "path", 3)
    taken = within(b, count, 3)
    ordered = b.call(aten.add.Tensor, b.call(aten.mul.Tensor, path, 0), b.call(ops.iota, path, 3))
    b.call(ops.commit_path_, cache, ordered, length, taken, True)
    b.call(aten.copy_.default, length, b.call(aten.add.Tensor, within(b, length, 9), taken))
    return b.output([taken])


def test_a_slot_is_written_after_its_last_reader() -> None:
    module = committed()
    order = [unit.nodes if not isinstance(unit, Node) else (unit,) for unit in plan(module).order]
    place = {node.name: number for number, nodes in enumerate(order) for node in nodes}
    assert place["taken" if "taken" in place else "remainder_scalar"] < place["commit_path__default"]
    assert place["commit_path__default"] < place["copy__default"]


def test_small_slots_are_saved_for_late_readers() -> None:
    module = saved_reads(committed())
    assert len(region_calls(module)) == 1
    assert [node.name for node in outside(module) if node.target is ops.commit_path_] == ["commit_path__default"]
    commit = next(node for node in module.graph.nodes if node.target is ops.commit_path_)
    assert commit.args[2].target is aten.clone.default


def test_a_slot_read_after_it_was_written_has_the_new_value() -> None:
    b = GraphBuilder()
    slot, x = integers(b, "slot", 5), integers(b, "x", 5)
    b.call(aten.copy_.default, slot, b.call(aten.mul.Tensor, b.call(aten.add.Tensor, x, 1), 3))
    after = b.call(aten.sub.Tensor, b.call(aten.mul.Tensor, slot, 2), x)
    equal(b.output([after]), 4)


@pytest.mark.parametrize(("name", "target"), [("raised", aten.mul.Tensor), ("moved", aten.lt.Scalar)])
def test_a_changed_node_is_one_changed_line(name: str, target: object) -> None:
    module, other = bookkeeping(), bookkeeping()
    node = next(node for node in other.graph.nodes if node.name == name)
    node.target = target  # type: ignore[assignment]
    other.recompile()
    lines = list(difflib.ndiff(printed(module).splitlines(), printed(other).splitlines()))
    assert [line.split(" = ")[0].split()[1] for line in lines if line[0] == "-"] == [name]
    assert [line.split(" = ")[0].split()[1] for line in lines if line[0] == "+"] == [name]
