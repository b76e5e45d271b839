"""Known bug classes of recurrent state (public reports): which state is committed, what is pending, what is stale.

Drift from low-precision factors (sglang#28695) is in `test_recurrent_drift`, states read in the wrong dtype (sglang PR
40419) in `test_recurrent_equality`.
"""

from __future__ import annotations

from functools import partial
from random import Random

import pytest
import torch

from tests.properties.bug_class_bench import PROMPTS, Batch, Check, Edit, append, drafts_by_turns, swap, unchanged
from tests.properties.recurrent_batches import COMMITS, PENDING, bench, check_row, check_states, pending

ALL = pytest.mark.parametrize(
    ("target", "commit"), [*(("delta", commit) for commit in COMMITS), ("hybrid", "deferred"), ("hybrid", "windowed")]
)
WAITING = pytest.mark.parametrize(
    ("target", "commit"), [(target, commit) for target in ("delta", "hybrid") for commit in PENDING]
)


@pytest.fixture
def edit() -> Edit:
    """No fault; `test_planted_fault_is_seen` calls the tests with one."""
    return unchanged


@ALL
def test_state_of_the_last_accepted_node(target: str, commit: str, edit: Edit) -> None:
    """sglang PR 27463: the state was committed at accept_length - 1, right only when no branch is accepted."""
    batch = Batch.start(bench(target, commit, edit))
    for depth in (3, 2, 1, 3):
        accepted = batch.step([batch.branch(row, depth) for row in range(4)])
        assert accepted.path[:, : depth + 1].tolist() == [[0, 2, 4, 6][: depth + 1]] * 4
        check_states(batch)
    batch.check_plain(PROMPTS)


@ALL
def test_nothing_accepted(target: str, commit: str, edit: Edit) -> None:
    """vllm#48475, tokenspeed#298: accepted == 0 gave index -1, so a state of padding or of the last node."""
    batch = Batch.start(bench(target, commit, edit))
    for _ in range(4):
        accepted = batch.step([batch.wrong(row) for row in range(4)])
        assert accepted.accept_length.tolist() == [0] * 4
        assert accepted.emitted.tolist() == [1] * 4
        check_states(batch)
    batch.check_plain(PROMPTS)


@ALL
def test_nothing_emitted_by_a_finished_row(target: str, commit: str, edit: Edit) -> None:
    """vllm#48475: a finished row in the batch emits nothing (count 0, place -1) and its state stays as it is."""
    batch = Batch.start(bench(target, commit, edit))
    batch.step([batch.branch(row) for row in range(4)])
    batch.state = batch.state._replace(finished=torch.tensor([False, True, False, True]))
    for _ in range(3):
        accepted = batch.step([batch.branch(row) for row in range(4)])
        assert [bool(count) for count in accepted.emitted] == [True, False, True, False]
        check_states(batch)
    batch.check_plain(PROMPTS)


@ALL
@pytest.mark.parametrize("plain", [False, True], ids=["only the root", "decode"])
def test_step_without_drafts_after_an_accepted_one(plain: bool, target: str, commit: str, edit: Edit) -> None:
    """vllm#52942: a step without drafts after one that accepted a branch used stale state."""
    batch = Batch.start(bench(target, commit, edit))
    for _ in range(3):
        assert bool((batch.step([batch.branch(row) for row in range(4)]).accept_length > 1).all())
        if plain:
            assert batch.decode().emitted.tolist() == [1] * 4
        else:
            assert batch.step([batch.no_drafts(row) for row in range(4)]).accept_length.tolist() == [0] * 4
    batch.check_plain(PROMPTS)
    check_states(batch)


@ALL
def test_rows_with_and_without_drafts(target: str, commit: str, edit: Edit) -> None:
    """vllm#55504: B = 2, one row without drafts, by turns; each does what it does alone (I13)."""
    check_states(drafts_by_turns(bench(target, commit, edit)))


@ALL
def test_prompt_of_length_one(target: str, commit: str, edit: Edit) -> None:
    """vllm#53051: prompts of one token, taken for a decode step; and prompts that come one token at a time."""
    batch = Batch.start(bench(target, commit, edit), [[token] for token in (5, 8, 1, 0)])
    check_states(batch)
    texts = [text[:-1] for text in batch.texts]
    for token in (3, 9):
        batch.prefill([[token], [], [token], [token]])
        texts = [[*text, *([] if row == 1 else [token])] for row, text in enumerate(texts)]
        assert [text[:-1] for text in batch.texts] == texts
        check_states(batch)
    for _ in range(2):
        batch.step([batch.branch(row) for row in range(4)])
    batch.check_plain(texts)


@ALL
def test_convolution_forgets_rejected_tokens(target: str, commit: str, edit: Edit) -> None:
    """vllm#50272: the window of the convolution kept rejected tokens. Reject behind an accepted node, then go on."""
    batch, rng = Batch.start(bench(target, commit, edit)), Random(3)
    for _ in range(5):
        batch.step([batch.planted(row, rng, early_error=0.5, short=0.0) for row in range(4)])
        check_states(batch)
    batch.check_plain(PROMPTS)


def accept_branches(batch: Batch, depth: int = 2) -> None:
    """One step in which every row accepts a branch."""
    batch.step([batch.branch(row, depth) for row in range(len(batch.texts))])


@WAITING
def test_snapshot_while_a_commit_is_pending(target: str, commit: str, edit: Edit) -> None:
    """vllm#43559, #53912: a prefix was saved while its commit was still pending (I21). It is brought back into another
    row, which has something pending itself; both go on with plain text."""
    made = bench(target, commit, edit)
    batch = Batch.start(made)
    accept_branches(batch)
    assert bool((pending(batch) > 1).all())
    text = list(batch.texts[0])
    batch.state, saved = made.module.snapshot(batch.state, [0])
    check_row(made, saved, 0, text[:-1])
    accept_branches(batch)
    assert bool((pending(batch) > 1).all())
    batch.state = made.module.restore(batch.state, [2], saved)
    batch.texts[2] = text
    for _ in range(3):
        accept_branches(batch)
        batch.check_plain([PROMPTS[0], PROMPTS[1], PROMPTS[0], PROMPTS[3]])
    check_states(batch)


@WAITING
def test_slot_used_again_with_factors_pending(target: str, commit: str, edit: Edit) -> None:
    """vllm#53912: a row given to another request while factors were pending folded the old request's into its state."""
    made = bench(target, commit, edit)
    batch = Batch.start(made)
    accept_branches(batch)
    batch.state = made.module.reset(batch.state, [1])
    batch.texts[1] = []
    assert int(pending(batch)[1]) == 0
    assert not bool(batch.state.state[:, 1].any() if target == "delta" else batch.state.l0_state[:, 1].any())
    batch.state = batch.state._replace(remaining=torch.full_like(batch.state.remaining, 100))
    batch.prefill([[], [2, 3], [], []])
    fresh = Batch.start(made, [[2, 3]])
    for _ in range(3):
        accept_branches(batch)
        accept_branches(fresh)
    assert batch.texts[1] == fresh.texts[0]
    batch.check_plain([PROMPTS[0], (2, 3), *PROMPTS[2:]])
    check_states(batch)


@WAITING
def test_prompt_goes_on_while_pending(target: str, commit: str, edit: Edit) -> None:
    """vllm#53912: a second turn is prefilled behind an accepted branch whose commit is still pending."""
    batch = Batch.start(bench(target, commit, edit))
    texts: list[list[int]] = []
    for turn in ([4, 1, 1], [9], [15, 2, 0, 3]):
        accept_branches(batch)
        batch.prefill([turn, [], turn, turn])
        texts = [text[:-1] for text in batch.texts]
        check_states(batch)
    batch.check_plain([texts[0], PROMPTS[1], *texts[2:]])


@WAITING
def test_verify_without_commit(target: str, commit: str, edit: Edit) -> None:
    """vllm#52942: a step given up after verify leaves no trace, whatever is done next (I24)."""
    batch = Batch.start(bench(target, commit, edit))
    for number in range(3):
        accept_branches(batch)
        batch.verify(batch.as_draft([batch.branch(row) for row in range(4)]))
        if number:
            batch.decode()
        check_states(batch)
    batch.check_plain(PROMPTS)


@WAITING
def test_deferred_equals_immediate_at_any_moment(target: str, commit: str, edit: Edit) -> None:
    """vllm#43559: flush after any number of deferred steps gives the immediate state (I19); twice changes nothing."""
    for steps in range(5):
        pair = [Batch.start(bench(target, commit, edit)), Batch.start(bench("delta", "factors"))]
        for batch in pair[: 2 if target == "delta" else 1]:
            for number in range(steps):
                batch.step([batch.branch(row, 1 + (row + number) % 3) for row in range(4)])
            batch.flush()
            once = [value.clone() for value in batch.state]
            batch.flush()
            assert all(torch.equal(one, two) for one, two in zip(once, batch.state, strict=True))
        if target == "delta":
            assert torch.allclose(pair[0].state.state, pair[1].state.state, rtol=1e-11, atol=1e-11)
            assert torch.equal(pair[0].state.length, pair[1].state.length)
        check_states(pair[0])


def test_window_fills_and_folds(edit: Edit) -> None:
    """Factors of several steps stay pending until the window is full, row by row, and fold in order."""
    batch, seen = Batch.start(bench("delta", "windowed", edit)), set()
    for number in range(8):
        before = pending(batch).tolist()
        depth = [1 + (row + number) % 3 for row in range(4)]
        batch.step([batch.branch(row, depth[row]) if row else batch.no_drafts(row) for row in range(4)])
        for row, count in enumerate(before):
            kept = count if count < 4 else 0
            assert int(pending(batch)[row]) == kept + (depth[row] + 1 if row else 1)
            seen.add((row, count >= 4))
        check_states(batch)
    assert seen == {(row, full) for row in range(4) for full in (False, True)}
    batch.check_plain(PROMPTS)


STALE = """
_reset = reset


def reset(state, rows):
    names = [name for name in State._fields if name.startswith("pending")]
    return _reset(state, rows)._replace(**{name: getattr(state, name) for name in names})


def prefill(weights, state, input_ids, lengths):
    return run_prefill(weights, state, input_ids, lengths)
"""
UNFLUSHED = swap(
    "    index = row_index(rows, state)\n    state = flush(state)\n", "    index = row_index(rows, state)\n"
)
WINDOW = "state.conv_candidate[layer], accepted.path, accepted.emitted"
FAULTS: dict[str, tuple[Check, Edit]] = {
    "snapshots: the state at accept_length": (
        partial(test_state_of_the_last_accepted_node, "delta", "snapshots"),
        swap("last_node = accepted.path[batch, last_wrapped]", "last_node = last_wrapped"),
    ),
    "snapshots: index -1 of a finished row": (
        partial(test_nothing_emitted_by_a_finished_row, "delta", "snapshots"),
        swap("gt = accepted.emitted > 0", "gt = accepted.emitted >= 0"),
    ),
    "factors: one short": (
        partial(test_nothing_accepted, "delta", "factors"),
        swap("accepted.path,\n            accepted.emitted,", "accepted.path,\n            accepted.emitted - 1,"),
    ),
    "replay: rows behind the path": (
        partial(test_nothing_accepted, "delta", "replay"),
        swap("< accepted.emitted.unsqueeze(1)).unsqueeze(-1)", "<= accepted.emitted.unsqueeze(1)).unsqueeze(-1)"),
    ),
    "deferred: decode without flush": (
        partial(test_step_without_drafts_after_an_accepted_one, True, "delta", "deferred"),
        swap("state = flush(state)\n    return run_decode", "return run_decode"),
    ),
    "windowed: decode without flush": (
        partial(test_step_without_drafts_after_an_accepted_one, True, "delta", "windowed"),
        swap("state = flush(state)\n    return run_decode", "return run_decode"),
    ),
    "rows of the first sequence": (
        partial(test_rows_with_and_without_drafts, "delta", "snapshots"),
        swap(
            "state.state_candidate[layer_2][batch, last_node]", "state.state_candidate[layer_2][0 * batch, last_node]"
        ),
    ),
    "a prompt of one token is taken for a decode step": (
        partial(test_prompt_of_length_one, "delta", "factors"),
        swap(
            "live_tokens = column < lengths.unsqueeze(1)",
            "live_tokens = (column < lengths.unsqueeze(1)) & (input_ids.shape[1] > 1)",
        ),
    ),
    "the convolution keeps the last nodes": (
        partial(test_convolution_forgets_rejected_tokens, "delta", "factors"),
        swap(WINDOW, WINDOW.replace("accepted.path", "iota(accepted.path, -2).expand_as(accepted.path)")),
    ),
    "the convolution takes one too few": (
        partial(test_nothing_accepted, "delta", "replay"),
        swap(WINDOW, WINDOW + " - 1"),
    ),
    "snapshot without flush, deferred": (
        partial(test_snapshot_while_a_commit_is_pending, "delta", "deferred"),
        UNFLUSHED,
    ),
    "snapshot without flush, windowed": (
        partial(test_snapshot_while_a_commit_is_pending, "hybrid", "windowed"),
        UNFLUSHED,
    ),
    "pending outlives its row": (
        partial(test_slot_used_again_with_factors_pending, "delta", "windowed"),
        append(STALE),
    ),
    "prefill without flush": (
        partial(test_prompt_goes_on_while_pending, "delta", "windowed"),
        swap("state = flush(state)\n    return run_prefill", "return run_prefill"),
    ),
    "the window is never emptied": (
        partial(test_window_fills_and_folds),
        swap("window_full = state.pending_factors >= 4", "window_full = state.pending_factors >= 99"),
    ),
    "pending is applied twice": (
        partial(test_verify_without_commit, "delta", "deferred"),
        swap("return state._replace(pending_emitted=nothing_pending), Verified", "return state, Verified"),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_seen(fault: str) -> None:
    """The test of a class fails on a module with that fault."""
    check, edit = FAULTS[fault]
    with pytest.raises(AssertionError):
        check(edit=edit)
