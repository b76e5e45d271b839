"""page-caches: the same results before and after on drawn trees, pages that interleave, and refusals with a reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx import Node

from specc.check.pages import contiguous, release, unread
from specc.diagnostics import DiagnosticError
from specc.ir import ops
from specc.ir.clone import clone
from specc.ir.edit import finish, is_loop, loop_parts, modules
from specc.ir.interpreter import init_state, run_step
from specc.ir.printer import fingerprint
from specc.ir.verifier import verify
from specc.manager import PassContext, PassResult, check_properties
from specc.passes.page_caches import PageCaches
from specc.program import BUFFERED, INDEX_SAFE, DecodeProgram
from tests.backends.reference_support import fused_weights, planned, program_of
from tests.paged import well_formed
from tests.passes.test_plan_buffers import random_path, random_tree

State = dict[str, torch.Tensor]
CASES = [("tree", False), ("tree", True), ("chain", False), ("model", True)]


@cache
def buffered(draft: str, deferred: bool) -> DecodeProgram:
    naive = program_of(draft, update="deferred" if deferred else "immediate")
    return planned(naive, deferred=deferred)


@cache
def result(draft: str, deferred: bool, page: int) -> PassResult:
    return PageCaches(page=page).run(buffered(draft, deferred), PassContext())


def targets(program: DecodeProgram) -> set[object]:
    return {node.target for graph in program.graphs.values() for item in modules(graph) for node in item.graph.nodes}


@pytest.mark.parametrize(("draft", "deferred"), CASES)
def test_every_use_of_a_cache_goes_through_the_table(draft: str, deferred: bool) -> None:
    made = result(draft, deferred, 5)
    assert made.changed
    verify(made.program)
    check_properties(made.program, frozenset({INDEX_SAFE, BUFFERED}), "page-caches")
    state = init_state(made.program, 3)
    # 48 tokens and the nodes of a tree behind them, in pages of 5, and one page more for every sequence.
    blocks = -(-(48 + made.program.attributes["nodes"]) // 5)
    assert state["k_cache"].shape == (2, 3 * (blocks + 1), 5, 2, 8)
    assert state["block_table"].shape == (3, blocks)
    assert {ops.take_pages_, ops.append_pages_} < targets(made.program)
    left = targets(made.program) & {ops.append_rows_, ops.commit_path_, ops.tree_attention_cached}
    # A drafter's rows lag behind the text: its caches stay, and a note says so.
    notes = [note.message for note in made.notes if not note.fired]
    assert bool(left) == (draft == "model")
    assert [text.split("`")[1] for text in notes] == (["draft_k_cache", "draft_v_cache"] if draft == "model" else [])


def test_a_second_run_changes_nothing() -> None:
    once = result("tree", False, 5).program
    again = PageCaches(page=7).run(once, PassContext())
    assert not again.changed
    assert fingerprint(again.program) == fingerprint(once)


def compared(
    data: st.DataObject, draft: str, deferred: bool, around: Callable[[State, int], State] = lambda state, nodes: state
) -> State:
    """Both programs over drawn prompts, trees and paths, rows taken away in between; the paged program's last state.

    `around` is called with the state of the paged program before every verify: what it returns must make no difference.
    """
    page = data.draw(st.sampled_from([1, 2, 3, 5, 8, 64]))
    before, after = buffered(draft, deferred), result(draft, deferred, page).program
    weights = fused_weights(program_of(draft, update="deferred" if deferred else "immediate"), before)
    batch, nodes = data.draw(st.integers(1, 3)), before.attributes["nodes"]
    states = [init_state(before, batch), init_state(after, batch)]

    def both(step: str, inputs: State) -> None:
        outcomes = [run_step(p, step, s, weights, inputs) for p, s in zip((before, after), states, strict=True)]
        for state, (updates, _) in zip(states, outcomes, strict=True):
            state |= updates
        # What a prefill without tokens says of a row is for nobody.
        told = inputs["lengths"] > 0 if step == "prefill" else torch.ones(batch) > 0
        for name, value in outcomes[0][1].items():
            torch.testing.assert_close(outcomes[1][1][name][told], value[told], rtol=1e-11, atol=1e-11)
        well_formed(states[1]["block_table"], states[1]["page_owner"])
        for name, value in contiguous(states[1]).items():
            wanted = states[0][name]
            if name in ("k_cache", "v_cache"):
                seen = (torch.arange(wanted.shape[2]) < states[0]["length"].unsqueeze(1)).view(1, batch, -1, 1, 1)
                if step != "commit" or not deferred:
                    value = value[:, :, : wanted.shape[2]]
                    torch.testing.assert_close(value * seen, wanted * seen, rtol=1e-11, atol=1e-11)
            elif not name.startswith("draft_"):
                assert torch.equal(value, wanted), (step, name)

    def prompt() -> None:
        fresh = states[0]["length"] == 0
        lengths = torch.tensor([data.draw(st.integers(1, 6)) for _ in range(batch)]) * fresh
        both("prefill", {"input_ids": torch.arange(batch * 6).reshape(batch, 6) % 23, "lengths": lengths})

    prompt()
    for _ in range(3):
        tree = random_tree(data, batch, nodes)
        if draft == "chain":
            tree = {"tokens": tree["tokens"]}
        states[1] = around(states[1], nodes)
        both("verify", tree)
        chain = {"parent": torch.arange(nodes).expand(batch, -1) - 1, "valid": torch.ones(batch, nodes) > 0}
        both("commit", random_path(data, {**chain, **tree}, before.attributes["max_path"]))
        if data.draw(st.booleans()):
            both("flush", {})
            row = data.draw(st.integers(0, batch - 1))
            release(states[1], [row])
            for state in states:
                state["length"][row] = 0
                state["finished"][row] = True
            well_formed(states[1]["block_table"], states[1]["page_owner"])
            prompt()
    both("flush", {})
    return states[1]


@pytest.mark.parametrize(("draft", "deferred"), CASES)
@given(data=st.data())
@settings(max_examples=10)
def test_steps_give_the_same_before_and_after(draft: str, deferred: bool, data: st.DataObject) -> None:
    compared(data, draft, deferred)


@given(data=st.data())
@settings(max_examples=10)
def test_nobody_reads_a_page_that_is_free_or_rows_behind_the_text(data: st.DataObject) -> None:
    def poisoned(state: State, nodes: int) -> State:
        made = dict(state)
        for name in ("k_cache", "v_cache"):
            hidden = unread(state, state["length"], state[name])[None, :, :, None, None]
            made[name] = torch.where(hidden, torch.full_like(state[name], 1e30), state[name])
        return made

    compared(data, "tree", False, poisoned)


def test_pages_of_two_sequences_interleave() -> None:
    """Rows grow in turns, so that each holds pages that lie between the other's; one is reset, its pages are reused."""
    program = result("tree", False, 2).program
    weights = fused_weights(program_of("tree"), buffered("tree", False))
    state = init_state(program, 2)
    for turn in range(3):
        lengths = torch.tensor([3 * (turn + 1) % 4, 2 + turn])
        inputs = {"input_ids": torch.full((2, 6), turn), "lengths": lengths}
        state |= run_step(program, "prefill", state, weights, inputs)[0]
    first, second = ([int(n) for n in line if n > 0] for line in state["block_table"])
    assert max(first) > min(second)
    assert max(second) > min(first)
    release(state, [0])
    state["length"][0] = 0
    inputs = {"input_ids": torch.zeros(2, 6, dtype=torch.int64), "lengths": torch.tensor([6, 0])}
    state |= run_step(program, "prefill", state, weights, inputs)[0]
    assert [int(n) for n in state["block_table"][0] if n > 0] == sorted(first)[:3]
    assert [int(n) for n in state["block_table"][1] if n > 0] == second


def edited(step: str) -> tuple[DecodeProgram, Node]:
    """The program with a copy of a step graph, and its loop over layers."""
    program = buffered("tree", False)
    program = program.with_graphs(**{step: clone(program.graphs[step])})
    loop = next(node for node in program.graphs[step].graph.nodes if is_loop(node))
    return program, loop


def refusal(program: DecodeProgram) -> str:
    with pytest.raises(DiagnosticError) as caught:
        PageCaches(page=4).run(program, PassContext())
    (finding,) = caught.value.diagnostics
    assert finding.code == "SPC203"
    return finding.message


def test_refuses_a_cache_that_something_else_reads() -> None:
    program, loop = edited("verify")
    parts = loop_parts(loop)
    append = next(node for node in parts.body.graph.nodes if node.target is ops.append_rows_)
    with parts.body.graph.inserting_after(append):
        parts.body.graph.call_function(torch.ops.aten.neg.default, (append.args[0],))
    assert "the cache `k_cache` can't be paged: verify: `neg" in refusal(program)


def test_refuses_rows_that_are_appended_elsewhere() -> None:
    program, loop = edited("verify")
    module = program.graphs["verify"]
    length = next(n for n in module.graph.nodes if n.op == "placeholder" and n.meta["port"].name == "length")
    with module.graph.inserting_before(loop):
        moved = module.graph.call_function(torch.ops.aten.add.Tensor, (length, 1))
    moved.meta |= {key: value for key, value in length.meta.items() if key != "port"}
    loop.replace_input_with(length, moved)
    finish(module)
    assert "does not append rows at slot `length`" in refusal(program)


def test_refuses_a_cache_that_is_read_as_a_whole() -> None:
    program, loop = edited("commit")
    module = program.graphs["commit"]
    cached = next(n for n in module.graph.nodes if n.op == "placeholder" and n.meta["port"].name == "v_cache")
    with module.graph.inserting_before(loop):
        module.graph.call_function(torch.ops.aten.neg.default, (cached,))
    assert "`v_cache` can't be paged: commit: `neg" in refusal(program)


def test_a_program_without_caches_stays_as_it_is() -> None:
    program = replace(buffered("tree", False), slots={})
    made = PageCaches().run(program, PassContext())
    assert not made.changed
    assert made.program is program
