"""Bytes of state that each schedule and commit moves, counted while the ops run."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specc.ir import ops
from specc.ir.ops.delta_schedules import heavy_chains
from specc.ir.traffic import SNAPSHOT_COMMIT, load_state, recording, snapshot_commit, store_state
from specc.testing.delta_oracles import path_to
from tests.unit.delta_cases import SCHEDULES, Case, Pending, cases, pending_cases


def tiles(counter: Counter[tuple[str, str]], case: Case, op: str) -> tuple[float, float]:
    """(read, written) by one op, in tiles of one sequence."""
    assert {name for _, name in counter} <= {op}
    size = case.state[0].numel() * case.state.element_size()
    return counter["read", op] / size, counter["write", op] / size


def expected(parents: list[int], schedule: str, every_state: bool) -> tuple[int, int]:
    """(read, written) tiles of one sequence, from the tree alone."""
    nodes = len(parents)
    leaves = [node for node in range(nodes) if node + 1 not in parents]
    if schedule == "tree":
        return 1, nodes * every_state
    if schedule == "replay":
        tokens = sum(len(path_to(leaf, parents)) for leaf in leaves)
        return tokens, tokens
    # What does not continue the node before it (serial), or a heavy parent (hybrid), fetches its parent's state.
    if schedule == "serial":
        fetching = [node for node in range(nodes) if parents[node] != node]
    else:
        fetching = [chain[0] for chain in heavy_chains(parents)][1:]
    kept = {parents[node] for node in fetching} - {0}
    return 1 + len(fetching), nodes if every_state else len(kept)


@pytest.mark.parametrize("every_state", [False, True])
@given(cases(max_nodes=8), st.sampled_from(SCHEDULES[1:]))
def test_a_verify_moves_what_its_schedule_says(every_state: bool, case: Case, schedule: str) -> None:
    op = "delta_rule_verify_states" if every_state else "delta_rule_verify"
    with recording() as recorder:
        getattr(ops, op)(case.state, *case.rows, case.parent_row, case.mask, schedule)
    counts = [expected(parents, schedule, every_state) for parents in case.parent_row.tolist()]
    assert tiles(recorder.bytes, case, op) == (sum(read for read, _ in counts), sum(written for _, written in counts))


def test_a_chain_in_registers_reads_once_and_writes_nothing() -> None:
    case = Case(
        torch.ones(1, 2, 4, 4), *(torch.ones(1, 5, 2, *tail) for tail in ((4,), (4,), (4,), (), ())), *[None] * 2
    )
    for schedule, wanted in (("serial", (1, 0)), ("hybrid", (1, 0)), ("tree", (1, 0)), ("replay", (5, 5))):
        with recording() as recorder:
            ops.delta_rule_verify(case.state, *case.rows, None, None, schedule)
        assert tiles(recorder.bytes, case, "delta_rule_verify") == wanted


@given(cases(chain=True), st.integers(1, 4))
def test_plain_tokens_read_and_write_the_state_once_per_call(case: Case, chunk: int) -> None:
    batch = case.state.shape[0]
    with recording() as recorder:
        ops.delta_rule(case.state, *case.rows)
    assert tiles(recorder.bytes, case, "delta_rule") == (batch, batch)
    with recording() as recorder:
        ops.delta_rule_chunk(case.state, *case.rows, chunk)
    assert tiles(recorder.bytes, case, "delta_rule_chunk") == (batch, batch)


@given(pending_cases(), st.integers(0, 4), st.sampled_from(["steps", "rank_n"]))
def test_commits_move_only_the_sequences_they_change(made: tuple[Case, Pending], window: int, form: str) -> None:
    """A commit: those with anything to commit. A deferred one reads each state once and writes those that are due."""
    case, pending = made
    count = pending.count
    path = torch.zeros(case.state.shape[0], pending.k.shape[1], dtype=torch.int64)
    with recording() as recorder:
        ops.delta_rule_commit(case.state, pending.k, pending.u, pending.g, path, count, form)
    changed = int((count > 0).sum())
    assert tiles(recorder.bytes, case, "delta_rule_commit") == (changed, changed)
    with recording() as recorder:
        ops.delta_rule_verify_pending(
            case.state, *pending.operands, window, form, *case.rows, case.parent_row, case.mask, "tree"
        )
    due = int((count >= max(window, 1)).sum())
    assert tiles(recorder.bytes, case, "delta_rule_verify_pending") == (case.state.shape[0], due)


def test_snapshots_are_gathered_by_whoever_runs_the_graph() -> None:
    taken = torch.zeros(2, 3, 4, 4)
    with recording() as recorder:
        assert snapshot_commit(taken) is taken
    assert recorder.bytes == {("read", SNAPSHOT_COMMIT): 384, ("write", SNAPSHOT_COMMIT): 384}
    assert (recorder.total("read"), recorder.total("write")) == (384, 384)


def test_nothing_is_counted_outside_or_by_two_recorders() -> None:
    state = torch.zeros(4)
    assert load_state(state) is state
    assert store_state(state) is state
    with recording() as outer:
        load_state(state)
        with recording() as inner:
            store_state(state)
        load_state(state)
    load_state(state)
    assert outer.total("read") == 32
    assert outer.total("write") == 0
    assert (inner.total("read"), inner.total("write")) == (0, 16)
