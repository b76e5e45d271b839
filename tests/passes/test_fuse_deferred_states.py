"""Deferred commits of recurrent states: equal to immediate ones at any moment, fused, refused per slot with reasons."""

from __future__ import annotations

import operator
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx import Node

from specc.ir import ops
from specc.ir.clone import clone
from specc.ir.edit import bodies, finish, is_loop, loop_parts
from specc.ir.interpreter import init_state
from specc.ir.op import info
from specc.ir.verifier import verify
from specc.manager import PassContext, PassResult
from specc.passes.fuse_deferred_state_update import FuseDeferredStateUpdate, unfolded_reads
from specc.passes.fuse_deferred_state_update.find import find_slice
from specc.passes.select_schedule import SelectSchedule
from specc.passes.select_schedule.sites import sites
from specc.passes.select_schedule.tiles import FORM, SCHEDULES
from specc.program import DecodeProgram, output_ports
from tests.passes.recurrent_steps import Lockstep, any_steps, layer_major_program

WINDOWS = (0, 2, 5)


@cache
def deferred(target: str, draft: str, window: int = 0, state: str = "factors") -> PassResult:
    before = layer_major_program(target, draft, state)
    made = FuseDeferredStateUpdate(window=window).run(before, PassContext())
    verify(made.program, after="fuse-deferred-state-update")
    return made


@cache
def scheduled(target: str, draft: str, window: int, schedule: str) -> DecodeProgram:
    before = deferred(target, draft, window).program
    made = SelectSchedule(schedule=schedule).run(before, PassContext())  # type: ignore[arg-type]
    verify(made.program, after="select-schedule")
    assert unfolded_reads(made.program) == []
    return made.program


@cache
def immediate(target: str, draft: str, schedule: str) -> DecodeProgram:
    before = layer_major_program(target, draft)
    return SelectSchedule(schedule=schedule).run(before, PassContext()).program  # type: ignore[arg-type]


def calls(program: DecodeProgram, step: str) -> list[str]:
    """Names of our ops in a step's loops, in order."""
    found = []
    for _, body in bodies(program.graphs[step]):
        for node in body.graph.nodes:
            declared = info(node.target)
            if declared is not None:
                found.append(declared.name)
    return found


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("draft", ["tree", "chain"])
@pytest.mark.parametrize("target", ["delta", "hybrid"])
@given(data=st.data())
@settings(max_examples=6)
def test_deferred_and_flushed_is_immediate_at_any_moment(
    target: str, draft: str, window: int, data: st.DataObject
) -> None:
    before, after = layer_major_program(target, draft), deferred(target, draft, window).program
    batch = data.draw(st.integers(1, 3))
    any_steps(Lockstep([before, after], target, batch), data, batch, draft == "tree")


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("schedule", SCHEDULES)
@given(data=st.data())
@settings(max_examples=3)
def test_so_it_is_under_every_schedule(schedule: str, window: int, data: st.DataObject) -> None:
    draft = data.draw(st.sampled_from(["tree", "chain"]))
    target = data.draw(st.sampled_from(["delta", "hybrid"]))
    before, after = immediate(target, draft, schedule), scheduled(target, draft, window, schedule)
    batch = data.draw(st.integers(1, 3))
    lockstep = Lockstep([before, after], target, batch, exact=schedule != "tree")
    any_steps(lockstep, data, batch, draft == "tree", steps=3)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("draft", ["tree", "chain"])
def test_one_loop_verifies_with_what_is_pending_and_nothing_else_touches_the_state(draft: str, window: int) -> None:
    made = deferred("hybrid", draft, window)
    assert unfolded_reads(made.program) == []
    assert sum(is_loop(node) for node in made.program.graphs["verify"].graph.nodes) == 1
    found = calls(made.program, "verify")
    assert found.count("delta_rule_verify_pending") == 1
    assert not {"delta_rule_commit", "delta_rule_verify", "delta_rule"} & set(found)
    assert found.count("commit_path") == 2
    op = next(
        node
        for _, body in bodies(made.program.graphs["verify"])
        for node in body.graph.nodes
        if node.target is ops.delta_rule_verify_pending
    )
    assert op.args[6] == max(window, 1)
    assert (op.args[4] is None) == (window > 1)
    assert calls(made.program, "flush").count("delta_rule_commit") == 1
    assert "delta_rule_commit" not in calls(made.program, "commit")
    fused = [note for note in made.notes if "prologue" in note.message]
    assert [note.fired for note in fused] == [True]


@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_pending_factors_are_folded_in_the_form_of_the_schedule(schedule: str, window: int) -> None:
    program = scheduled("delta", "tree", window, schedule)
    for step in ("verify", "flush"):
        assert {site.argument("form") for site in sites(program.graphs[step])} == {FORM[schedule]}  # type: ignore[index]


def test_kv_rows_and_states_share_one_count_and_windows_have_their_own() -> None:
    one, two = deferred("hybrid", "tree").program, deferred("hybrid", "tree", 3).program
    assert one.attributes["pending_count"] == "pending_emitted"
    assert two.attributes["pending_count"] == ["pending_emitted", "pending_factors"]
    added = {name for name, slot in one.slots.items() if slot.role == "pending"}
    assert added == {"pending_path", "pending_emitted", "pending_length"}
    lists = {name: slot.shape[2] for name, slot in two.slots.items() if name.startswith("l0_pending")}
    rows = 3 - 1 + two.attributes["max_path"]
    assert lists == {"l0_pending_k": rows, "l0_pending_u": rows, "l0_pending_g": rows}
    assert two.ranges["slot:pending_factors"].high == rows


@pytest.mark.parametrize(
    ("state", "reason"),
    [("snapshots", "where.self"), ("replay", "specc.delta_rule"), ("factors", "")],
)
def test_slots_that_can_not_wait_stay_immediate_each_with_its_reason(state: str, reason: str) -> None:
    made = deferred("hybrid", "tree", 0, state)
    refused = {note.message.split("`")[1]: note.message for note in made.notes if not note.fired}
    assert "specc.conv_commit" in refused["l0_conv_window"]
    assert "declares no operand that makes it the identity" in refused["l0_conv_window"]
    if reason:
        assert reason in refused["l0_state"]
    assert set(refused) == {"l0_conv_window"} | ({"l0_state"} if reason else set())
    written = {port.name for port in output_ports(made.program.graphs["commit"])}
    assert "l0_conv_window" in written
    assert ("l0_state" in written) == bool(reason)
    assert made.changed  # the KV rows wait all the same


@given(data=st.data())
@settings(max_examples=5)
def test_a_program_of_which_only_a_part_waits_is_the_same_decoder(data: st.DataObject) -> None:
    state = data.draw(st.sampled_from(["snapshots", "replay"]))
    before, after = layer_major_program("hybrid", "tree", state), deferred("hybrid", "tree", 0, state).program
    batch = data.draw(st.integers(1, 2))
    any_steps(Lockstep([before, after], "hybrid", batch), data, batch, True, steps=3)


def test_a_purely_recurrent_target_without_factors_has_nothing_to_defer() -> None:
    made = deferred("delta", "tree", 0, "snapshots")
    assert not made.changed
    assert {note.message.split("`")[1] for note in made.notes} == {"state", "conv_window"}


def test_kv_rows_do_not_compose_so_the_window_is_not_theirs() -> None:
    notes = [note for note in deferred("hybrid", "tree", 4).notes if "folded by every verify" in note.message]
    assert {note.message.split("`")[1] for note in notes} == {"l1_k_cache", "l1_v_cache"}
    assert all("compose" in note.message for note in notes)


def edit(program: DecodeProgram, step: str, change: object) -> DecodeProgram:
    module = clone(program.graphs[step])
    change(module)  # type: ignore[operator]
    return program.with_graphs(**{step: finish(module)})


def body_node(module: object, target: object) -> Node:
    return next(
        node
        for _, body in bodies(module)  # type: ignore[arg-type]
        for node in body.graph.nodes
        if node.target is target
    )


def test_a_state_that_two_ops_read_is_folded_apart() -> None:
    def twice(module: object) -> None:
        node = body_node(module, ops.delta_rule_verify)
        other = node.graph.call_function(ops.delta_rule_verify, node.args)
        other.meta |= node.meta
        node.append(other)
        end = node.graph.output_node()
        first = end.args[0]
        item = node.graph.call_function(operator.getitem, (other, 1))
        item.meta |= {**node.meta, "val": node.meta["val"][1]}
        other.append(item)
        rows = next(value for value in first if value.name.startswith("u"))  # type: ignore[union-attr]
        end.replace_input_with(rows, item)

    made = FuseDeferredStateUpdate().run(edit(layer_major_program("delta", "tree"), "verify", twice), PassContext())
    verify(made.program)
    assert unfolded_reads(made.program) == []
    note = next(note for note in made.notes if "stays an op of its own" in note.message)
    assert "2 ops read the folded state" in note.message
    assert "delta_rule_commit" in calls(made.program, "verify")


def test_the_predicate_sees_a_verify_that_reads_a_state_with_something_pending() -> None:
    after = deferred("delta", "tree").program
    plain = layer_major_program("delta", "tree").graphs["verify"]
    reasons = unfolded_reads(after.with_graphs(verify=plain))
    assert "verify does not clear `pending_emitted`" in reasons
    assert any("reads `state` before what is pending is folded" in reason for reason in reasons)
    assert any("accept reads `state`" in r for r in unfolded_reads(after.with_graphs(accept=plain)))


@pytest.mark.parametrize("window", [0, 3])
def test_the_predicate_sees_a_fold_that_counts_something_else(window: int) -> None:
    after = deferred("delta", "tree", window).program

    def other_count(module: object) -> None:
        node = body_node(module, ops.delta_rule_verify_pending)
        loop = next(item for item in module.graph.nodes if is_loop(item))  # type: ignore[attr-defined]
        parts = loop_parts(loop)
        count = parts.invariant[parts.invariant_inside.index(node.args[5])]
        for user in list(count.users):
            if user is loop:
                with module.graph.inserting_before(loop):  # type: ignore[attr-defined]
                    less = module.graph.call_function(torch.ops.aten.sub.Tensor, (count, 1))  # type: ignore[attr-defined]
                less.meta |= count.meta
                less.meta.pop("port", None)
                loop.replace_input_with(count, less)

    reasons = unfolded_reads(edit(after, "verify", other_count))
    assert any("before what is pending is folded" in reason for reason in reasons)


def test_two_slots_with_different_counts_do_not_wait_together() -> None:
    program = layer_major_program("hybrid", "tree")

    def other(module: object) -> None:
        graph = module.graph  # type: ignore[attr-defined]
        loop = next(
            node
            for node in graph.nodes
            if is_loop(node) and any("commit_path" in str(item.target) for item in loop_parts(node).body.graph.nodes)
        )
        count = next(node for node in graph.nodes if node.op == "placeholder" and node.name == "emitted")
        bonus = next(node for node in graph.nodes if node.op == "placeholder" and node.name == "bonus")
        loop.replace_input_with(count, bonus)

    found, refused = find_slice(edit(program, "commit", other))
    assert found is not None
    assert any("its count is" in reason for reason in refused.values())


def test_a_fresh_row_has_nothing_pending() -> None:
    for window in WINDOWS:
        program = deferred("hybrid", "tree", window).program
        state = init_state(program, 2)
        counts = program.attributes["pending_count"]
        for name in [counts] if isinstance(counts, str) else counts:
            assert int(state[name].sum()) == 0
