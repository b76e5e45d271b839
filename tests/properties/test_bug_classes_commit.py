"""Known bug classes of accept and commit (public reports): which rows, which state, what is pending."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

import pytest
import torch

from specc.testing.draft_tree import make_tree
from tests.properties.bug_class_bench import (
    DEFERRED,
    IMMEDIATE,
    LENGTH,
    PROMPTS,
    VOCABULARY,
    Batch,
    Check,
    Edit,
    append,
    bench,
    check_accepted,
    check_caches,
    drafts_by_turns,
    swap,
    unchanged,
)

UPDATES = pytest.mark.parametrize("update", [DEFERRED, IMMEDIATE], ids=["deferred", "immediate"])


@pytest.fixture
def edit() -> Edit:
    """No fault; `test_planted_fault_is_seen` calls the tests with one."""
    return unchanged


def test_more_nodes_than_steps(edit: Edit) -> None:
    """sglang PR 26866: accept buffers sized for steps, strides wrong at batch > 1. N = 13, P = 3, K = 4, B = 2.

    Rows accept different nodes, the highest ones too.
    """
    made = bench("wide", edit=edit)
    prompts = PROMPTS[:2]
    batch, highest = Batch.start(made, prompts), 0
    for number in range(5):
        trees = []
        for row in range(2):
            right, root = batch.continuation(row, 2), batch.texts[row][-1]
            others = [token for token in range(VOCABULARY) if token not in right][:10]
            # Level 1: three decoys and the right token; its children come last, the right one among them.
            first = [*others[:3], right[0]] if row else [right[0], *others[:3]]
            above = 1 + first.index(right[0])
            second = [*others[3 : 6 + row], right[1], *others[6:]][: 8 - number]
            parent = [-1, 0, 0, 0, 0, *[above] * 4, *[1 + above % 4] * 4]
            trees.append(make_tree([root, *first, *second], parent[: 5 + len(second)], 13))
        draft = batch.as_draft(trees)
        verified, accepted = batch.verify(draft), batch.step(trees)
        assert accepted.path.shape == (2, 3)
        assert accepted.emitted_tokens.shape == (2, 3)
        check_accepted(draft, verified, accepted, made.spec, range(2))
        highest = max(highest, int(accepted.path.max()))
    assert highest >= 8
    batch.check_plain(prompts)
    check_caches(batch)


@UPDATES
def test_state_of_the_last_accepted_node(update: str, edit: Edit) -> None:
    """sglang PR 27463: the state was committed at accept_length - 1, right only when no branch is accepted."""
    batch = Batch.start(bench("tree", update, edit))
    for depth in (3, 2, 1, 3):
        accepted = batch.step([batch.branch(row, depth) for row in range(4)])
        assert accepted.path[:, : depth + 1].tolist() == [[0, 2, 4, 6][: depth + 1]] * 4
        check_caches(batch)
    batch.check_plain(PROMPTS)


@UPDATES
@pytest.mark.parametrize("draft", ["tree", "lookup", "eagle3"])
def test_nothing_accepted(draft: str, update: str, edit: Edit) -> None:
    """vllm#48475, tokenspeed#298: accepted == 0 gave index -1. Every draft is rejected, step after step."""
    batch = Batch.start(bench(draft, update if draft != "lookup" else IMMEDIATE, edit))
    for number in range(4):
        before = batch.length
        accepted = batch.step([batch.wrong(row) for row in range(4)])
        assert accepted.accept_length.tolist() == [0] * 4
        assert accepted.emitted.tolist() == [1] * 4
        assert not bool(accepted.path.any())
        assert batch.length == [count + 1 for count in before]
        if number % 2:
            batch.draft()
    batch.check_plain(PROMPTS)
    check_caches(batch)


@UPDATES
@pytest.mark.parametrize("plain", [False, True], ids=["only the root", "decode"])
def test_step_without_drafts_after_an_accepted_one(plain: bool, update: str, edit: Edit) -> None:
    """vllm#52942: a step without drafts after one that accepted a branch used stale state."""
    batch = Batch.start(bench("tree", update, edit))
    for _ in range(3):
        assert bool((batch.step([batch.branch(row) for row in range(4)]).accept_length > 1).all())
        if plain:
            assert batch.decode().emitted.tolist() == [1] * 4
        else:
            assert batch.step([batch.no_drafts(row) for row in range(4)]).accept_length.tolist() == [0] * 4
    batch.check_plain(PROMPTS)
    check_caches(batch)


@UPDATES
def test_rows_with_and_without_drafts(update: str, edit: Edit) -> None:
    """vllm#55504: B = 2, one row without drafts, by turns; each does what it does alone, bit for bit (I13)."""
    check_caches(drafts_by_turns(bench("tree", update, edit)))


@UPDATES
def test_k_and_v_follow_one_path(update: str, edit: Edit) -> None:
    """alibaba/MNN#4591: K and V were compacted differently after a branch was accepted (I27)."""
    made, rng, moved = bench("tree", update, edit), Random(5), 0
    for _ in range(3):
        batch = Batch.start(made)
        for _ in range(3):
            path = batch.step([batch.planted(row, rng, early_error=0.0) for row in range(4)]).path
            moved += int((path > torch.arange(4)).any(-1).sum())
            check_caches(batch)
    assert moved > 8


def snapshot_while_pending(make: Callable[[Batch], None], edit: Edit) -> None:
    """Accept a branch, save row 0 at once, go on, bring it back into another row: both go on with plain text."""
    made = bench("tree", DEFERRED, edit)
    batch = Batch.start(made)
    make(batch)
    assert bool((batch.state.pending_emitted > 1).all())
    text = list(batch.texts[0])
    batch.state, saved = made.module.snapshot(batch.state, [0])
    whole = made.plain.forward([text[:-1]])
    for layer in range(2):
        for name, rows in (("k_cache", whole.keys), ("v_cache", whole.values)):
            got = getattr(saved, name)[layer, 0, : len(text) - 1]
            assert torch.allclose(got, rows[layer][0], rtol=1e-9, atol=1e-9)
    assert int(saved.pending_emitted[0]) == 0
    make(batch)  # something is pending again, in the row that is replaced too
    batch.state = made.module.restore(batch.state, [2], saved)
    batch.texts[2] = text
    prompts = [PROMPTS[0], PROMPTS[1], PROMPTS[0], PROMPTS[3]]
    for _ in range(3):
        make(batch)
        batch.check_plain(prompts)
    check_caches(batch)


def accept_branches(batch: Batch) -> None:
    """One step in which every row accepts a branch."""
    batch.step([batch.branch(row, 2) for row in range(len(batch.texts))])


def test_snapshot_while_a_commit_is_pending(edit: Edit) -> None:
    """vllm#43559, #53912: a prefix was saved while its commit was still pending (I21)."""
    snapshot_while_pending(accept_branches, edit)


def test_deferred_equals_immediate_at_any_moment(edit: Edit) -> None:
    """vllm#43559: flush after any number of deferred steps gives the immediate state (I19); twice changes nothing."""
    for steps in range(4):
        pair = [Batch.start(bench("tree", DEFERRED, edit)), Batch.start(bench("tree", IMMEDIATE))]
        for batch in pair:
            for number in range(steps):
                batch.step([batch.branch(row, 1 + (row + number) % 3) for row in range(4)])
            batch.flush()
            batch.flush()
        for name in ("length", "root_token", "remaining", "finished", "recent_tokens", "recent_count"):
            assert torch.equal(getattr(pair[0].state, name), getattr(pair[1].state, name)), name
        check_caches(pair[0])


def test_slot_used_again_while_pending(edit: Edit) -> None:
    """vllm#53912: a row given to another request while its last commit was pending got the old request's rows."""
    made = bench("tree", DEFERRED, edit)
    batch = Batch.start(made)
    accept_branches(batch)
    batch.state = made.module.reset(batch.state, [1])
    batch.texts[1] = []
    assert int(batch.state.length[1]) == 0
    assert not bool(batch.state.k_cache[:, 1].any())
    new = [[], [2, 3], [], []]
    batch.state = batch.state._replace(remaining=torch.full_like(batch.state.remaining, 100))
    batch.prefill(new)
    fresh = Batch.start(made, [[2, 3]])
    for _ in range(3):
        accept_branches(batch)
        accept_branches(fresh)
    assert batch.texts[1] == fresh.texts[0]
    batch.check_plain([PROMPTS[0], (2, 3), *PROMPTS[2:]])
    check_caches(batch)


@UPDATES
@pytest.mark.parametrize("draft", ["tree", "eagle3", "lookup tree"])
def test_prompt_goes_on_while_pending(draft: str, update: str, edit: Edit) -> None:
    """vllm#53912: a second turn is prefilled behind an accepted branch whose commit is still pending.

    Drafts are those of a fresh start on the same texts.
    """
    batch = Batch.start(bench(draft, update, edit))
    texts = []
    for turn in ([4, 1, 1], [9], [15, 2, 0, 3]):
        batch.draft()  # planted drafts replace it, but it keeps the drafter's cache up to date
        accept_branches(batch)
        batch.prefill([turn, [], turn, turn])
        texts = [text[:-1] for text in batch.texts]
        check_caches(batch)
        fresh = Batch.start(batch.bench, texts)
        for mine, theirs in zip(batch.draft()[:3], fresh.draft()[:3], strict=True):
            assert torch.allclose(mine.double(), theirs.double(), atol=1e-5)
    batch.check_plain([texts[0], PROMPTS[1], *texts[2:]])


@UPDATES
def test_verify_without_commit(update: str, edit: Edit) -> None:
    """vllm#52942: a step given up after verify leaves no trace, whatever is done next (I24)."""
    batch = Batch.start(bench("tree", update, edit))
    for number in range(3):
        accept_branches(batch)
        batch.verify(batch.as_draft([batch.branch(row) for row in range(4)]))
        if number:
            batch.decode()
        check_caches(batch)
    batch.check_plain(PROMPTS)


@UPDATES
@pytest.mark.parametrize("left", [1, 2, 3])
def test_capacity_inside_an_accepted_path(left: int, update: str, edit: Edit) -> None:
    """I25: max_sequence_length is reached in the middle of an accepted path; nothing is written beyond it."""
    made = bench("tree", update, edit)
    rng = Random(left)
    prompts = [[rng.randrange(VOCABULARY) for _ in range(LENGTH - left)], [5, 9]]
    batch = Batch.start(made, prompts)
    accepted = batch.step([batch.right(row) for row in range(2)])
    assert accepted.emitted.tolist() == [left, 4]
    assert accepted.accept_length.tolist() == [left - 1, 3]
    assert accepted.stopped.tolist() == [True, False]
    assert batch.length == [LENGTH, 6]
    for _ in range(3):
        later = batch.step([batch.right(row) for row in range(2)])
        assert int(later.emitted[0]) == 0
    assert batch.length[0] == LENGTH
    batch.check_plain(prompts)
    check_caches(batch)


def drafter_rows(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """The drafter's caches after it caught up."""
    batch.draft()
    return batch.state.draft_k_cache, batch.state.draft_v_cache


@pytest.mark.parametrize("draft", ["tree", "eagle3"])
def test_drafter_rows_are_rebuilt_from_what_was_accepted(draft: str, edit: Edit) -> None:
    """vllm#14649: the drafter's KV kept the features of its own guesses; accept > 1, then compare with a fresh run.

    A head's rows come from the target's features of accepted tokens, a draft model's from the tokens.
    """
    made = bench(draft, DEFERRED, edit)
    batch = Batch.start(made)
    offset = 1 if draft == "tree" else 0  # a draft model has a row for the root, a head pairs it
    for number in range(4):
        batch.draft()
        tree = [batch.branch(row, 2) if (row + number) % 3 else batch.wrong(row) for row in range(4)]
        assert int(batch.step(tree).accept_length.max()) == 2
        mine = drafter_rows(batch)
        fresh = Batch.start(made, [text[:-1] for text in batch.texts])
        assert fresh.texts == batch.texts
        theirs = drafter_rows(fresh)
        for row, count in enumerate(batch.length):
            for got, wanted in zip(mine, theirs, strict=True):
                live = got[:, row, : count + offset], wanted[:, row, : count + offset]
                assert torch.allclose(*live, rtol=1e-9, atol=1e-9)
        if draft == "tree":
            whole = made.drafter.forward([batch.texts[0]])
            for layer, rows in enumerate(whole.keys):
                got = mine[0][layer, 0, : len(batch.texts[0])]
                assert torch.allclose(got, rows[0], rtol=1e-9, atol=1e-9)


ONLY_K = """
_committed, _calls = commit_path_, [0]


def commit_path_(cache, path, start, count, fast_reorder):
    _calls[0] += 1
    _committed(cache, path if _calls[0] % 2 else torch.arange(path.shape[1]).expand_as(path), start, count, False)
"""
STALE = """
_reset = reset


def reset(state, rows):
    names = ("pending_emitted", "pending_path", "pending_length")
    return _reset(state, rows)._replace(**{name: getattr(state, name) for name in names})


def prefill(weights, state, input_ids, lengths):
    return run_prefill(weights, state, input_ids, lengths)
"""
UNFLUSHED = swap(
    "    index = row_index(rows, state)\n    state = flush(state)\n", "    index = row_index(rows, state)\n"
)
RECENT = "recent_count=torch.where(moved, accepted.emitted, state.recent_count)"
FAULTS: dict[str, tuple[Check, Edit]] = {
    "stride of row 0": (
        test_more_nodes_than_steps,
        swap("batch_index(path), path.narrow", "0 * batch_index(path), path.narrow"),
    ),
    "buffer of steps": (
        test_more_nodes_than_steps,
        swap("torch.full_like(path, node)", "torch.full_like(path, node).clamp(max=3)"),
    ),
    "accept_length - 1, deferred": (
        partial(test_state_of_the_last_accepted_node, DEFERRED),
        swap("pending_emitted=accepted.emitted,", "pending_emitted=accepted.emitted - 1,"),
    ),
    "index -1": (
        partial(test_nothing_accepted, "tree", DEFERRED),
        swap("column == column_2,", "column == column_2 - 1,"),
    ),
    "stale pending before decode": (
        partial(test_step_without_drafts_after_an_accepted_one, True, DEFERRED),
        swap("state = flush(state)\n    return run_decode", "return run_decode"),
    ),
    "pending is applied twice": (
        partial(test_verify_without_commit, DEFERRED),
        swap("return state._replace(pending_emitted=nothing_pending), Verified", "return state, Verified"),
    ),
    "prefill without flush": (
        partial(test_prompt_goes_on_while_pending, "tree", DEFERRED),
        swap("state = flush(state)\n    return run_prefill", "return run_prefill"),
    ),
    "padding is looked at": (
        partial(test_rows_with_and_without_drafts, DEFERRED),
        swap("drafted_valid = draft.valid.narrow", "drafted_valid = draft.valid[:1].expand_as(draft.valid).narrow"),
    ),
    "only K moves": (partial(test_k_and_v_follow_one_path, DEFERRED), append(ONLY_K)),
    "snapshot without flush": (test_snapshot_while_a_commit_is_pending, UNFLUSHED),
    "pending outlives its row": (test_slot_used_again_while_pending, append(STALE)),
    "flush forgets V": (
        test_deferred_equals_immediate_at_any_moment,
        swap(
            "            state.v_cache[layer_2],\n            state.pending_path",
            "            state.v_cache[layer_2].clone(),\n            state.pending_path",
        ),
    ),
    "limit off by one": (
        partial(test_capacity_inside_an_accepted_path, 2, DEFERRED),
        swap("== limit.unsqueeze(1) - 1", "== limit.unsqueeze(1)"),
    ),
    "own guesses of a draft model": (
        partial(test_drafter_rows_are_rebuilt_from_what_was_accepted, "tree"),
        swap(RECENT, "recent_count=torch.where(moved, 1, state.recent_count)"),
    ),
    "features of the root": (
        partial(test_drafter_rows_are_rebuilt_from_what_was_accepted, "eagle3"),
        swap(
            "verified.features[batch_index(accepted.path), accepted.path]",
            "verified.features[batch_index(accepted.path), 0 * accepted.path]",
        ),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_seen(fault: str) -> None:
    """The test of a class fails on a module with that fault."""
    check, edit = FAULTS[fault]
    with pytest.raises(AssertionError):
        check(edit=edit)
