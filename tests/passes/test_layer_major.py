"""layer-major: equal results on trees, chains and prompts; the form later passes rely on; refusals with reasons."""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx import GraphModule, Node

from specc.ir import ops
from specc.ir.clone import clone
from specc.ir.dims import BATCH
from specc.ir.edit import Editor, bodies, finish, loop_parts, modules, retype
from specc.ir.loop import loop
from specc.passes.insert_tree_masks import insert_tree_masks
from specc.passes.layer_major import layer_major
from tests.passes.tree_programs import (
    CHAINS,
    TREES,
    Small,
    assert_same,
    batches,
    naive_program,
    run,
    staged,
    state_of,
    verified,
    weights_of,
)

aten = torch.ops.aten
SMALL = TREES[0]
FINAL = "the final output of a"


def calls(module: GraphModule, target: object) -> list[Node]:
    """Calls of an op in a module and its loop bodies."""
    return [node for item in modules(module) for node in item.graph.nodes if node.target is target]


def masked(small: Small = SMALL) -> GraphModule:
    """A fresh copy of verify as layer-major gets it."""
    return clone(staged(small)["insert-tree-masks"].program.graphs["verify"])


@given(st.data())
@settings(max_examples=25)
def test_layer_major_and_token_major_trees_agree(data: st.DataObject) -> None:
    small = data.draw(st.sampled_from(TREES))
    batch = data.draw(batches(small))
    before = verified(naive_program(small), batch, small, weights_of(small))
    program = staged(small)["layer-major"].program
    assert_same(before, verified(program, batch, small, weights_of(small), strict=True))


@given(st.data())
@settings(max_examples=20)
def test_layer_major_and_token_major_chains_agree(data: st.DataObject) -> None:
    small = data.draw(st.sampled_from(CHAINS))
    batch = data.draw(batches(small))
    before = verified(naive_program(small), batch, small, weights_of(small))
    program = staged(small)["layer-major"].program
    assert_same(before, verified(program, batch, small, weights_of(small), strict=True))


@given(st.data())
@settings(max_examples=20)
def test_layer_major_and_token_major_prefill_agree_for_every_length(data: st.DataObject) -> None:
    small = data.draw(st.sampled_from(TREES))
    size = data.draw(st.integers(1, 6))
    rows = data.draw(st.integers(1, 3))
    token = st.integers(0, 12)
    prompts = st.lists(st.lists(token, min_size=size, max_size=size), min_size=rows, max_size=rows)
    inputs = {
        "input_ids": torch.tensor(data.draw(prompts)),
        "lengths": torch.tensor(data.draw(st.lists(st.integers(0, size), min_size=rows, max_size=rows))),
    }
    lengths = data.draw(st.lists(st.integers(0, 12), min_size=rows, max_size=rows))
    state, weights = state_of(naive_program(small), lengths), weights_of(small)
    before = run(naive_program(small), "prefill", state, weights, inputs)
    after = run(staged(small)["layer-major"].program, "prefill", state, weights, inputs, strict=True)
    live = inputs["lengths"] > 0
    before["logits"], after["logits"] = before["logits"][live], after["logits"][live]
    if live.any():
        assert_same(before, after)


@pytest.mark.parametrize("small", TREES)
def test_a_tree_becomes_one_loop_over_layers_with_one_masked_attention(small: Small) -> None:
    result = staged(small)["layer-major"]
    module = result.program.graphs["verify"]
    assert [(node.args[0], node.args[2]) for node, _ in bodies(module)] == [("layer", small.layers)]
    (layers,) = [loop_parts(node) for node, _ in bodies(module)]
    (attention,) = calls(module, ops.tree_attention)
    batch, nodes, heads, dim = attention.meta["val"].shape
    assert (batch, nodes, heads, dim) == (BATCH, small.nodes, small.heads, 6)
    assert not calls(module, aten.select_scatter.default)
    assert not calls(module, ops.full_rows), "no tables are left"
    rows = [attention.args[4], attention.args[5]]
    assert [value for value in layers.stacked_out if value in rows] == rows, "the candidates are the attention's rows"
    notes = [note for note in result.notes("layer-major") if note.graph == "verify"]
    assert [note.fired for note in notes] == [True]
    assert "verify.attention" in notes[0].keys
    assert "k_table (0..N-1, 0)" in notes[0].message


@pytest.mark.parametrize("small", CHAINS)
def test_a_chain_becomes_one_loop_over_layers_with_causal_attention_from_0(small: Small) -> None:
    module = staged(small)["layer-major"].program.graphs["verify"]
    assert [node.args[0] for node, _ in bodies(module)] == ["layer"]
    (attention,) = calls(module, ops.causal_attention)
    assert attention.args[7] == 0
    assert not calls(module, ops.tree_attention)
    assert not calls(module, ops.ancestor_mask)


def test_features_of_several_layers_are_read_from_the_stacked_rows() -> None:
    small = TREES[3]
    module = staged(small)["layer-major"].program.graphs["verify"]
    stacked = {node.args[0] for node in calls(module, aten.select.int)}
    assert {node.meta["val"].shape for node in stacked} == {(small.layers, BATCH, small.nodes, 24)}


def test_nodes_keep_their_spec_keys_and_name_the_pass() -> None:
    (attention,) = calls(staged(SMALL)["layer-major"].program.graphs["verify"], ops.tree_attention)
    assert "verify.attention" in attention.meta["keys"]
    assert attention.meta["passes"][0] == "lower"
    assert "layer-major" in attention.meta["passes"]


def test_a_second_run_changes_nothing() -> None:
    module = staged(SMALL)["layer-major"].program.graphs["verify"]
    made, notes = layer_major(module)
    assert made is module
    assert notes == ()


def test_the_module_given_stays_as_it_is() -> None:
    module = masked()
    before = [item.code for item in modules(module)]
    layer_major(module)
    assert [item.code for item in modules(module)] == before


def test_a_reader_of_a_whole_table_gets_it_with_the_rows_put_in() -> None:
    module = masked()
    node = next(node for node in module.graph.nodes if node.target is loop)
    table = next(item for item in node.users if item.args[1] == 0)
    narrow = next(iter(table.users))
    editor = Editor(module, "edit")
    with editor.after(table):
        whole = editor.call(aten.mul.Tensor, table, 2)
    with editor.before(narrow):
        half = editor.call(aten.div.Tensor, whole, 2)
    narrow.args = (half, *narrow.args[1:])
    made, notes = layer_major(finish(module))
    assert notes[0].fired
    assert len(calls(made, aten.slice_scatter.default)) == 1
    state = state_of(naive_program(SMALL), [5])
    inputs = {"tokens": torch.tensor([[1, 2, 3, 4, 5]]), "parent": torch.tensor([[-1, 0, 0, 1, 1]])}
    inputs["valid"] = torch.ones(1, 5, dtype=torch.bool)
    first, second = (
        run(naive_program(SMALL).with_graphs(verify=graph), "verify", state, weights_of(SMALL), inputs)
        for graph in (module, made)
    )
    assert_same(first, second)


# Refusals: one edit each, and the reason that has to come back.


def _editor(module: GraphModule, target: object) -> tuple[Editor, Node]:
    node = calls(module, target)[0]
    owner = node.graph.owning_module
    assert owner is not None
    return Editor(owner, "edit"), node


def _wrap(module: GraphModule, target: object, make: Callable[[Editor, Node], Node]) -> None:
    editor, node = _editor(module, target)
    with editor.after(node):
        new = make(editor, node)
    node.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)


def _unknown_op(module: GraphModule) -> None:
    _wrap(module, aten.silu.default, lambda editor, node: editor.call(aten.flip.default, node, [-1]))


def _mixed_tokens(module: GraphModule) -> None:
    _wrap(module, aten.silu.default, lambda editor, node: editor.call(aten.softmax.int, node, 1))


def _forged_mask(module: GraphModule) -> None:
    _wrap(module, ops.ancestor_mask, lambda editor, node: editor.call(aten.logical_not.default, node))


def _table_before_the_write(module: GraphModule) -> None:
    _, attention = _editor(module, ops.tree_attention)
    rows = attention.args[4]
    rows.args = (rows.args[0].args[0], *rows.args[1:])


def _other_rows(module: GraphModule) -> None:
    _, attention = _editor(module, ops.tree_attention)
    rows = attention.args[4]
    rows.args = (rows.args[0], 1, 0, rows.args[3])


def _same_for_every_token(module: GraphModule) -> None:
    parts = loop_parts(next(node for node in module.graph.nodes if node.target is loop))
    body = Editor(parts.body, "edit")
    output = parts.body.graph.output_node()
    with body.before(output):
        length = next(node for node in parts.invariant_inside if node.meta["val"].shape == (BATCH,))
        column = body.call(aten.unsqueeze.default, length, 1)
    output.args = ((*output.args[0][:-1], column),)


def _visits_some(module: GraphModule) -> None:
    node = next(node for node in module.graph.nodes if node.target is loop)
    node.args = (*node.args[:2], SMALL.nodes - 1, *node.args[3:])


def _effect(module: GraphModule) -> None:
    _wrap(module, aten.silu.default, lambda editor, node: editor.call(aten.relu_.default, node))


REFUSALS: list[tuple[Callable[[GraphModule], None], str]] = [
    (_unknown_op, "nothing is known of how it treats the token axis"),
    (_mixed_tokens, "it works along the token axis"),
    (_forged_mask, "has no ancestor mask, so a token may read rows of later ones"),
    (_table_before_the_write, "a table as earlier tokens left it"),
    (_other_rows, "takes other rows of a table than those of the tokens"),
    (_visits_some, "the loop visits 4 of the rows of"),
    (_effect, "has an effect besides its result"),
    (_same_for_every_token, "stacked result 2 of the loop is the same for every token"),
]


@pytest.mark.parametrize(("edit", "reason"), REFUSALS)
def test_a_loop_that_cannot_be_turned_is_left_alone_with_the_reason(
    edit: Callable[[GraphModule], None], reason: str
) -> None:
    module = masked()
    edit(module)
    made, notes = layer_major(finish(module), "verify")
    assert made is module
    assert [note.fired for note in notes] == [False]
    assert reason in notes[0].message


def test_without_masks_the_depth_recurrence_is_named_as_the_obstacle() -> None:
    module = naive_program(SMALL).graphs["verify"]
    made, notes = layer_major(module)
    assert made is module
    assert not notes[0].fired
    assert "`depth_table` is a recurrence over tokens before the layers" in notes[0].message


def test_a_chain_that_looks_ahead_is_refused() -> None:
    module = clone(naive_program(CHAINS[0]).graphs["verify"])
    editor, attention = _editor(module, ops.causal_attention)
    with editor.before(attention):
        ahead = editor.call(operator.add, attention.args[7], 1)
    attention.args = (*attention.args[:7], ahead, *attention.args[8:])
    _, notes = layer_major(finish(module))
    assert "is not causal from the token's own number on" in notes[0].message


def test_a_chain_whose_table_starts_with_another_row_is_refused() -> None:
    """Causal attention counts rows from 0, so token t would see the extra row and miss its own."""
    module = clone(naive_program(CHAINS[0]).graphs["verify"])
    for node in calls(module, ops.full_rows):
        shape = [CHAINS[0].nodes + 1 if size == -2 else size for size in node.args[1]]
        node.args = (node.args[0], shape, *node.args[2:])
    for node in calls(module, aten.select_scatter.default):
        owner = node.graph.owning_module
        assert owner is not None
        editor = Editor(owner, "edit")
        with editor.before(node):
            place = editor.call(operator.add, node.args[3], 1)
        node.args = (*node.args[:3], place)
    retype(module)
    made, notes = layer_major(finish(module))
    assert made is module
    assert "reads K or V rows that are not the tokens' own" in notes[0].message


def test_numbers_counted_from_another_start_stay_so() -> None:
    small = CHAINS[0]
    module = clone(naive_program(small).graphs["verify"])
    editor, depth = _editor(module, aten.full_like.default)
    with editor.before(depth):
        number = editor.call(operator.add, depth.args[1], 3)
    depth.args = (depth.args[0], number)
    made, notes = layer_major(finish(module))
    assert notes[0].fired
    state, inputs = state_of(naive_program(small), [5, 0]), {"tokens": torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 9, 1]])}
    first, second, unshifted = (
        run(naive_program(small).with_graphs(verify=graph), "verify", state, weights_of(small), inputs)
        for graph in (module, made, naive_program(small).graphs["verify"])
    )
    assert_same(first, second)
    assert not torch.allclose(first["k_candidate"], unshifted["k_candidate"])


def test_a_number_that_is_counted_down_is_refused() -> None:
    module = clone(naive_program(CHAINS[0]).graphs["verify"])
    editor, depth = _editor(module, aten.full_like.default)
    with editor.before(depth):
        number = editor.call(operator.sub, 9, depth.args[1])
    depth.args = (depth.args[0], number)
    _, notes = layer_major(finish(module))
    assert [note.fired for note in notes] == [False]
    assert "computes with the token's number in an unknown way" in notes[0].message


def test_a_number_spread_over_wider_rows_is_every_tokens_own() -> None:
    small = CHAINS[0]
    module = clone(naive_program(small).graphs["verify"])
    editor, depth = _editor(module, aten.full_like.default)
    with editor.before(depth):
        wide = editor.call(aten.unsqueeze.default, depth.args[0], -1)
    depth.args = (wide, depth.args[1])
    depth.meta["val"] = wide.meta["val"]
    _wrap(module, aten.full_like.default, lambda editor, node: editor.call(aten.squeeze.dim, node, -1))
    made, notes = layer_major(finish(module))
    assert notes[0].fired
    state, inputs = state_of(naive_program(small), [5, 0]), {"tokens": torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 9, 1]])}
    first, second = (
        run(naive_program(small).with_graphs(verify=graph), "verify", state, weights_of(small), inputs)
        for graph in (naive_program(small).graphs["verify"], made)
    )
    assert_same(first, second)


def test_both_passes_work_on_a_graph_module_alone() -> None:
    first, _ = insert_tree_masks(naive_program(SMALL).graphs["verify"])
    made, notes = layer_major(first)
    assert notes[0].fired
    assert [node.args[0] for node, _ in bodies(made)] == ["layer"]
