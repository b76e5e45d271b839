"""layer-major on recurrent layers: which ops all tokens of a layer become, and which tables vanish; and
rewrite-negative-indices on the tables of states that it starts from."""

from __future__ import annotations

import pytest
import torch
from torch.fx import GraphModule, Node

from specc.ir import ops
from specc.ir.clone import clone
from specc.ir.dims import BATCH, CHUNK
from specc.ir.edit import Editor, bodies, finish, loop_parts, modules
from specc.ir.port import ValueRange
from specc.ir.scope import Scope, Value
from specc.passes.layer_major import layer_major
from specc.passes.rewrite_negative_indices import rewrite_negative_indices
from specc.testing import DraftBatch, make_tree
from tests.passes.recurrent_edits import at, calls, naive, one, token_loop, with_verify
from tests.passes.recurrent_programs import (
    COMMITS,
    STEPS,
    Recurrent,
    assert_same,
    naive_program,
    nodes_of,
    path_of,
    program_at,
    staged,
    verified,
)

aten = torch.ops.aten
INDICES, MASKS, LAYERS = "rewrite-negative-indices", "insert-tree-masks", "layer-major"
SMALL = Recurrent("delta", "dynamic", "factors")
SNAPSHOTS = Recurrent("shared heads", "static", "snapshots")
CHAIN = Recurrent("shared heads", "chain", "replay")
CHAIN_SNAPSHOTS = Recurrent("delta", "chain", "snapshots")
HYBRID = Recurrent("two periods", "dynamic", "replay")
BRANCHED = DraftBatch(
    (make_tree((1, 2, 3, 4, 5), (-1, 0, 0, 1, 3), 6), make_tree((6, 7, 8, 9), (-1, 0, 1, 0), 6)), (7, 0)
)


def outside(module: GraphModule, node: Node) -> Node:
    """What an operand of a layer's body is outside the loop over layers."""
    (layers,) = [scope for scope in Scope(module).walk() if scope.loop is not None]
    value = Value(layers, node).resolved()
    role = value.scope.role(value.node)
    if role is None:
        return value.node
    assert layers.loop is not None
    operand = layers.loop.sliced[role[1]]
    assert isinstance(operand, Node)
    return operand


# Pass 1: the committed state moves from the last row to row 0.


@pytest.mark.parametrize("small", [SMALL, SNAPSHOTS, HYBRID])
def test_tables_of_states_get_the_committed_one_in_row_0(small: Recurrent) -> None:
    before, after = naive_program(small).graphs["verify"], program_at(small, INDICES).graphs["verify"]
    assert {node.args[2] for node in calls(before, ops.root_table)} == {-1}
    assert {node.args[2] for node in calls(after, ops.root_table)} == {0}
    assert not any("poison" in node.meta for node in calls(after, ops.root_table)), "row 0 is read"
    assert not any(node.name.endswith("_wrapped") for item in modules(after) for node in item.graph.nodes)
    notes = [note for note in staged(small)[INDICES].notes(INDICES) if note.fired and "state_table" in note.message]
    assert "-1 is the committed context, now the dummy root in row 0" in notes[0].message


def test_a_row_of_parents_is_computed_once_outside_the_layers() -> None:
    module = program_at(HYBRID, INDICES).graphs["verify"]
    made = [node for node in calls(module, aten.add.Tensor) if node.name.startswith("parent_row")]
    assert len(made) == 1
    assert made[0].graph is loop_parts(token_loop(module)).body.graph


def test_a_table_with_the_committed_state_elsewhere_keeps_its_layout() -> None:
    program = naive_program(SMALL)
    module = clone(program.graphs["verify"])
    made = calls(module, ops.root_table)[0]
    made.args = (*made.args[:2], 3)
    ranges = {node.name: program.ranges[key] for key, node in _inputs(module).items() if key in program.ranges}
    after, _ = rewrite_negative_indices(finish(module), ranges)
    assert {node.args[2] for node in calls(after, ops.root_table)} == {3, 0}
    assert any(node.name.endswith("_wrapped") for item in modules(after) for node in item.graph.nodes)


def test_a_committed_state_is_never_taken_for_padding() -> None:
    """Row 0 of constant tables may hold anything where -1 means padding; row 0 of a table of states is read."""
    module = clone(naive_program(SMALL).graphs["verify"])
    ranges = {"parent": ValueRange(-1, nodes_of(SMALL) - 2, "pad"), "tokens": ValueRange(0, 12)}
    after, _ = rewrite_negative_indices(module, ranges)
    tables = calls(after, ops.root_table)
    assert {node.args[2] for node in tables} == {0}
    assert not any("poison" in node.meta for node in tables)


def _inputs(module: GraphModule) -> dict[str, Node]:
    ports = {node: node.meta["port"] for node in module.graph.nodes if node.op == "placeholder"}
    return {f"{port.kind}:{port.name}": node for node, port in ports.items()}


@pytest.mark.parametrize("small", [SNAPSHOTS, CHAIN_SNAPSHOTS])
def test_the_place_of_the_last_accepted_node_wraps_in_range(small: Recurrent) -> None:
    """count - 1 is -1 where nothing was accepted; what is read there is not used."""
    module = program_at(small, INDICES).graphs["commit"]
    (wrapped,) = [node for item in modules(module) for node in item.graph.nodes if node.name == "last_wrapped"]
    negative, from_end, plain = wrapped.args
    assert (negative.args, from_end.args) == ((plain, 0), (plain, path_of(small)))


# Pass 3: the form.


@pytest.mark.parametrize("small", [SMALL, HYBRID, Recurrent("experts", "static", "factors")])
def test_a_tree_becomes_tree_ops_on_the_committed_state_and_window(small: Recurrent) -> None:
    module = program_at(small, LAYERS).graphs["verify"]
    assert [node.args[0] for node, _ in bodies(module)] == ["layer"]
    convs, rules = calls(module, ops.tree_conv), calls(module, ops.delta_rule_verify)
    assert len(convs) == len(rules) > 0
    assert not calls(module, ops.short_conv, ops.delta_rule, ops.root_table, ops.full_rows, aten.select_scatter.default)
    nodes = nodes_of(small)
    for conv, rule in zip(convs, rules, strict=True):
        assert outside(module, conv.args[0]).meta["port"].name.endswith("conv_window")
        assert outside(module, rule.args[0]).meta["port"].name.endswith("state")
        row, mask = outside(module, rule.args[6]), outside(module, rule.args[7])
        assert row is outside(module, conv.args[4])
        assert (row.meta["val"].shape, mask.target) == ((BATCH, nodes), ops.ancestor_mask)
        assert row.target is aten.add.Tensor
        assert rule.args[8] == "unscheduled"


@pytest.mark.parametrize("small", [SNAPSHOTS, HYBRID, *(Recurrent("delta", "dynamic", commit) for commit in COMMITS)])
def test_no_table_of_windows_is_left_and_states_only_where_commit_wants_them(small: Recurrent) -> None:
    program = program_at(small, LAYERS)
    module, nodes = program.graphs["verify"], nodes_of(small)
    slots = program.slots
    window = next(slot.shape[2:] for name, slot in slots.items() if name.endswith("conv_window"))
    state = next(slot.shape[2:] for name, slot in slots.items() if name.endswith("state"))
    shapes = [
        tuple(value.shape)
        for item in modules(module)
        for node in item.graph.nodes
        for value in _tensors(node.meta.get("val"))
    ]
    assert not any(shape[-len(window) - 1 :] == (rows, *window) for shape in shapes for rows in (nodes, nodes + 1))
    states = [shape for shape in shapes if shape[-len(state) - 1 :] == (nodes, *state)]
    assert bool(states) == (small.commit == "snapshots")
    assert bool(calls(module, ops.delta_rule_verify_states)) == (small.commit == "snapshots")


def _tensors(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [item for item in value if isinstance(item, torch.Tensor)] if isinstance(value, (list, tuple)) else []


def test_states_that_commit_takes_are_the_ops_last_result() -> None:
    module = program_at(SNAPSHOTS, LAYERS).graphs["verify"]
    rule = one(module, ops.delta_rule_verify_states)
    (layers,) = [loop_parts(node) for node, _ in bodies(module)]
    assert any(value.args == (rule, 2) for value in layers.stacked_out if value.op == "call_function")


@pytest.mark.parametrize("step", ["prefill", "decode"])
@pytest.mark.parametrize("small", [SMALL, CHAIN, HYBRID])
def test_prompts_and_plain_steps_run_the_chain_ops_over_all_tokens(small: Recurrent, step: str) -> None:
    module = program_at(small, LAYERS).graphs[step]
    tokens = CHUNK if step == "prefill" else 1
    target = [scope for scope in Scope(module).walk() if any(_recurs(node) for node in scope.module.graph.nodes)]
    (layers,) = target
    assert layers.loop is not None
    for node in calls(module, ops.short_conv, ops.delta_rule):
        state = layers.loop.sliced[layers.loop.sliced_inside.index(node.args[0])]
        assert state.meta["port"].kind == "slot"
        assert node.args[1].meta["val"].shape[1] == tokens
        after = [user for user in node.users if user.args[1] == (1 if node.target is ops.short_conv else 2)]
        assert set(after) & set(layers.loop.stacked_out), "the state after the last token is the next one"
        if node.target is ops.short_conv:
            assert node.args[4] is not None, "tokens that don't count leave the window as it is"


def _recurs(node: Node) -> bool:
    return node.target in (ops.short_conv, ops.delta_rule)


def test_a_chain_that_records_states_gets_them_from_one_op() -> None:
    module = program_at(CHAIN_SNAPSHOTS, LAYERS).graphs["verify"]
    rule = one(module, ops.delta_rule_verify_states)
    assert rule.args[6:] == (None, None, "unscheduled")
    assert not calls(module, ops.delta_rule)
    assert len(calls(module, ops.short_conv)) == 1
    module = program_at(CHAIN, LAYERS).graphs["verify"]
    assert len(calls(module, ops.delta_rule)) == 1
    assert not calls(module, ops.delta_rule_verify_states)


def test_the_last_of_recorded_states_goes_on() -> None:
    """A chain whose states are recorded and whose last state leaves the loop as well."""
    module = naive(CHAIN_SNAPSHOTS)
    tokens = loop_parts(token_loop(module))
    place = next(
        i
        for i, node in enumerate(tokens.carried_inside)
        if node.meta["val"].shape == tokens.carried[0].meta["val"].shape
    )
    output = module.graph.output_node()
    with Editor(module, "edit").before(output):
        last = Editor(module, "edit").item(tokens.node, place, "last_state")
    number = next(i for i, port in enumerate(output.meta["ports"]) if port.name == "conv_candidate")
    output.args = ((*output.args[0][:number], last, *output.args[0][number + 1 :]),)
    made, notes = layer_major(finish(module))
    assert notes[0].fired
    chain = DraftBatch(
        tuple(make_tree(tokens, (-1, 0, 1, 2, 3)) for tokens in ((1, 2, 3, 4, 5), (6, 7, 8, 9, 10))), (3, 0)
    )
    programs = [with_verify(graph, CHAIN_SNAPSHOTS) for graph in (module, made)]
    before, after = (verified(program, chain, CHAIN_SNAPSHOTS) for program in programs)
    assert_same(before, after)
    assert torch.equal(after["conv_candidate"], after["state_candidate"][:, :, -1])


def test_distances_of_states_are_named() -> None:
    def said(small: Recurrent, step: str) -> str:
        (note,) = [note for note in staged(small)[LAYERS].notes(LAYERS) if note.graph == step]
        assert note.fired
        assert "verify.recurrence" in note.keys
        return note.message

    assert "state_table (1..N-1, 0); conv_window_table (1..N-1, 0)" in said(SMALL, "verify")
    assert "k_factor (0..N-1, 0)" in said(SMALL, "verify")
    assert "state (1, 0); conv_window (1, 0)" in said(SMALL, "prefill")
    assert "state (1, 0); conv_window (1, 0)" in said(CHAIN, "verify")


def test_a_second_run_changes_nothing() -> None:
    for step in STEPS:
        module = program_at(SMALL, LAYERS).graphs[step]
        made, notes = layer_major(module)
        assert made is module
        assert notes == ()


def test_the_form_does_not_depend_on_names() -> None:
    module = at(MASKS, SMALL)
    for item in modules(module):
        for number, node in enumerate(item.graph.nodes):
            if node.op != "get_attr":
                node._rename(f"n{number}")
    made, notes = layer_major(finish(module))
    assert notes[0].fired
    assert len(calls(made, ops.tree_conv)) == len(calls(made, ops.delta_rule_verify)) == 1
    before, after = (verified(program, BRANCHED, SMALL) for program in (naive_program(SMALL), with_verify(made, SMALL)))
    assert_same(before, after)
