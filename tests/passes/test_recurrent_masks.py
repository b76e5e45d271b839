"""insert-tree-masks on recurrent layers: the node's ancestors beside its parent's state; reasons for near misses; and
what TREE_MASKED finds in programs whose states or windows leak from branch to branch."""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
import torch
from torch.fx import GraphModule, Node

from specc.ir import ops
from specc.ir.edit import Editor, finish, loop_parts, modules
from specc.ir.port import Port
from specc.ir.scope import add_operand
from specc.passes.insert_tree_masks import insert_tree_masks
from specc.passes.tree_masked import tree_masked
from specc.testing import DraftBatch, make_tree
from tests.passes.recurrent_edits import at, calls, editor_of, layer_loop, naive, one, token_loop, with_verify
from tests.passes.recurrent_programs import (
    Recurrent,
    assert_same,
    naive_program,
    program_at,
    staged,
    verified,
)

aten = torch.ops.aten
SMALL = Recurrent("delta", "dynamic", "factors")
HYBRID = Recurrent("two periods", "dynamic", "replay")
BRANCHED = DraftBatch(
    (make_tree((1, 2, 3, 4, 5), (-1, 0, 0, 1, 3), 6), make_tree((6, 7, 8, 9), (-1, 0, 1, 0), 6)), (7, 0)
)
MASKS, LAYERS = "insert-tree-masks", "layer-major"


def read_of(module: GraphModule, target: object) -> Node:
    """The read of the row that a recurrent op starts from."""
    state = one(module, target).args[0]
    assert isinstance(state, Node)
    read = state.args[0]
    assert isinstance(read, Node)
    return read


@pytest.mark.parametrize("small", [SMALL, HYBRID, Recurrent("experts", "static", "factors")])
def test_the_delta_rule_gets_its_nodes_row_of_one_mask_over_the_parents(small: Recurrent) -> None:
    module = program_at(small, MASKS).graphs["verify"]
    mask = one(module, ops.ancestor_mask)
    assert mask.graph is module.graph
    assert [operand.meta["port"].name for operand in (mask.args[0].args[0], mask.args[1])] == ["parent", "valid"]
    assert mask in loop_parts(token_loop(module)).sliced
    for rule in calls(module, ops.delta_rule):
        ancestors = rule.args[6]
        assert ancestors.op == "placeholder"
        assert ancestors.meta["val"].shape[1:] == (1, mask.meta["val"].shape[2])
    for attention in calls(module, ops.tree_attention):
        assert attention.args[6].op == "placeholder", "attention and recurrence see one mask"
    notes = [note for note in staged(small)[MASKS].notes(MASKS) if note.graph == "verify"]
    assert [note.fired for note in notes] == [True]
    assert "start from their parent's state and got their node's ancestors; assumes parent[i] < i" in notes[0].message


def test_states_stay_indexed_by_the_parent() -> None:
    module = at(MASKS, SMALL)
    for target in (ops.short_conv, ops.delta_rule):
        assert read_of(module, target).target is aten.index.Tensor
    assert not calls(module, aten.sum.dim_IntList), "without attention nobody needs the depth"


def test_the_recurrence_is_found_by_data_flow_whatever_the_names() -> None:
    module = naive(SMALL)
    for item in modules(module):
        for number, node in enumerate(item.graph.nodes):
            if node.op != "get_attr":
                node._rename(f"n{number}")
    made, notes = insert_tree_masks(finish(module))
    assert notes[0].fired
    before, after = (verified(program, BRANCHED, SMALL) for program in (naive_program(SMALL), with_verify(made, SMALL)))
    assert_same(before, after)


def test_a_second_run_changes_nothing() -> None:
    module = at(MASKS, SMALL)
    made, notes = insert_tree_masks(module)
    assert made is module
    assert not any(note.fired for note in notes)


@pytest.mark.parametrize(("step", "small"), [("verify", Recurrent("delta", "chain", "snapshots")), ("prefill", SMALL)])
def test_a_chain_is_left_alone_with_a_note(step: str, small: Recurrent) -> None:
    module = naive_program(small).graphs[step]
    made, notes = insert_tree_masks(module, step)
    assert made is module
    assert [(note.fired, "states go on from each token to the next" in note.message) for note in notes] == [
        (False, True)
    ]
    assert "verify.recurrence" in notes[0].keys


# Near misses: one edit each to the naive graph, and the reason that has to come back.


def _window_of_another_parent(module: GraphModule) -> None:
    """The window of parent[i] even where node i is padding, while the state is then the committed one."""
    layers = loop_parts(layer_loop(module))
    read = read_of(module, ops.short_conv)
    tokens = loop_parts(token_loop(module))
    parent = next(node for node in tokens.sliced_inside if node.name == "parent")
    inside = add_operand(layers.node, "invariant", parent, "other_parent")
    read.args = (read.args[0], [read.args[1][0], inside])


def _state_written_from_the_next_row(module: GraphModule) -> None:
    rule = one(module, ops.delta_rule)
    for write in _writes(rule, 2):
        editor = editor_of(write)
        with editor.before(write):
            write.args = (*write.args[:3], editor.call(operator.add, write.args[3], 1))


def _writes(call: Node, result: int) -> list[Node]:
    items = [user for user in call.users if user.args[1] == result]
    return [user for item in items for user in item.users if user.target is aten.select_scatter.default]


def _another_state_is_written(module: GraphModule) -> None:
    for write in _writes(one(module, ops.delta_rule), 2):
        editor = editor_of(write)
        with editor.before(write):
            old = editor.call(aten.clone.default, write.args[1])
        write.args = (write.args[0], old, *write.args[2:])


def _window_of_the_token_before(module: GraphModule) -> None:
    """A classic: the window follows the tokens' numbers instead of the parents."""
    read = read_of(module, ops.short_conv)
    token = next(node for node in read.graph.nodes if node.op == "placeholder" and node.name == "token")
    editor = editor_of(read)
    with editor.before(read):
        before = editor.call(operator.sub, token, 1)
        row = editor.call(aten.full_like.default, read.args[1][1], before)
    read.args = (read.args[0], [read.args[1][0], row])


def _no_committed_state(module: GraphModule) -> None:
    made = calls(module, ops.root_table)[0]
    editor = editor_of(made)
    with editor.before(made):
        empty = editor.call(aten.zeros_like.default, made.args[0])
        table = editor.call(aten.unsqueeze.default, empty, 2)
        table = editor.call(aten.expand.default, table, list(made.meta["val"].shape))
    made.replace_all_uses_with(table)


def _committed_state_in_a_nodes_row(module: GraphModule) -> None:
    made = calls(module, ops.root_table)[0]
    made.args = (*made.args[:2], 2)


def _state_goes_from_node_to_node(module: GraphModule) -> None:
    """The state is carried as it is, as in a chain; the table is still written."""
    tokens, layers = loop_parts(token_loop(module)), loop_parts(layer_loop(module))
    rule = one(module, ops.delta_rule)
    slot = calls(module, ops.root_table)[0].args[0]
    assert isinstance(slot, Node)
    with tokens.body.graph.inserting_after(tokens.carried_inside[-1]):
        outside = tokens.body.graph.placeholder("going_on")
    outside.meta.update(slot.meta)
    inside = add_operand(layers.node, "sliced", outside, "state_before")
    inside.meta["val"] = slot.meta["val"][0]
    after = next(user for user in rule.users if user.args[1] == 2)
    rule.args = (inside, *rule.args[1:])
    output = layers.body.graph.output_node()
    output.args = ((*output.args[0], after),)
    with Editor(tokens.body, "edit").after(layers.node):
        made = tokens.body.graph.call_function(operator.getitem, (layers.node, len(output.args[0]) - 1))
    made.meta.update(slot.meta)
    count = len(tokens.carried)
    returned = tokens.body.graph.output_node()
    returned.args = ((*returned.args[0][:count], made, *returned.args[0][count:]),)
    for place, items in tokens.results().items():
        for item in items if place >= count else ():
            item.args = (tokens.node, place + 1)
    arguments = list(tokens.node.args)
    arguments[3] = [*arguments[3], slot]
    tokens.node.args = tuple(arguments)


NEAR_MISSES: list[tuple[Callable[[GraphModule], None], str]] = [
    (_window_of_another_parent, "`short_conv` and `delta_rule` of one loop follow different parents (I27)"),
    (_state_written_from_the_next_row, "reads node j at row j + 0, but it is written at row j + 1"),
    (_another_state_is_written, "the state of `delta_rule` is not written into `state_table`, where it was read"),
    (_window_of_the_token_before, "`short_conv` does not start from its parent's state"),
    (_no_committed_state, "is not a table that starts with the committed state (root_table)"),
    (_committed_state_in_a_nodes_row, "has the committed state in row 2, but a parent of -1 reads row 6"),
    (
        _state_goes_from_node_to_node,
        "the state of `delta_rule`, goes on from each node to the next, not to its children",
    ),
]


@pytest.mark.parametrize(("edit", "reason"), NEAR_MISSES)
def test_a_near_miss_is_left_alone_with_its_reason(edit: Callable[[GraphModule], None], reason: str) -> None:
    module = naive(SMALL)
    edit(module)
    made, notes = insert_tree_masks(finish(module), "verify")
    assert made is module
    assert [note.fired for note in notes] == [False]
    assert reason in notes[0].message
    assert "verify.recurrence" in notes[0].keys


def test_in_a_hybrid_one_miss_leaves_attention_alone_too() -> None:
    module = naive(HYBRID)
    _window_of_the_token_before(module)
    made, notes = insert_tree_masks(finish(module), "verify")
    assert made is module
    assert "`short_conv` does not start from its parent's state" in notes[0].message


# The predicate.


def test_the_predicate_holds_after_each_pass_and_for_states_by_parent_before() -> None:
    assert tree_masked(naive_program(SMALL)) == []
    assert any("k_path" in fault for fault in tree_masked(naive_program(HYBRID)))
    for small in (SMALL, HYBRID, Recurrent("delta", "chain", "snapshots")):
        for stage in (MASKS, LAYERS):
            assert tree_masked(program_at(small, stage)) == []


def _state_of_the_next_row(module: GraphModule) -> None:
    """The row behind the parent's: another node's state."""
    read = read_of(module, ops.delta_rule)
    editor = editor_of(read)
    with editor.before(read):
        row = editor.call(aten.add.Tensor, read.args[1][1], 1)
    read.args = (read.args[0], [read.args[1][0], row])


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (_window_of_the_token_before, "neither masked by ancestors nor by the parent's number"),
        (_state_goes_from_node_to_node, "`going_on` passes from each node to the next"),
    ],
)
def test_the_predicate_sees_states_that_leak_inside_the_token_loop(
    edit: Callable[[GraphModule], None], reason: str
) -> None:
    module = at(MASKS, SMALL)
    edit(module)
    assert any(reason in fault for fault in tree_masked(with_verify(module, SMALL)))


def test_the_predicate_sees_the_state_of_the_row_behind_the_parents() -> None:
    module = naive(SMALL)
    _state_of_the_next_row(module)
    faults = tree_masked(with_verify(module, SMALL))
    assert any("reads node j at row j + 1, but it is written at row j + 0" in fault for fault in faults)


def _other_parents(module: GraphModule) -> None:
    conv = one(module, ops.tree_conv)
    editor = editor_of(conv)
    with editor.before(conv):
        number = editor.call(ops.iota, conv.args[4], -2)
        row = editor.call(aten.expand_as.default, number, conv.args[4])
    conv.args = (*conv.args[:4], row)


def _parents_of_neighbours(module: GraphModule) -> None:
    """Rows of the right form, but over parents that the step was not given."""
    conv = one(module, ops.tree_conv)
    parent = next(node for node in module.graph.nodes if node.meta.get("port") == Port("input", "parent"))
    editor = Editor(module, "edit")
    with editor.after(parent):
        rolled = editor.call(aten.roll.default, parent, [1], [1])
    with editor.after(rolled):
        row = editor.call(aten.add.Tensor, rolled, 1)
    conv.args = (*conv.args[:4], add_operand(token_loop(module), "invariant", row, "rolled_row"))


def _padding_under_the_root(module: GraphModule) -> None:
    """Padding nodes continue node 0 instead of the committed context."""
    (alone,) = [node for node in calls(module, aten.full_like.default) if node.args[1] == -1]
    alone.args = (alone.args[0], 0)


def _no_parents(module: GraphModule) -> None:
    rule = one(module, ops.delta_rule_verify)
    rule.args = (*rule.args[:6], None, None, rule.args[8])


def _forged_mask(module: GraphModule) -> None:
    rule = one(module, ops.delta_rule_verify)
    editor = editor_of(rule)
    with editor.before(rule):
        forged = editor.call(aten.ones_like.default, rule.args[7])
    rule.args = (*rule.args[:7], forged, rule.args[8])


def _as_a_chain(module: GraphModule) -> None:
    conv = one(module, ops.tree_conv)
    editor = editor_of(conv)
    with editor.before(conv):
        both = editor.call(ops.short_conv, *conv.args[:4])
        made = editor.item(both, 0, "convolved")
    conv.replace_all_uses_with(made)
    conv.graph.erase_node(conv)


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (_other_parents, "`tree_conv` does not follow the step's parents"),
        (_parents_of_neighbours, "`tree_conv` does not follow the step's parents"),
        (_padding_under_the_root, "`tree_conv` does not follow the step's parents"),
        (_no_parents, "`delta_rule_verify` does not follow the step's parents"),
        (_forged_mask, "`delta_rule_verify` has a mask that is not the ancestor_mask over its parents"),
        (_as_a_chain, "takes its state along the nodes of a tree as if they were a chain"),
    ],
)
def test_the_predicate_sees_leaks_among_all_nodes_at_once(edit: Callable[[GraphModule], None], reason: str) -> None:
    module = at(LAYERS, SMALL)
    edit(module)
    assert any(reason in fault for fault in tree_masked(with_verify(module, SMALL)))


def test_a_replay_of_earlier_rows_in_verify_is_no_leak() -> None:
    """A recurrence over rows that don't come from this step's tokens: what a deferred commit may do."""
    module = at(LAYERS, SMALL)
    rule = one(module, ops.delta_rule_verify)
    state, body = rule.args[0], editor_of(rule)
    with body.before(rule):
        rows = body.call(aten.transpose.int, state, 1, 2)
        rates = body.call(aten.select.int, rows, 3, 0)
        replayed = body.call(ops.delta_rule, state, rows, rows, rows, rates, rates)
        after = body.item(replayed, 2, "after")
    rule.args = (after, *rule.args[1:])
    assert tree_masked(with_verify(module, SMALL)) == []
