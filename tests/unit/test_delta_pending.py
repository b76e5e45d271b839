"""Verifying with factors pending: windows, folds, further ancestors, and nothing but the counted factors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specc.ir import ops
from tests.unit.delta_cases import BY_STEPS, SCHEDULES, Case, Pending, cases, close, oracle, pending_cases, pendings

F32 = torch.float32
FORMS = st.sampled_from(["steps", "rank_n"])
Made = tuple[Case, Pending]


def verify(case: Case, pending: Pending, window: int, form: str, schedule: str) -> tuple[torch.Tensor, ...]:
    """(state', o, u)."""
    tree = (case.parent_row, case.mask, schedule)
    return ops.delta_rule_verify_pending(case.state, *pending.operands, window, form, *case.rows, *tree)


def committed(case: Case, pending: Pending, form: str) -> torch.Tensor:
    """The state with all pending factors committed."""
    path = pending.path
    if path is None:
        path = torch.arange(pending.k.shape[1]).expand(case.state.shape[0], -1)
    return ops.delta_rule_commit(case.state, pending.k, pending.u, pending.g, path, pending.count, form)


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(pending_cases(), st.integers(0, 6), FORMS)
def test_pending_tokens_are_ancestors_of_every_node(schedule: str, made: Made, window: int, form: str) -> None:
    """By definition: each node's path is the pending tokens, then its own; rows that do not count hold NaN."""
    case, pending = made
    _, o, u = verify(case, pending, window, form, schedule)
    wanted = oracle(case, pending.tokens)
    close(o, wanted[0])
    close(u, wanted[1])


@given(pending_cases(), st.integers(0, 6), FORMS, st.sampled_from(SCHEDULES))
def test_only_sequences_that_are_due_are_written(made: Made, window: int, form: str, schedule: str) -> None:
    """count >= window (and at least 1): written as the commit does; the others keep every bit."""
    case, pending = made
    after = verify(case, pending, window, form, schedule)[0]
    folded = committed(case, pending, form)
    for b, count in enumerate(pending.count.tolist()):
        if count >= window and count > 0:
            close(after[b], folded[b])
        else:
            assert torch.equal(after[b], case.state[b])


@pytest.mark.parametrize("schedule", BY_STEPS)
@given(pending_cases(F32), st.integers(0, 6))
def test_by_steps_the_bits_are_those_of_plain_decoding(schedule: str, made: Made, window: int) -> None:
    """For any count and window: a deferred commit changes no bit of any token."""
    case, pending = made
    after, o, u = verify(case, pending, window, "steps", schedule)
    for b, count in enumerate(pending.count.tolist()):
        state = case.state[b : b + 1]
        for j in range(count):
            state = ops.delta_rule(state, *(x[b : b + 1, j : j + 1] for x in pending.rows))[2]
        if count >= max(window, 1):
            assert torch.equal(after[b], state[0])
        part = case.take(slice(b, b + 1))
        plain = ops.delta_rule_verify(state, *part.rows, part.parent_row, part.mask, "serial")
        assert torch.equal(o[b], plain[0][0])
        assert torch.equal(u[b], plain[1][0])


@given(pending_cases(), FORMS, st.sampled_from(SCHEDULES))
def test_a_window_changes_when_the_state_is_written_and_nothing_else(made: Made, form: str, schedule: str) -> None:
    case, pending = made
    at_once = verify(case, pending, 0, form, schedule)
    later = verify(case, pending, 99, form, schedule)
    close(later[1], at_once[1])
    close(later[2], at_once[2])
    assert torch.equal(later[0], case.state)
    close(at_once[0], committed(case, pending, form))


@given(st.data())
def test_windowed_float32_stays_within_the_bound(data: st.DataObject) -> None:
    """Pending factors as further ancestors, without forming the state: the error of u stays that of a verify."""
    case = data.draw(cases(max_nodes=7)).to(F32)
    case = Case(case.state / 4, *case.rows[:4], case.beta.clamp(max=1), case.parent_row, case.mask)
    pending = data.draw(pendings(case))
    _, _, u = verify(case, pending, 99, "rank_n", "tree")
    wanted = oracle(case, pending.tokens)[1]
    # |u| is compared with |beta v| and with what is read of the state, which a few nodes of few numbers may outweigh.
    scale = (case.beta.unsqueeze(-1) * case.v).double().norm(dim=(1, 3)) + wanted.norm(dim=(1, 3)) + 1
    assert float(((u.double() - wanted).norm(dim=(1, 3)) / scale).max()) <= 2e-6


@given(cases(max_nodes=6), st.sampled_from(SCHEDULES), FORMS)
def test_nothing_pending_is_a_plain_verify(case: Case, schedule: str, form: str) -> None:
    """A fresh slot, or one used before whose factors are stale: count 0 hides them, whatever they are."""
    batch, heads = case.state.shape[:2]
    stale = [
        torch.full(shape, float("nan"), dtype=torch.float64)
        for shape in ((batch, 3, *case.k.shape[2:]), (batch, 3, *case.v.shape[2:]), (batch, 3, heads))
    ]
    tree = (case.parent_row, case.mask, schedule)
    count = torch.zeros(batch, dtype=torch.int64)
    after, o, u = ops.delta_rule_verify_pending(case.state, *stale, None, count, 2, form, *case.rows, *tree)
    wanted = ops.delta_rule_verify(case.state, *case.rows, *tree)
    assert torch.equal(after, case.state)
    if schedule == "tree":
        close(o, wanted[0])
        close(u, wanted[1])
    else:
        assert torch.equal(o, wanted[0])
        assert torch.equal(u, wanted[1])


@given(pending_cases(), FORMS, st.integers(0, 4), st.sampled_from(SCHEDULES))
def test_in_place_is_the_same(made: Made, form: str, window: int, schedule: str) -> None:
    case, pending = made
    wanted = verify(case, pending, window, form, schedule)
    state = case.state.clone()
    tree = (case.parent_row, case.mask, schedule)
    o, u = ops.delta_rule_verify_pending_(state, *pending.operands, window, form, *case.rows, *tree)
    for left, right in zip((state, o, u), wanted, strict=True):
        assert torch.equal(left, right)
