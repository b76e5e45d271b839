"""Which tables get a dummy root: all that touches them must allow it, else indices wrap and the layout stays."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx import GraphModule, Node

from specc.ir import ops
from specc.ir.build import BodyBuilder, GraphBuilder, fake
from specc.ir.dims import BATCH
from specc.ir.edit import modules
from specc.ir.interpreter import Interpreter
from specc.ir.port import Sentinel, ValueRange
from specc.manager import Note
from specc.passes.rewrite_negative_indices import rewrite_negative_indices

aten = torch.ops.aten
NODES = 4
PARENT = torch.tensor([[-1, 0, 1, 0], [-1, 0, 0, 2]])
Step = Callable[[BodyBuilder], Node]


def read_parent(b: BodyBuilder, table: str = "table") -> Node:
    """The parent's entry [B,1]."""
    return b.call(aten.index.Tensor, b[table], [b["batch"], b["parent"]], name="above")


def write_own(b: BodyBuilder, row: Node, index: Any = None, name: str = "nodes") -> Node:
    place = b.index if index is None else index
    return b.call(aten.select_scatter.default, b["table"], b.call(aten.squeeze.dim, row, 1), 1, place, name=name)


def depth_table(step: Step | None = None, last: Callable[[GraphBuilder, Node], Node] | None = None) -> GraphModule:
    """depth[i] = depth[parent[i]] + 1 in a table of N + 1 rows; `step` returns the table after one node."""
    b = GraphBuilder()
    parent = b.placeholder("parent", fake((BATCH, NODES), torch.int64))
    table = b.call(ops.full_rows, parent, [-1, NODES + 1], -1, torch.int64, name="table")
    batch = b.call(ops.batch_index, parent, name="batch")
    body = BodyBuilder("token", carried={"table": table}, sliced={"parent": parent}, invariant={"batch": batch})
    if step is None:
        after = write_own(body, body.call(aten.add.Tensor, read_parent(body), 1, name="depth"))
    else:
        after = step(body)
    (result,) = body.close(b, NODES, [after], "tokens")
    value = b.call(aten.narrow.default, result, 1, 0, NODES, name="rows") if last is None else last(b, result)
    return b.output([value])


def rewrite(module: GraphModule, sentinel: Sentinel | None = "committed") -> tuple[GraphModule, list[Note]]:
    made, notes = rewrite_negative_indices(module, {"parent": ValueRange(-1, NODES - 2, sentinel)})
    return made, [note for note in notes if note.message.startswith("table ")]


def run(module: GraphModule, strict: bool) -> torch.Tensor:
    return Interpreter(module, strict=strict).run(PARENT)[0]


def assert_kept(module: GraphModule, reason: str, sentinel: Sentinel | None = "committed") -> None:
    """The layout stays, for that reason; indices wrap instead, and the result is the same."""
    made, notes = rewrite(module, sentinel)
    assert [note.fired for note in notes] == [False]
    assert reason in notes[0].message
    assert torch.equal(run(made, strict=True), run(module, strict=False))


def test_a_table_read_by_parent_gets_its_dummy_root_in_row_0() -> None:
    module = depth_table()
    made, notes = rewrite(module)
    assert [note.fired for note in notes] == [True]
    assert "read with index + 1 by `above`: -1 is the committed context" in notes[0].message
    expected = torch.tensor([[0, 1, 2, 1], [0, 1, 1, 2]])
    assert torch.equal(run(made, strict=True), expected)
    assert torch.equal(run(module, strict=False), expected)
    names = [node.name for item in modules(made) for node in item.graph.nodes]
    assert names.count("parent_row") == 1
    assert not any(node.target is aten.where.self for item in modules(made) for node in item.graph.nodes)


def test_the_row_of_the_committed_context_is_never_a_node() -> None:
    def step(b: BodyBuilder) -> Node:
        return write_own(b, read_parent(b), b.call(operator.add, b.index, 1))

    assert_kept(depth_table(step), "writes row [1, 4], which is not a node's row")


def test_a_table_that_is_read_whole_keeps_its_layout() -> None:
    def step(b: BodyBuilder) -> Node:
        total = b.call(aten.sum.dim_IntList, b["table"], [1], True)
        return write_own(b, b.call(aten.add.Tensor, read_parent(b), total))

    assert_kept(depth_table(step), "reads it whole")


def test_a_table_that_a_loop_slices_along_its_rows_keeps_its_layout() -> None:
    def step(b: BodyBuilder) -> Node:
        start = b.call(aten.zeros_like.default, b["parent"])
        rows = BodyBuilder("token", carried={"total": start}, sliced={"row": b["table"]}, invariant={})
        total = rows.call(aten.add.Tensor, rows["total"], rows["row"])
        (total,) = rows.close(b, NODES + 1, [total], "rows_of_all")
        return write_own(b, b.call(aten.add.Tensor, read_parent(b), total))

    assert_kept(depth_table(step), "slices it along its rows")


def test_a_table_that_leaves_the_graph_keeps_its_layout() -> None:
    assert_kept(depth_table(last=lambda b, table: table), "it leaves the graph")


def test_rows_other_than_those_of_all_nodes_keep_the_layout() -> None:
    def last(b: GraphBuilder, table: Node) -> Node:
        return b.call(aten.narrow.default, table, 1, 1, NODES, name="rows")

    assert_kept(depth_table(last=last), "takes other rows than those of all nodes")


def test_a_table_that_is_replaced_in_the_loop_keeps_its_layout() -> None:
    def step(b: BodyBuilder) -> Node:
        nodes = write_own(b, read_parent(b))
        return b.call(aten.add.Tensor, nodes, 1)

    assert_kept(depth_table(step), "reads it whole")


def test_tables_that_change_places_keep_their_layouts() -> None:
    b = GraphBuilder()
    parent = b.placeholder("parent", fake((BATCH, NODES), torch.int64))
    batch = b.call(ops.batch_index, parent, name="batch")
    tables = {
        name: b.call(ops.full_rows, parent, [-1, NODES + 1], fill, torch.int64, name=name)
        for name, fill in (("table", -1), ("other", 7))
    }
    body = BodyBuilder("token", carried=tables, sliced={"parent": parent}, invariant={"batch": batch})
    nodes = write_own(body, body.call(aten.add.Tensor, read_parent(body), 1))
    results = body.close(b, NODES, [body["other"], nodes], "tokens")
    module = b.output([b.call(aten.narrow.default, results[0], 1, 0, NODES)])
    made, notes = rewrite(module)
    assert [note.fired for note in notes] == [False, False]
    assert "carries another value in its place" in notes[0].message
    assert torch.equal(run(made, strict=True), run(module, strict=False))


def test_wrap_around_that_is_meant_stays_wrap_around() -> None:
    assert_kept(depth_table(), "-1 means wrap-around in `above`", "wrap")


def test_a_table_without_negative_reads_keeps_its_layout() -> None:
    def step(b: BodyBuilder) -> Node:
        safe = b.call(aten.clamp_min.default, b["parent"], 0)
        above = b.call(aten.index.Tensor, b["table"], [b["batch"], safe], name="above")
        return write_own(b, b.call(aten.add.Tensor, above, 1))

    assert_kept(depth_table(step), "no index into it can be -1")


@pytest.mark.parametrize("number", [0, NODES - 1])
def test_a_constant_row_is_shifted_too(number: int) -> None:
    """A read of a fixed node's row moves with the table."""

    def step(b: BodyBuilder) -> Node:
        first = b.call(aten.index.Tensor, b["table"], [b["batch"], b.call(aten.full_like.default, b["parent"], number)])
        return write_own(b, b.call(aten.add.Tensor, read_parent(b), first))

    module = depth_table(step)
    made, notes = rewrite(module)
    assert [note.fired for note in notes] == [True]
    assert torch.equal(run(made, strict=True), run(module, strict=False))
