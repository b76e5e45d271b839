"""layer-major on recurrent layers: what it refuses, with the reason, and faults planted into its result."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.fx import GraphModule, Node

from specc.ir import ops
from specc.ir.edit import Editor, finish, loop_parts
from specc.ir.scope import add_operand
from specc.passes.insert_tree_masks import insert_tree_masks
from specc.passes.layer_major import layer_major
from specc.testing import DraftBatch, make_tree
from tests.passes.recurrent_edits import at, calls, editor_of, layer_loop, one, token_loop, with_verify
from tests.passes.recurrent_programs import Recurrent, assert_same, naive_program, nodes_of, program_at, verified

aten = torch.ops.aten
INDICES, MASKS, LAYERS = "rewrite-negative-indices", "insert-tree-masks", "layer-major"
SMALL = Recurrent("delta", "dynamic", "factors")
BRANCHED = DraftBatch(
    (make_tree((1, 2, 3, 4, 5), (-1, 0, 0, 1, 3), 6), make_tree((6, 7, 8, 9), (-1, 0, 1, 0), 6)), (7, 0)
)


# Refusals: one edit each, and the reason that has to come back.


def _no_ancestors(module: GraphModule) -> None:
    rule = one(module, ops.delta_rule)
    rule.args = rule.args[:6]


def _other_ancestors(module: GraphModule) -> None:
    """The mask is over parents among which padding nodes hang on the root, the states are not."""
    mask = one(module, ops.ancestor_mask)
    editor = editor_of(mask)
    with editor.before(mask):
        everyone = editor.call(aten.ones_like.default, mask.args[1])
    mask.args = (mask.args[0], everyone)


def _ancestors_one_row_off(module: GraphModule) -> None:
    mask = one(module, ops.ancestor_mask)
    row = mask.args[0]
    row.args = (row.args[0], 2)


def _ancestors_of_a_forged_mask(module: GraphModule) -> None:
    tokens = loop_parts(token_loop(module))
    layers = loop_parts(layer_loop(module))
    mask, rule = one(module, ops.ancestor_mask), one(module, ops.delta_rule)
    with Editor(module, "edit").after(mask):
        forged = module.graph.call_function(aten.logical_not.default, (mask,))
    forged.meta.update(mask.meta)
    inside = add_operand(tokens.node, "sliced", forged, "forged")
    rule.args = (*rule.args[:6], add_operand(layers.node, "invariant", inside, "forged"))


def _state_used_elsewhere(module: GraphModule) -> None:
    """The token's state is mixed into its output: no op over all tokens gives that."""
    rule = one(module, ops.delta_rule)
    items = {user.args[1]: user for user in rule.users}
    editor = editor_of(rule)
    with editor.after(items[2]):
        first = editor.call(aten.select.int, items[2], 3, 0)
    with editor.after(first):
        row = editor.call(aten.unsqueeze.default, first, 1)
    norm = next(user for user in items[0].users)
    with editor.before(norm):
        mixed = editor.call(aten.add.Tensor, items[0], row)
    norm.args = (mixed, *norm.args[1:])


def _weight_by_token(module: GraphModule) -> None:
    conv = one(module, ops.short_conv)
    editor = editor_of(conv)
    with editor.before(conv):
        mean = editor.call(aten.mean.dim, conv.args[1], [0])
        column = editor.call(aten.unsqueeze.default, editor.call(aten.transpose.int, mean, 0, 1), -1)
        weight = editor.call(aten.mul.Tensor, conv.args[2], column)
    conv.args = (*conv.args[:2], weight, *conv.args[3:])


def _windows_read_behind_the_loop(module: GraphModule) -> None:
    tokens = loop_parts(token_loop(module))
    place = next(i for i, node in enumerate(tokens.carried_inside) if node.name == "conv_window_table")
    editor = Editor(module, "edit")
    candidate = next(node for node in module.graph.nodes if node.name == "conv_candidate_rows")
    with editor.before(candidate):
        windows = editor.item(tokens.node, place, "windows")
        rows = editor.call(aten.narrow.default, windows, 2, 1, nodes_of(SMALL))
        last = editor.call(aten.select.int, rows, 3, 2)
    candidate.replace_all_uses_with(last)


def _read_twice(module: GraphModule) -> None:
    """A second recurrence starts from the parent's state of the first, and leaves its own nowhere."""
    rule = one(module, ops.delta_rule)
    items = {user.args[1]: user for user in rule.users}
    editor = editor_of(rule)
    with editor.before(items[0]):
        second = editor.call(ops.delta_rule, rule.args[0], *rule.args[2:3], *rule.args[2:])
        o = editor.item(second, 0, "second")
    items[0].replace_all_uses_with(o)


def _row_of_another_node(module: GraphModule) -> None:
    """The convolution's input is mixed with what the parent's iteration recorded of its own."""
    conv = one(module, ops.short_conv)
    batch, row = conv.args[0].args[0].args[1]
    table = next(node for node in conv.graph.nodes if node.op == "placeholder" and node.name == "conv_candidate")
    editor = editor_of(conv)
    with editor.before(conv):
        above = editor.call(aten.index.Tensor, table, [batch, row])
        mixed = editor.call(aten.add.Tensor, conv.args[1], above)
    conv.args = (conv.args[0], mixed, *conv.args[2:])


REFUSALS: list[tuple[Callable[[GraphModule], None], str]] = [
    (_no_ancestors, "has no ancestor mask, so a node may start from a later one's state"),
    (_other_ancestors, "no ancestor mask covers the parents of `short_conv`: one may come after its child (I1)"),
    (_ancestors_one_row_off, "no ancestor mask covers the parents of `short_conv`"),
    (
        _ancestors_of_a_forged_mask,
        "the ancestors of `delta_rule_1` are not those of the parents whose states it starts",
    ),
    (_state_used_elsewhere, "(the state after the token) is used where the pass can't follow it"),
    (
        _row_of_another_node,
        "`conv_candidate` (a table as earlier tokens left it) is used",
    ),
    (_weight_by_token, "but must be the same for every token"),
    (_windows_read_behind_the_loop, "the states of all tokens of `short_conv` are read, and no op gives them"),
    (_read_twice, "is not written into `state_table`, where it was read"),
]


@pytest.mark.parametrize(("edit", "reason"), REFUSALS)
def test_a_tree_that_cannot_be_turned_is_left_alone_with_the_reason(
    edit: Callable[[GraphModule], None], reason: str
) -> None:
    module = at(MASKS, SMALL)
    edit(module)
    made, notes = layer_major(finish(module), "verify")
    assert made is module
    assert [note.fired for note in notes] == [False]
    assert reason in notes[0].message


def test_without_rewritten_indices_the_committed_row_is_named_as_the_obstacle() -> None:
    module, _ = insert_tree_masks(naive_program(SMALL).graphs["verify"])
    made, notes = layer_major(module)
    assert made is module
    assert "has the committed state in another row than 0" in notes[0].message


def test_without_masks_a_recurrent_tree_is_refused() -> None:
    module = program_at(SMALL, INDICES).graphs["verify"]
    made, notes = layer_major(module)
    assert made is module
    assert "ancestor mask" in notes[0].message


def _live_at_the_end(module: GraphModule) -> None:
    live = next(node for node in module.graph.nodes if node.target is aten.lt.Tensor)
    editor = Editor(module, "edit")
    with editor.after(live):
        last = editor.call(aten.logical_not.default, live)
    live.replace_all_uses_with(last, delete_user_cb=lambda user: user is not last)


def _live_in_another_order(module: GraphModule) -> None:
    live = next(node for node in module.graph.nodes if node.target is aten.lt.Tensor)
    editor = Editor(module, "edit")
    with editor.before(live):
        number = editor.call(aten.flip.default, live.args[0], [0])
    live.args = (number, live.args[1])


def _state_changed_on_its_way(module: GraphModule) -> None:
    rule = one(module, ops.delta_rule)
    after = next(user for user in rule.users if user.args[1] == 2)
    editor = editor_of(rule)
    with editor.after(after):
        changed = editor.call(aten.mul.Tensor, after, 0.5)
    after.replace_all_uses_with(changed, delete_user_cb=lambda user: user is not changed)


def _state_changed_before_the_token(module: GraphModule) -> None:
    rule = one(module, ops.delta_rule)
    editor = editor_of(rule)
    with editor.before(rule):
        changed = editor.call(aten.mul.Tensor, rule.args[0], 0.5)
    rule.args = (changed, *rule.args[1:])


def _two_recurrences_from_one_state(module: GraphModule) -> None:
    """The second one's own state goes nowhere, so it is no recurrence of its own."""
    parts = loop_parts(token_loop(module))
    rule = one(module, ops.delta_rule)
    layers = loop_parts(layer_loop(module))
    other = add_operand(layers.node, "sliced", parts.carried_inside[0], "same_state")
    editor = editor_of(rule)
    with editor.before(rule):
        made = editor.call(ops.delta_rule, other, *rule.args[1:6])
        o = editor.item(made, 0, "other")
    first = next(user for user in rule.users if user.args[1] == 0)
    first.replace_all_uses_with(o)


CHAIN_REFUSALS: list[tuple[Callable[[GraphModule], None], str]] = [
    (_live_at_the_end, "is not known to mark the first tokens of each sequence"),
    (_live_in_another_order, "is not known to mark the first tokens of each sequence"),
    (_state_changed_on_its_way, "but its own state is not what goes on to the next token"),
    (_state_changed_before_the_token, "is a recurrence over tokens inside the layers"),
    (_two_recurrences_from_one_state, "starts from `same_state`, but its own state is not what goes on to the next"),
]


@pytest.mark.parametrize(("edit", "reason"), CHAIN_REFUSALS)
def test_a_chain_that_cannot_be_turned_is_left_alone_with_the_reason(
    edit: Callable[[GraphModule], None], reason: str
) -> None:
    module = at(MASKS, SMALL, "prefill")
    edit(module)
    made, notes = layer_major(finish(module), "prefill")
    assert made is module
    assert [note.fired for note in notes] == [False]
    assert reason in notes[0].message, notes[0].message


# Planted faults: comparing with naive decoding must see each of them.


def _swap(target: object, place: int, make: Callable[[Editor, Node], Node]) -> Callable[[GraphModule], None]:
    def edit(module: GraphModule) -> None:
        call = calls(module, target)[0]
        editor = editor_of(call)
        with editor.before(call):
            made = make(editor, call.args[place])
        call.args = (*call.args[:place], made, *call.args[place + 1 :])

    return edit


def _in_order(editor: Editor, row: Node) -> Node:
    return editor.call(aten.expand_as.default, editor.call(ops.iota, row, -2), row)


PLANTED = {
    "window along the tokens": _swap(ops.tree_conv, 4, _in_order),
    "state along the tokens": _swap(ops.delta_rule_verify, 6, _in_order),
    "every node a child of the context": _swap(
        ops.delta_rule_verify, 6, lambda editor, row: editor.call(aten.zeros_like.default, row)
    ),
    "the window forgotten": _swap(ops.tree_conv, 0, lambda editor, x: editor.call(aten.zeros_like.default, x)),
    "the state forgotten": _swap(ops.delta_rule_verify, 0, lambda editor, x: editor.call(aten.zeros_like.default, x)),
    "the decay of another node": _swap(
        ops.delta_rule_verify, 4, lambda editor, g: editor.call(aten.roll.default, g, [1], [1])
    ),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_planted_faults_are_seen_by_the_comparison(fault: str) -> None:
    module = at(LAYERS, SMALL)
    PLANTED[fault](module)
    before, after = (
        verified(naive_program(SMALL), BRANCHED, SMALL),
        verified(with_verify(module, SMALL), BRANCHED, SMALL),
    )
    with pytest.raises(AssertionError, match=r"logits|candidate|factor"):
        assert_same(before, after)
