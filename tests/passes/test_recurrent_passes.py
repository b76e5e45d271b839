"""Passes 1 to 3 on recurrent and hybrid targets, by execution: what a step computes stays what it was, no index leaves
its table, rows that nobody may read can hold anything, and no branch of a tree is noticed by another."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.ir.interpreter import IndexRangeError
from specc.program import DecodeProgram
from specc.testing import DraftBatch, make_tree
from tests import cells
from tests.passes.recurrent_programs import (
    ALL,
    LONGEST,
    PAIRS,
    QUICK,
    STAGES,
    VOCABULARY,
    Recurrent,
    accepted,
    assert_same,
    batches,
    commit_inputs,
    naive_program,
    nodes_of,
    path_of,
    program_at,
    run,
    state_of,
    tree_inputs,
    verified,
)

TREES = tuple(small for small in QUICK if not small.chain)
GARBAGE = 1e30


@given(st.data())
@settings(max_examples=16)
def test_verify_then_commit_gives_the_same_after_every_pass(data: st.DataObject) -> None:
    _check_verify_and_commit(data, data.draw(st.sampled_from(QUICK)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "small", ALL if cells.ALL else PAIRS, ids=lambda small: f"{small.target}-{small.tree}-{small.commit}"
)
@given(data=st.data())
@settings(max_examples=25)
def test_verify_then_commit_gives_the_same_for_every_variation(small: Recurrent, data: st.DataObject) -> None:
    _check_verify_and_commit(data, small)


def _check_verify_and_commit(data: st.DataObject, small: Recurrent) -> None:
    batch = data.draw(batches(small))
    leaves = data.draw(accepted(batch))
    before = _verify_and_commit(naive_program(small), small, batch, leaves, strict=False)
    for stage in STAGES:
        after = _verify_and_commit(program_at(small, stage), small, batch, leaves, strict=True)
        assert_same(before, after)


def _verify_and_commit(
    program: DecodeProgram, small: Recurrent, batch: DraftBatch, leaves: list[int | None], *, strict: bool
) -> dict[str, torch.Tensor]:
    """Everything that both steps give. `strict`: indices are checked, pad rows and rows of padding nodes poisoned."""
    checks = {"strict": strict, "poison": strict}
    state = state_of(program, list(batch.prefix_lengths))
    first = run(program, "verify", state, small, tree_inputs(batch, small), **checks)
    state |= {name: value for name, value in first.items() if name in program.slots}
    if strict and not small.chain:
        _spoil_padding(state, batch, nodes_of(small))
    second = run(program, "commit", state, small, commit_inputs(batch, small, leaves), **checks)
    return {**first, **{f"commit.{name}": value for name, value in second.items()}}


def _spoil_padding(state: dict[str, torch.Tensor], batch: DraftBatch, nodes: int) -> None:
    """Candidates of padding nodes hold garbage: commit must not read them (I14)."""
    padding = ~torch.tensor(batch.valid)
    for name in state:
        if name.endswith(("_candidate", "_factor", "_input")) and state[name].shape[2] == nodes:
            state[name] = state[name].clone()
            state[name][:, padding] = GARBAGE


@given(st.data())
@settings(max_examples=14)
def test_prefill_of_any_lengths_gives_the_same_after_every_pass(data: st.DataObject) -> None:
    small = data.draw(st.sampled_from(QUICK))
    rows, size = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 6))
    ids = data.draw(st.lists(st.lists(st.integers(0, 12), min_size=size, max_size=size), min_size=rows, max_size=rows))
    lengths = torch.tensor(data.draw(st.lists(st.integers(0, size), min_size=rows, max_size=rows)))
    inputs = {"input_ids": torch.tensor(ids), "lengths": lengths}
    state = state_of(naive_program(small), data.draw(st.lists(st.integers(0, LONGEST), min_size=rows, max_size=rows)))
    before = run(naive_program(small), "prefill", state, small, inputs)
    for stage in STAGES:
        after = run(program_at(small, stage), "prefill", state, small, inputs, strict=True, poison=True)
        assert_same(_without_empty_rows(before, lengths), _without_empty_rows(after, lengths))
    empty = lengths == 0
    for name in (name for name in before if name.endswith(("state", "conv_window"))):
        assert torch.equal(before[name][:, empty], state[name][:, empty]), "an empty prompt changes no state"


def _without_empty_rows(results: dict[str, torch.Tensor], lengths: torch.Tensor) -> dict[str, torch.Tensor]:
    """Logits of a row without tokens are nobody's."""
    return {**results, "logits": results["logits"][lengths > 0]}


@given(st.data())
@settings(max_examples=10)
def test_plain_steps_give_the_same_after_every_pass(data: st.DataObject) -> None:
    small = data.draw(st.sampled_from(QUICK))
    rows = data.draw(st.integers(1, 3))
    state = state_of(naive_program(small), data.draw(st.lists(st.integers(0, LONGEST), min_size=rows, max_size=rows)))
    state["finished"] = torch.tensor(data.draw(st.lists(st.booleans(), min_size=rows, max_size=rows)))
    before = run(naive_program(small), "decode", state, small, {})
    for stage in STAGES:
        assert_same(before, run(program_at(small, stage), "decode", state, small, {}, strict=True, poison=True))


def test_the_naive_programs_do_read_rows_at_minus_one() -> None:
    small = Recurrent("shared heads", "static", "snapshots")
    batch = DraftBatch((make_tree((1, 2), (-1, 0), nodes_of(small)),), (3,))
    with pytest.raises(IndexRangeError):
        verified(naive_program(small), batch, small, strict=True)
    state, nothing = state_of(naive_program(small), [3]), commit_inputs(batch, small, [None])
    with pytest.raises(IndexRangeError):
        run(naive_program(small), "commit", state, small, nothing, strict=True)
    after = run(program_at(small, STAGES[0]), "commit", state, small, nothing, strict=True)
    assert torch.equal(after["state"], state["state"]), "nothing accepted: the state stays, bit for bit"


# No leak: a change outside a node's path can't be noticed by it, bit for bit.


@given(st.data())
@settings(max_examples=16)
def test_tokens_of_other_branches_leave_a_node_bit_identical(data: st.DataObject) -> None:
    small = data.draw(st.sampled_from([small for small in TREES if small.target != "experts"]))
    stage = data.draw(st.sampled_from(STAGES[1:]))
    batch = data.draw(batches(small))
    row = data.draw(st.integers(0, len(batch.trees) - 1))
    node = data.draw(st.integers(0, batch.trees[row].num_valid - 1))
    first, second, changed = _with_other_tokens(small, stage, batch, row, node)
    assert torch.equal(first["logits"][row, node], second["logits"][row, node])
    for name in (name for name in first if name != "logits"):
        assert torch.equal(first[name][:, row, node], second[name][:, row, node]), name
    if changed:
        assert not torch.equal(first["logits"][row], second["logits"][row]), "the change has to be seen somewhere"


@given(st.data())
@settings(max_examples=6)
def test_experts_see_no_other_branch_either(data: st.DataObject) -> None:
    """To rounding: tokens of one expert share its matrix products, whose rounding depends on how many they are."""
    small = Recurrent("experts", "static", "factors")
    batch = data.draw(batches(small))
    node = data.draw(st.integers(0, batch.trees[0].num_valid - 1))
    first, second, _ = _with_other_tokens(small, STAGES[-1], batch, 0, node)
    assert_same({"logits": first["logits"][0, node]}, {"logits": second["logits"][0, node]})


def _with_other_tokens(
    small: Recurrent, stage: str, batch: DraftBatch, row: int, node: int
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], bool]:
    """verify as it is, and with other tokens at all nodes of the row but the node's ancestors and itself."""
    tree, family, above = batch.trees[row], set(), node
    while above >= 0:
        family.add(above)
        above = tree.parent[above]
    tokens = tuple(t if i in family else (t + 1) % VOCABULARY for i, t in enumerate(tree.tokens))
    trees = (*batch.trees[:row], replace(tree, tokens=tokens), *batch.trees[row + 1 :])
    program = program_at(small, stage)
    results = [verified(program, case, small) for case in (batch, replace(batch, trees=trees))]
    return results[0], results[1], tokens != tree.tokens


@given(st.data())
@settings(max_examples=10)
def test_padding_nodes_are_not_noticed(data: st.DataObject) -> None:
    """I14: tokens of padding nodes change no valid node."""
    small = data.draw(st.sampled_from(TREES))
    batch = data.draw(batches(small))
    program = program_at(small, STAGES[-1])
    first = verified(program, batch, small)
    other = tuple(
        replace(tree, tokens=tuple(t if ok else 12 for t, ok in zip(tree.tokens, tree.valid, strict=True)))
        for tree in batch.trees
    )
    second = verified(program, replace(batch, trees=other), small)
    valid = torch.tensor(batch.valid)
    assert_same({"logits": first["logits"][valid]}, {"logits": second["logits"][valid]})


@given(st.data())
@settings(max_examples=12)
def test_a_node_is_decoded_as_plain_decoding_would_after_its_path(data: st.DataObject) -> None:
    """I16: verify of a tree = prefill of the node's own path, from the same committed state."""
    small = data.draw(st.sampled_from(TREES))
    batch = data.draw(batches(small))
    program = program_at(small, STAGES[-1])
    node = data.draw(st.integers(0, batch.trees[0].num_valid - 1))
    rows = len(batch.trees)
    path = [node]
    while path[0] > 0:
        path.insert(0, batch.trees[0].parent[path[0]])
    assert len(path) <= path_of(small)
    ids = torch.tensor([[batch.trees[0].tokens[place] for place in path]] * rows)
    lengths = torch.tensor([len(path)] + [0] * (rows - 1))
    state = state_of(program, list(batch.prefix_lengths))
    plain = run(program, "prefill", state, small, {"input_ids": ids, "lengths": lengths})
    tree = run(program, "verify", state, small, tree_inputs(batch, small))
    assert_same({"logits": plain["logits"][0]}, {"logits": tree["logits"][0, node]})
