"""plan-buffers: the same results before and after, and a refusal with its reason where a condition does not hold."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx import GraphModule, Node

from specc.ir import ops
from specc.ir.build import output_node
from specc.ir.clone import clone
from specc.ir.edit import finish, is_loop, loop_parts
from specc.ir.interpreter import init_state, run_step
from specc.manager import PassContext, PassResult
from specc.passes.plan_buffers import PlanBuffers, unplanned
from specc.program import DecodeProgram, output_ports
from tests.backends.reference_support import fused_weights, planned, program_of


@cache
def value_level(draft: str, deferred: bool) -> DecodeProgram:
    naive = program_of(draft, update="deferred" if deferred else "immediate")
    return planned(naive, deferred=deferred, buffers=False)


@cache
def result(draft: str, deferred: bool) -> PassResult:
    return PlanBuffers().run(value_level(draft, deferred), PassContext())


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("draft", ["plain", "chain", "tree", "model"])
def test_candidates_are_not_stored_and_caches_change_in_place(draft: str, deferred: bool) -> None:
    made = result(draft, deferred)
    assert made.changed
    assert all(note.fired for note in made.notes)
    assert unplanned(made.program) == []
    state = init_state(made.program, 1)
    assert not {"k_candidate", "v_candidate"} & set(state)
    for step, module in made.program.graphs.items():
        bound = {port.name for port in output_ports(module) if port.kind == "slot"}
        assert not {"k_cache", "v_cache", "k_candidate", "v_candidate"} & bound, step
    assert not unplanned(value_level(draft, deferred))


def random_tree(data: st.DataObject, batch: int, nodes: int) -> dict[str, torch.Tensor]:
    rows = [[-1] + [data.draw(st.integers(0, i - 1)) for i in range(1, nodes)] for _ in range(batch)]
    kept = [data.draw(st.integers(1, nodes)) for _ in range(batch)]
    valid = torch.tensor([[i < count for i in range(nodes)] for count in kept])
    parent = torch.where(valid, torch.tensor(rows), torch.zeros((batch, nodes), dtype=torch.int64))
    tokens = torch.randint(0, 23, (batch, nodes), generator=torch.Generator().manual_seed(kept[0]))
    return {"tokens": tokens * valid, "parent": parent, "valid": valid}


def random_path(data: st.DataObject, tree: dict[str, torch.Tensor], longest: int) -> dict[str, torch.Tensor]:
    paths, counts = [], []
    for parent, valid in zip(tree["parent"].tolist(), tree["valid"].tolist(), strict=True):
        path = [0]
        while len(path) < longest:
            below = [i for i, above in enumerate(parent) if i and valid[i] and above == path[-1]]
            if not below or data.draw(st.booleans()):
                break
            path.append(data.draw(st.sampled_from(below)))
        finished = data.draw(st.integers(0, 5)) == 0
        counts.append(0 if finished else len(path))
        paths.append(path + [0] * (longest - len(path)))
    emitted = torch.tensor(counts)
    batch = len(counts)
    return {
        "path": torch.tensor(paths),
        "emitted": emitted,
        "emitted_tokens": torch.ones((batch, longest), dtype=torch.int64),
        "bonus": torch.full((batch,), 3),
        "stopped": torch.zeros(batch, dtype=torch.bool),
    }


@pytest.mark.parametrize("deferred", [False, True])
@given(data=st.data())
@settings(max_examples=12)
def test_steps_give_the_same_before_and_after(deferred: bool, data: st.DataObject) -> None:
    before, after = value_level("tree", deferred), result("tree", deferred).program
    weights = fused_weights(program_of("tree", update="deferred" if deferred else "immediate"), before)
    batch = data.draw(st.integers(1, 3))
    states = [init_state(before, batch), init_state(after, batch)]
    lengths = torch.tensor([data.draw(st.integers(1, 6)) for _ in range(batch)])
    ids = torch.arange(batch * 6).reshape(batch, 6) % 23

    def both(step: str, inputs: dict[str, torch.Tensor]) -> None:
        outcomes = [run_step(p, step, s, weights, inputs) for p, s in zip((before, after), states, strict=True)]
        for state, (updates, _) in zip(states, outcomes, strict=True):
            state |= updates
        for name, value in outcomes[0][1].items():
            torch.testing.assert_close(outcomes[1][1][name], value, rtol=1e-11, atol=1e-11)
        for name, value in states[1].items():
            if name in ("k_cache", "v_cache"):
                live = torch.arange(value.shape[2]) < states[0]["length"].unsqueeze(1)
                seen = live.view(1, *live.shape, 1, 1)
                if step != "commit" or not deferred:
                    torch.testing.assert_close(value * seen, states[0][name] * seen, rtol=1e-11, atol=1e-11)
            else:
                assert torch.equal(value, states[0][name]), (step, name)

    both("prefill", {"input_ids": ids, "lengths": lengths})
    for _ in range(3):
        tree = random_tree(data, batch, before.attributes["nodes"])
        both("verify", tree)
        both("commit", random_path(data, tree, before.attributes["max_path"]))
    both("flush", {})


def edited(program: DecodeProgram, step: str) -> DecodeProgram:
    return program.with_graphs(**{step: clone(program.graphs[step])})


def refusal(program: DecodeProgram) -> str:
    made = PlanBuffers().run(program, PassContext())
    refused = [note.message for note in made.notes if not note.fired]
    assert refused
    # Candidates kept their slots, and every step still agrees with that.
    assert unplanned(made.program) == []
    assert made.program.slots["k_candidate"].alias is None
    return refused[0]


def input_of(module: GraphModule, name: str) -> Node:
    """The placeholder bound to this port."""
    return next(node for node in module.graph.nodes if node.op == "placeholder" and node.meta["port"].name == name)


def test_refuses_a_commit_that_starts_elsewhere() -> None:
    program = edited(value_level("tree", False), "commit")
    module = program.graphs["commit"]
    node = next(item for item in module.graph.nodes if is_loop(item))
    length = input_of(module, "length")
    with module.graph.inserting_before(node):
        moved = module.graph.call_function(torch.ops.aten.add.Tensor, (length, 1))
    moved.meta |= length.meta
    node.replace_input_with(length, moved)
    finish(module)
    assert "does not start where verify wrote" in refusal(program)


def test_refuses_a_commit_that_starts_at_another_slot() -> None:
    program = edited(value_level("tree", False), "commit")
    module = program.graphs["commit"]
    node = next(item for item in module.graph.nodes if is_loop(item))
    node.replace_input_with(input_of(module, "length"), input_of(module, "remaining"))
    finish(module)
    assert "does not start where verify wrote" in refusal(program)


def test_refuses_a_path_of_unknown_order() -> None:
    program = edited(value_level("tree", False), "commit")
    module = program.graphs["commit"]
    node = next(item for item in module.graph.nodes if is_loop(item))
    path = input_of(module, "path")
    with module.graph.inserting_before(node):
        turned = module.graph.call_function(torch.ops.aten.flip.default, (path, [1]))
    turned.meta |= path.meta
    node.replace_input_with(path, turned)
    finish(module)
    assert "order is unknown" in refusal(program)


def test_refuses_a_second_reader_of_the_candidates() -> None:
    program = edited(value_level("tree", False), "commit")
    module = program.graphs["commit"]
    candidate = input_of(module, "k_candidate")
    with module.graph.inserting_before(output_node(module)):
        module.graph.call_function(torch.ops.aten.neg.default, (candidate,))
    assert "reads candidate rows outside a loop" in refusal(program)


def test_refuses_a_cache_without_room_for_the_tail() -> None:
    program = value_level("tree", False)
    longest = program.slots["k_cache"].shape[2]
    small = replace(program, attributes={**program.attributes, "max_sequence_length": longest})
    assert "fewer than max_sequence_length" in refusal(small)


def test_predicate_sees_a_compaction_after_the_write() -> None:
    program = edited(result("tree", True).program, "verify")
    node = next(
        item
        for item in program.graphs["verify"].graph.nodes
        if is_loop(item) and any(inner.target is ops.commit_path_ for inner in loop_parts(item).body.graph.nodes)
    )
    body = loop_parts(node).body
    commits = [item for item in body.graph.nodes if item.target is ops.commit_path_]
    last_write = [item for item in body.graph.nodes if item.target is ops.append_rows_][-1]
    for item in commits:
        last_write.append(item)
    assert any("after new rows were written" in text for text in unplanned(program))
