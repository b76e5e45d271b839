"""plan-buffers on recurrent layers: states, windows, candidates and pending lists change in place, or it says why."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx import Node

from specc.ir import ops
from specc.ir.build import output_node
from specc.ir.clone import clone
from specc.ir.edit import bodies, finish, is_loop, loop_parts, retype
from specc.ir.effects import stale_reads
from specc.ir.op import REGISTRY
from specc.ir.port import Port
from specc.ir.verifier import verify
from specc.manager import Pass, PassContext, PassResult, Pipeline
from specc.passes.canonicalize import Canonicalize
from specc.passes.cse import CommonSubexpressions
from specc.passes.dce import DeadCode
from specc.passes.fuse_deferred_state_update import FuseDeferredStateUpdate, unfolded_reads
from specc.passes.fuse_projections import FuseProjections
from specc.passes.plan_buffers import PlanBuffers, unplanned
from specc.passes.plan_buffers.layers import FORMS
from specc.passes.select_schedule import SelectSchedule
from specc.program import DecodeProgram, output_ports
from tests.passes.recurrent_steps import Lockstep, any_steps, layer_major_program

MODES = ("snapshots", "replay", "factors", "deferred", "windowed")


@cache
def value_level(target: str, draft: str, mode: str, schedule: str) -> DecodeProgram:
    """All passes but the last."""
    passes: list[Pass] = [FuseProjections(), Canonicalize(), CommonSubexpressions(), DeadCode()]
    passes.append(SelectSchedule(schedule=schedule))  # type: ignore[arg-type]
    if mode in ("deferred", "windowed"):
        passes.insert(0, FuseDeferredStateUpdate(window=3 if mode == "windowed" else 0))
    state = mode if mode in ("snapshots", "replay") else "factors"
    before = layer_major_program(target, draft, state)
    return Pipeline(tuple(passes)).run(before, PassContext(verify=False)).program


@cache
def result(target: str, draft: str, mode: str, schedule: str = "serial") -> PassResult:
    made = PlanBuffers().run(value_level(target, draft, mode, schedule), PassContext())
    verify(made.program, level="buffer", after="plan-buffers")
    return made


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("target", ["delta", "hybrid"])
@given(data=st.data())
@settings(max_examples=2)
def test_steps_give_the_same_before_and_after(target: str, mode: str, data: st.DataObject) -> None:
    draft = data.draw(st.sampled_from(["tree", "chain"]))
    schedule = data.draw(st.sampled_from(["serial", "tree"]))
    before, after = value_level(target, draft, mode, schedule), result(target, draft, mode, schedule).program
    batch = data.draw(st.integers(1, 3))
    lockstep = Lockstep([before, after], target, batch, exact=target == "delta")  # attention over a longer cache
    any_steps(lockstep, data, batch, draft == "tree", steps=3)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("draft", ["tree", "chain"])
@pytest.mark.parametrize("target", ["delta", "hybrid"])
def test_no_step_makes_a_new_tensor_for_what_a_layer_keeps(target: str, draft: str, mode: str) -> None:
    made = result(target, draft, mode)
    assert made.changed
    assert [note.message for note in made.notes if not note.fired] == []
    assert unplanned(made.program) == []
    layered = {name for name, slot in made.program.slots.items() if len(slot.shape) > 2 and slot.batch_dim == 1}
    assert {name.rsplit("_", 1)[-1] for name in layered} >= {"state", "window", "candidate"}
    for step, module in made.program.graphs.items():
        bound = {port.name for port in output_ports(module) if port.kind == "slot"}
        assert not bound & layered, step
    if mode in ("deferred", "windowed"):
        assert unfolded_reads(made.program) == []


def test_every_form_in_place_is_that_of_its_op() -> None:
    by_name = {info.name: overload for overload, info in REGISTRY.items()}
    wanted = {
        by_name[info.meta["value_form"]]: overload
        for overload, info in REGISTRY.items()
        if info.mutates == ("state",) and "value_form" in info.meta
    }
    assert {value: form.target for value, form in FORMS.items()} == wanted
    for value, form in FORMS.items():
        names = [argument.name for argument in value._schema.arguments]
        own = form.target._schema.arguments
        assert [argument.name for argument in own[: form.arguments]] == names[: form.arguments]
        assert all(argument.has_default_value() for argument in own[form.arguments :])  # what a backend may say besides


def edited(program: DecodeProgram, step: str) -> DecodeProgram:
    return program.with_graphs(**{step: clone(program.graphs[step])})


def body_node(program: DecodeProgram, step: str, target: object) -> Node:
    return next(node for _, body in bodies(program.graphs[step]) for node in body.graph.nodes if node.target is target)


def refusals(program: DecodeProgram) -> dict[str, str]:
    made = PlanBuffers().run(program, PassContext())
    verify(made.program, level="buffer")
    assert unplanned(made.program) == []
    return {note.message.split("`")[1]: note.message for note in made.notes if not note.fired}


def test_a_state_read_later_in_the_iteration_gets_a_new_tensor() -> None:
    program = edited(value_level("delta", "tree", "deferred", "serial"), "verify")
    op = body_node(program, "verify", ops.delta_rule_verify_pending)
    rule = next(user for user in op.users if user.args[1] == 1)
    reader = next(iter(rule.users))
    with op.graph.inserting_before(reader):
        old = op.graph.call_function(torch.ops.aten.sum.default, (op.args[0],))
        more = op.graph.call_function(torch.ops.aten.add.Tensor, (rule, old))
    old.meta |= {**rule.meta, "val": torch.empty((), dtype=torch.float64, device="meta")}
    more.meta |= rule.meta
    reader.replace_input_with(rule, more)
    retype(program.graphs["verify"])
    finish(program.graphs["verify"])
    found = refusals(program)
    assert set(found) == {"state"}
    assert "reads the layer's old value later in the iteration" in found["state"]


def test_a_state_read_later_in_the_step_gets_a_new_tensor() -> None:
    program = edited(value_level("delta", "tree", "factors", "serial"), "commit")
    module = program.graphs["commit"]
    state = next(node for node in module.graph.nodes if node.op == "placeholder" and node.name == "state")
    end = output_node(module)
    with module.graph.inserting_before(end):
        total = module.graph.call_function(torch.ops.aten.sum.default, (state,))
    total.meta |= {**state.meta, "val": state.meta["val"].sum()}
    total.meta.pop("port", None)
    end.args = ((*end.args[0], total),)  # type: ignore[misc]
    end.meta["ports"] = (*end.meta["ports"], Port("result", "total"))
    end.meta["val"] = (*end.meta["val"], total.meta["val"])
    found = refusals(program)
    assert set(found) == {"state"}
    assert "reads its old value later in the step" in found["state"]


def test_a_value_in_the_memory_that_it_would_overwrite_is_no_copy() -> None:
    program = edited(value_level("delta", "tree", "factors", "serial"), "commit")
    op = body_node(program, "commit", ops.conv_commit)
    with op.graph.inserting_before(op):
        turned = op.graph.call_function(torch.ops.aten.transpose.int, (op.args[0], 1, 2))
        back = op.graph.call_function(torch.ops.aten.transpose.int, (turned, 1, 2))
    for node in (turned, back):
        node.meta |= op.meta
    turned.meta["val"] = op.meta["val"].transpose(1, 2)
    op.replace_all_uses_with(back)
    op.graph.erase_node(op)
    finish(program.graphs["commit"])
    found = refusals(program)
    assert set(found) == {"conv_window"}
    assert "lies in the memory that it would overwrite" in found["conv_window"]


def test_factors_overwritten_before_they_are_folded_are_a_stale_read() -> None:
    program = edited(result("delta", "tree", "deferred").program, "verify")
    module = program.graphs["verify"]
    assert list(stale_reads(module)) == []
    loop = next(node for node in module.graph.nodes if is_loop(node))
    graph = loop_parts(loop).body.graph
    fold = next(node for node in graph.nodes if node.target is ops.delta_rule_verify_pending_)
    copies = [node for node in graph.nodes if node.target is torch.ops.aten.copy_.default]
    written = next(node for node in copies if node.args[0] in fold.args[1:4] and node.args[1] not in fold.users)
    fold.prepend(written)
    assert {slot for _, slot in stale_reads(module)} == {str(written.args[0].name)}  # type: ignore[union-attr]
