"""fuse-deferred-state-update: deferred + flush is immediate at any moment, the fold is fused, refusals have reasons."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from specc.ir.clone import clone
from specc.ir.edit import Editor, finish, is_loop, loop_parts
from specc.ir.interpreter import init_state, run_step
from specc.ir.port import Port
from specc.lower.assemble import lower
from specc.manager import PREDICATES, PassContext, Pipeline
from specc.passes.fuse_deferred_state_update import FuseDeferredStateUpdate, find_slice, insert_fold, unfolded_reads
from specc.passes.insert_tree_masks import InsertTreeMasks
from specc.passes.layer_major import LayerMajor
from specc.passes.loop_fusion import fuse_loops
from specc.passes.rewrite_negative_indices import RewriteNegativeIndices
from specc.program import DEFERRED, DecodeProgram, output_ports
from tests.unit.decoding_fixtures import Decoding, perturbed, prefixed, small_spec, target_weights

CACHES = ("k_cache", "v_cache")
TREE = {"method": "draft_model", "tree": "dynamic", "top_k": 2, "num_steps": 3, "num_speculative_tokens": 6}
CHAIN = {"method": "draft_model", "tree": "chain", "num_speculative_tokens": 3}
PROMPTS = [[3, 7, 11, 2], [5]]


def spec_of(draft: dict[str, Any]) -> Any:
    own = (
        {"config": dict(small_spec({"method": "none"}).target.config or {})} if draft["method"] == "draft_model" else {}
    )
    return small_spec(draft | own, commit={"kv": "path_index", "update": "deferred"})


@cache
def programs(kind: str) -> tuple[Any, DecodeProgram, DecodeProgram]:
    """The spec, its program before the pass, and after."""
    spec = spec_of({"tree": TREE, "chain": CHAIN}[kind])
    before = Pipeline((RewriteNegativeIndices(), InsertTreeMasks(), LayerMajor())).run(lower(spec)).program
    return spec, before, Pipeline((FuseDeferredStateUpdate(),)).run(before).program


def decodings(kind: str) -> tuple[Decoding, Decoding]:
    """The same prompts under way in the immediate and in the deferred program."""
    spec, before, after = programs(kind)
    weights = target_weights(spec)
    weights |= prefixed(perturbed(weights, 0.3))
    started = [Decoding(program, dict(weights), init_state(program, 2)) for program in (before, after)]
    for decoding in started:
        decoding.prefill(PROMPTS)
    return started[0], started[1]


def visible(decoding: Decoding) -> dict[str, torch.Tensor]:
    """The committed rows of the caches, after a flush of a copy."""
    state = {name: value.clone() for name, value in decoding.state.items()}
    updates, _ = run_step(decoding.program, "flush", state, decoding.weights, {})
    state |= updates
    return {name: state[name][:, row, : int(state["length"][row])] for name in CACHES for row in range(2)}


@pytest.mark.parametrize("kind", ["tree", "chain"])
def test_deferred_and_flushed_is_immediate_after_every_step(kind: str) -> None:
    immediate, deferred = decodings(kind)
    moved = 0
    for _ in range(6):
        _, now = immediate.step()
        _, later = deferred.step()
        for name, value in now.items():
            assert torch.equal(value, later[name]), name
        moved += int(now["accept_length"].sum())
        left, right = visible(immediate), visible(deferred)
        assert all(torch.equal(left[name], right[name]) for name in left)
    assert moved > 4, "nothing was accepted, so nothing was deferred"


def test_what_is_pending_is_not_in_the_cache_before_the_fold() -> None:
    immediate, deferred = decodings("tree")
    immediate.step()
    deferred.step()
    row, length = 0, int(immediate.state["length"][0])
    assert not torch.equal(immediate.state["k_cache"][:, row, :length], deferred.state["k_cache"][:, row, :length])


def test_flush_is_idempotent() -> None:
    _, deferred = decodings("tree")
    deferred.step()
    deferred.run("flush")
    once = {name: value.clone() for name, value in deferred.state.items()}
    deferred.run("flush")
    assert all(torch.equal(value, deferred.state[name]) for name, value in once.items())
    assert int(once["pending_emitted"].sum()) == 0


def test_a_reused_row_sees_nothing_of_its_former_request() -> None:
    _, deferred = decodings("tree")
    deferred.step()
    fresh = init_state(deferred.program, 2)
    assert int(fresh["pending_emitted"].sum()) == 0
    assert int(deferred.state["pending_emitted"].sum()) > 0


@pytest.mark.parametrize("kind", ["tree", "chain"])
def test_both_folds_are_fused_into_the_layer_loop_of_verify(kind: str) -> None:
    _, _, after = programs(kind)
    loops = [node for node in after.graphs["verify"].graph.nodes if is_loop(node)]
    assert len(loops) == 1
    folded = [node for node in loop_parts(loops[0]).body.graph.nodes if "commit_path" in str(node.target)]
    assert len(folded) == 2
    assert all("fuse-deferred-state-update" in node.meta["passes"] for node in folded)


def test_commit_records_instead_of_moving_rows() -> None:
    _, _, after = programs("tree")
    written = {port.name for port in output_ports(after.graphs["commit"])}
    assert {"pending_path", "pending_emitted", "pending_length", "length", "root_token"} <= written
    assert not written & set(CACHES)
    assert after.attributes["flush_first"] == ["prefill", "decode"]
    assert not any("commit_path" in str(node.target) for node in after.graphs["commit"].graph.nodes)


def with_graph(program: DecodeProgram, step: str, edit: Any) -> DecodeProgram:
    module = clone(program.graphs[step])
    edit(module)
    return program.with_graphs(**{step: finish(module)})


def test_a_draft_that_reads_the_cache_is_a_reason_to_refuse() -> None:
    _, before, _ = programs("tree")

    def read(module: Any) -> None:
        editor = Editor(module, "test")
        first = next(iter(module.graph.nodes))
        with editor.before(first):
            rows = editor.placeholder("k_cache", _value(before), Port("slot", "k_cache"))
        output = next(node for node in reversed(module.graph.nodes) if node.op == "output")
        with editor.before(output):
            summed = editor.call(torch.ops.aten.sum.default, rows)
        output.args = ((*output.args[0], summed),)
        output.meta["ports"] = (*output.meta["ports"], Port("result", "sum"))

    found, refused = find_slice(with_graph(before, "draft", read))
    assert found is not None
    assert found.caches == ("v_cache",)
    assert list(refused) == ["k_cache"]
    assert "draft reads `k_cache`" in refused["k_cache"]


def _value(program: DecodeProgram) -> Any:
    return next(
        node.meta["val"]
        for node in program.graphs["verify"].graph.nodes
        if node.op == "placeholder" and node.meta["port"] == Port("slot", "k_cache")
    )


def test_a_program_without_candidates_has_nothing_to_defer() -> None:
    _, before, _ = programs("tree")
    bare = {name: replace(slot, role="committed") for name, slot in before.slots.items()}
    result = FuseDeferredStateUpdate().run(replace(before, slots=bare), PassContext())
    assert not result.changed
    assert [note.message for note in result.notes] == ["commit moves no candidate rows: nothing to defer"]


def test_a_fold_that_is_not_fused_still_gives_the_same_text() -> None:
    _, before, _ = programs("tree")
    found, refused = find_slice(before)
    assert found is not None
    assert not refused
    verify = clone(before.graphs["verify"])
    folds = insert_fold(verify, before.graphs["commit"], found)
    reader = next(user for item in folds[0].users for user in item.users if is_loop(user))
    assert len([node for node in verify.graph.nodes if is_loop(node)]) == 3
    assert fuse_loops(verify, folds[0], reader, "test") is None
    assert len([node for node in verify.graph.nodes if is_loop(node)]) == 2
    finish(verify)


def test_predicate_sees_a_verify_that_forgets_to_clear_and_a_step_that_reads_candidates() -> None:
    _, _, after = programs("tree")
    assert unfolded_reads(after) == []
    assert PREDICATES[DEFERRED] is unfolded_reads

    def forget(module: Any) -> None:
        output = next(node for node in reversed(module.graph.nodes) if node.op == "output")
        kept = [
            (port, value)
            for port, value in zip(output.meta["ports"], output.args[0], strict=True)
            if port != Port("slot", "pending_emitted")
        ]
        output.args = (tuple(value for _, value in kept),)
        output.meta["ports"] = tuple(port for port, _ in kept)

    assert unfolded_reads(with_graph(after, "verify", forget)) == ["verify does not clear `pending_emitted`"]
    moved = after.with_graphs(accept=after.graphs["flush"])
    assert "accept reads candidate rows although their commit is deferred" in unfolded_reads(moved)
