"""insert-tree-masks: equal results, no leak between branches, reasons for near misses, and planted faults seen."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx import GraphModule, Node

from specc.ir import ops
from specc.ir.clone import clone
from specc.ir.dims import CHUNK
from specc.ir.edit import Editor, finish, loop_parts, modules, retype
from specc.ir.loop import loop
from specc.passes.insert_tree_masks import insert_tree_masks
from specc.passes.tree_masked import tree_masked
from specc.program import DecodeProgram
from specc.testing import DraftBatch, make_tree
from tests.passes.tree_programs import (
    TREES,
    Small,
    assert_same,
    batches,
    fused_weights,
    naive_program,
    staged,
    verified,
    weights_of,
)

aten = torch.ops.aten
SMALL = TREES[0]
BRANCHED = DraftBatch((make_tree((1, 2, 3, 4, 5), (-1, 0, 0, 1, 3)), make_tree((6, 7, 8, 9), (-1, 0, 1, 0), 5)), (7, 0))


def calls(module: GraphModule, target: object) -> list[Node]:
    """Calls of an op in a module and its loop bodies."""
    return [node for item in modules(module) for node in item.graph.nodes if node.target is target]


def one(module: GraphModule, target: object) -> Node:
    """The only call of an op."""
    (node,) = calls(module, target)
    return node


def naive() -> GraphModule:
    """A fresh copy of the naive verify."""
    return clone(naive_program(SMALL).graphs["verify"])


def masked() -> GraphModule:
    """A fresh copy of verify with ancestor masks."""
    return clone(staged(SMALL)["insert-tree-masks"].program.graphs["verify"])


def with_verify(module: GraphModule) -> DecodeProgram:
    """The small program with another verify."""
    return naive_program(SMALL).with_graphs(verify=module)


@given(st.data())
@settings(max_examples=40)
def test_masked_and_naive_verify_agree(data: st.DataObject) -> None:
    small = data.draw(st.sampled_from(TREES))
    batch = data.draw(batches(small))
    before = verified(naive_program(small), batch, small, weights_of(small))
    program = staged(small)["insert-tree-masks"].program
    assert_same(before, verified(program, batch, small, weights_of(small), strict=True))


@pytest.mark.parametrize("stage", ["lower", "rewrite-negative-indices"])
def test_paths_and_depths_are_gone_and_one_mask_stands_before_the_loop(stage: str) -> None:
    module = naive() if stage == "lower" else staged(SMALL)[stage].program.graphs["verify"]
    made, notes = insert_tree_masks(module, "verify")
    assert [note.fired for note in notes] == [True]
    assert "verify.attention" in notes[0].keys
    mask = one(made, ops.ancestor_mask)
    assert mask.graph is made.graph
    parent_row, valid = mask.args
    assert parent_row.target is aten.add.Tensor
    assert parent_row.args[1] == 1
    assert parent_row.args[0].meta["port"].name == "parent"
    assert valid.meta["port"].name == "valid"
    assert not calls(made, aten.index.Tensor)
    assert len(loop_parts(one_loop(made)).carried) == 2, "K and V tables alone are carried"


def one_loop(module: GraphModule) -> Node:
    """The token loop."""
    return next(node for node in module.graph.nodes if node.target is loop)


def test_the_pattern_is_found_by_data_flow_whatever_the_names() -> None:
    module = naive()
    for item in modules(module):
        for number, node in enumerate(item.graph.nodes):
            if node.op != "get_attr":
                node._rename(f"n{number}")
    made, notes = insert_tree_masks(finish(module))
    assert notes[0].fired
    assert_same(
        verified(naive_program(SMALL), BRANCHED, SMALL, weights_of(SMALL)),
        verified(with_verify(made), BRANCHED, SMALL, weights_of(SMALL)),
    )


def test_a_second_run_changes_nothing() -> None:
    module = masked()
    made, notes = insert_tree_masks(module)
    assert made is module
    assert not any(note.fired for note in notes)


def test_the_module_given_stays_as_it_is() -> None:
    module = naive()
    before = [item.code for item in modules(module)]
    insert_tree_masks(module)
    assert [item.code for item in modules(module)] == before


def test_a_chain_is_left_alone_with_a_note_that_it_is_causal() -> None:
    module = naive_program(Small(chain=True)).graphs["verify"]
    made, notes = insert_tree_masks(module, "verify")
    assert made is module
    assert [(note.fired, "row t sees rows 0..t, masked causally" in note.message) for note in notes] == [(False, True)]


# Near misses: one edit each to the naive graph, and the reason that has to come back.


def _body_of(module: GraphModule, target: object) -> tuple[Editor, Node]:
    node = calls(module, target)[0]
    owner = node.graph.owning_module
    assert owner is not None
    return Editor(owner, "edit"), node


def _other_path_for_values(module: GraphModule) -> None:
    editor, attention = _body_of(module, ops.tree_attention)
    read = attention.args[5]
    batch, path = read.args[1]
    with editor.before(read):
        other = editor.call(aten.clone.default, path)
    read.args = (read.args[0], [batch, other])


def _values_one_row_off(module: GraphModule) -> None:
    editor, attention = _body_of(module, ops.tree_attention)
    read = attention.args[5]
    batch, path = read.args[1]
    with editor.before(read):
        other = editor.call(aten.add.Tensor, path, 1)
    read.args = (read.args[0], [batch, other])


def _all_lanes_valid(module: GraphModule) -> None:
    _, mask = _body_of(module, aten.ge.Scalar)
    mask.args = (mask.args[0], -2)


def _depth_starts_at_zero(module: GraphModule) -> None:
    for node in calls(module, ops.full_rows):
        if node.meta["val"].dim() == 2:
            node.args = (node.args[0], node.args[1], 0, node.args[3])


def _depth_grows_by_two(module: GraphModule) -> None:
    for node in calls(module, aten.add.Tensor):
        if node.args[1] == 1:
            node.args = (node.args[0], 2)


def _padding_under_the_root(module: GraphModule) -> None:
    for node in calls(module, aten.full_like.default):
        if node.args[1] == -1:
            node.args = (node.args[0], 0)


def _path_of_another_table(module: GraphModule) -> None:
    for node in calls(module, aten.full_like.default):
        if isinstance(node.args[1], Node):
            node.args = (node.args[0], 3)


def _number_counted_down(module: GraphModule) -> None:
    for node in calls(module, aten.full_like.default):
        if isinstance(node.args[1], Node):
            editor, _ = _body_of(module, node.target)
            with editor.before(node):
                node.args = (node.args[0], editor.call(operator.sub, 0, node.args[1]))


def _stale_rows(module: GraphModule) -> None:
    _, attention = _body_of(module, ops.tree_attention)
    read = attention.args[4]
    written = read.args[0]
    read.args = (written.args[0], read.args[1])


def _no_row_for_the_context(module: GraphModule) -> None:
    for node in calls(module, ops.full_rows):
        shape = [size - 1 if size == SMALL.nodes + 1 else size for size in node.args[1]]
        node.args = (node.args[0], shape, *node.args[2:])
    retype(module)


def _rows_of_earlier_nodes_lost(module: GraphModule) -> None:
    parts = loop_parts(one_loop(module))
    output = parts.body.graph.output_node()
    output.args = ((parts.carried_inside[0], *output.args[0][1:]),)


def _tables_change_places(module: GraphModule) -> None:
    output = loop_parts(one_loop(module)).body.graph.output_node()
    keys, values, *others = output.args[0]
    output.args = ((values, keys, *others),)


NEAR_MISSES: list[tuple[Callable[[GraphModule], None], str]] = [
    (_other_path_for_values, "different paths"),
    (_values_one_row_off, "reads node j at row j + 1, but it is written at row j + 0"),
    (_all_lanes_valid, "`path >= 0`"),
    (_depth_starts_at_zero, "does not start at -1"),
    (_depth_grows_by_two, "is not the parent's depth + 1"),
    (_padding_under_the_root, "is not where(valid, parent, -1)"),
    (_path_of_another_table, "does not put the node's own number into its path"),
    (_number_counted_down, "does not put the node's own number into its path"),
    (_stale_rows, "is not a table with the token's own row written into it"),
    (_rows_of_earlier_nodes_lost, "is not what the token loop carries on"),
    (_tables_change_places, "is not what the token loop carries on"),
    (_no_row_for_the_context, "which a node overwrites"),
]


@pytest.mark.parametrize(("edit", "reason"), NEAR_MISSES)
def test_a_near_miss_is_left_alone_with_its_reason(edit: Callable[[GraphModule], None], reason: str) -> None:
    module = naive()
    edit(module)
    made, notes = insert_tree_masks(finish(module), "verify")
    assert made is module
    assert [note.fired for note in notes] == [False]
    assert reason in notes[0].message


def test_a_tree_of_unknown_size_is_left_alone() -> None:
    module = naive()
    parts = loop_parts(one_loop(module))
    for operand in parts.sliced:
        value = operand.meta["val"]
        operand.meta["val"] = value.new_empty((value.shape[0], CHUNK))
    parts.node.args = (*parts.node.args[:2], None, *parts.node.args[3:])
    _, notes = insert_tree_masks(module)
    assert "number of nodes is not fixed" in notes[0].message


# The predicate.


def test_the_predicate_tells_naive_from_masked_programs() -> None:
    assert any("k_path" in fault for fault in tree_masked(naive_program(SMALL)))
    for stage in ("insert-tree-masks", "layer-major", "fuse-projections"):
        assert tree_masked(staged(SMALL)[stage].program) == []


def _forged_mask(module: GraphModule) -> None:
    mask = one(module, ops.ancestor_mask)
    editor = Editor(module, "edit")
    with editor.after(mask):
        forged = editor.call(aten.ones_like.default, mask)
    mask.replace_all_uses_with(forged, delete_user_cb=lambda user: user is not forged)


@pytest.mark.parametrize("stage", ["insert-tree-masks", "layer-major"])
def test_the_predicate_sees_a_mask_that_is_no_ancestor_mask(stage: str) -> None:
    module = clone(staged(SMALL)[stage].program.graphs["verify"])
    _forged_mask(module)
    assert any("mask" in fault for fault in tree_masked(with_verify(finish(module))))


def test_the_predicate_sees_values_that_pass_from_node_to_node() -> None:
    module = masked()
    parts = loop_parts(one_loop(module))
    body = Editor(parts.body, "edit")
    count = len(parts.carried)
    hidden = parts.stacked_out[0]
    first = parts.carried_inside[-1]
    with parts.body.graph.inserting_after(first):
        previous = parts.body.graph.placeholder("previous")
    previous.meta.update(hidden.meta)
    embedded = one(parts.body, aten.embedding.default)
    with body.after(embedded):
        mixed = body.call(aten.add.Tensor, embedded, previous)
    embedded.replace_all_uses_with(mixed, delete_user_cb=lambda user: user is not mixed)
    values = list(parts.body.graph.output_node().args[0])
    parts.body.graph.output_node().args = ((*values[:count], hidden, *values[count:]),)
    outer = Editor(module, "edit")
    with outer.before(parts.node):
        start = outer.call(aten.embedding.default, parts.invariant[-1], parts.sliced[0])
    arguments = list(parts.node.args)
    arguments[3] = [*arguments[3], start]
    parts.node.args = tuple(arguments)
    assert any("passes from each node to the next" in fault for fault in tree_masked(with_verify(module)))


# No leak: what is not an ancestor can't be noticed, bit for bit.


@given(st.data())
@settings(max_examples=25)
def test_tokens_of_other_branches_leave_a_node_bit_identical(data: st.DataObject) -> None:
    small = data.draw(st.sampled_from(TREES[2:]))
    stage = data.draw(st.sampled_from(["insert-tree-masks", "layer-major", "fuse-projections"]))
    batch = data.draw(batches(small))
    row = data.draw(st.integers(0, len(batch.trees) - 1))
    tree = batch.trees[row]
    node = data.draw(st.integers(0, tree.num_valid - 1))
    family, above = set(), node
    while above >= 0:
        family.add(above)
        above = tree.parent[above]
    tokens = tuple(t if i in family else (t + 1) % 13 for i, t in enumerate(tree.tokens))
    trees = (*batch.trees[:row], replace(tree, tokens=tokens), *batch.trees[row + 1 :])
    program = staged(small)[stage].program
    weights = fused_weights(program, small)
    first = verified(program, batch, small, weights)
    second = verified(program, replace(batch, trees=trees), small, weights)
    assert torch.equal(first["logits"][row, node], second["logits"][row, node])
    assert torch.equal(first["k_candidate"][:, row, node], second["k_candidate"][:, row, node])
    if tokens[0] != tree.tokens[0] or len(family) < small.nodes:
        assert not torch.equal(first["logits"][row], second["logits"][row]), "the change has to be seen somewhere"


def _read_by_position(module: GraphModule) -> None:
    """A node reads the row before its own, whoever its parent is."""
    parts = loop_parts(one_loop(module))
    body = Editor(parts.body, "edit")
    output = parts.body.graph.output_node()
    table = output.args[0][0]
    with body.before(output):
        leaked = body.call(aten.select.int, table, 2, 0)
        total = body.call(aten.sum.dim_IntList, leaked, [0, 2, 3])
        column = body.call(aten.unsqueeze.default, total, 1)
        row = body.call(aten.unsqueeze.default, column, 2)
        hidden = body.call(aten.add.Tensor, output.args[0][-1], row)
    output.args = ((*output.args[0][:-1], hidden),)


def _carried_through_layers(module: GraphModule) -> None:
    """The whole table of all layers is handed from layer to layer."""
    parts = loop_parts(one_loop(module))
    layers = loop_parts(one_loop(parts.body))
    table = parts.carried_inside[0]
    with layers.body.graph.inserting_after(layers.carried_inside[-1]):
        inside = layers.body.graph.placeholder("whole_table")
    inside.meta.update(table.meta)
    output = layers.body.graph.output_node()
    count = len(layers.carried)
    output.args = ((*output.args[0][:count], inside, *output.args[0][count:]),)
    arguments = list(layers.node.args)
    arguments[3] = [*arguments[3], table]
    layers.node.args = tuple(arguments)
    for place, items in layers.results().items():
        for item in items if place >= count else ():
            item.args = (layers.node, place + 1)


@pytest.mark.parametrize(
    ("edit", "reason"),
    [(_read_by_position, "neither masked by ancestors nor by the parent"), (_carried_through_layers, "layer to layer")],
)
def test_the_predicate_sees_other_reads_of_node_tables(edit: Callable[[GraphModule], None], reason: str) -> None:
    module = masked()
    edit(module)
    assert any(reason in fault for fault in tree_masked(with_verify(module)))
