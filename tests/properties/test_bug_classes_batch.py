"""Known bug classes of batches (public reports): padding, finished rows, short prompts, sizes, the Decoder."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

import pytest
import torch

from specc.testing.draft_tree import DraftTree
from specc.testing.oracles import greedy_accept
from tests.properties.bug_class_bench import (
    DEFERRED,
    DRAFTS,
    PROMPTS,
    VOCABULARY,
    Batch,
    Check,
    Edit,
    append,
    bench,
    check_caches,
    made_for,
    plain_text,
    swap,
    unchanged,
)

EVERY_DRAFT = pytest.mark.parametrize("draft", list(DRAFTS))


@pytest.fixture
def edit() -> Edit:
    """No fault; `test_planted_fault_is_seen` calls the tests with one."""
    return unchanged


@EVERY_DRAFT
def test_prompt_of_length_one(draft: str, edit: Edit) -> None:
    """vllm#53051: a prompt of one token, alone and beside a longer one. An EAGLE head has no pair yet."""
    made = made_for(draft, edit)
    for prompts in ([[4]], [[0], [5, 9, 3, 2, 11]], [[16], [7]]):
        got = made.decoder().generate(prompts, 9).tokens
        assert got == [plain_text(made, prompt, 9) for prompt in prompts]


def live_slots(state: Any, row: int) -> dict[str, torch.Tensor]:
    """Every slot of a row, caches whole."""
    slots = state._asdict()
    return {name: (value[:, row] if value.dim() >= 4 else value[row]).clone() for name, value in slots.items()}


@pytest.mark.parametrize("draft", ["tree", "lookup tree", "eagle3", "chain"])
def test_finished_row_in_the_batch(draft: str, edit: Edit) -> None:
    """vllm#33326, #31186; flashinfer#2793: rows of finished requests were read by a padding index (-1 or 0).

    Row 1 is finished, row 2 never was in use: neither changes, and the others do what they do alone (I14).
    """
    made = made_for(draft, edit)
    prompts = [PROMPTS[0], PROMPTS[1], (), PROMPTS[3]]
    batch = Batch.start(made, prompts)
    batch.step()
    batch.flush()
    batch.state = batch.state._replace(finished=torch.tensor([False, True, True, False]))
    before = {row: live_slots(batch.state, row) for row in (1, 2)}
    alone = {row: Batch.start(made, prompts[row : row + 1]) for row in (0, 3)}
    for one in alone.values():
        one.step()
    for _ in range(3):
        accepted = batch.step()
        batch.flush()
        for row, one in alone.items():
            single = one.step()
            assert [value[0].tolist() for value in single] == [value[row].tolist() for value in accepted]
        assert accepted.emitted[1:3].tolist() == [0, 0]
        for row, slots in before.items():
            length = int(batch.state.length[row])
            for name, value in live_slots(batch.state, row).items():
                if name.startswith("pending"):
                    continue
                if name in ("k_cache", "v_cache"):  # rows behind the length are scratch
                    assert torch.equal(value[:, :length], slots[name][:, :length]), name
                else:
                    assert torch.equal(value, slots[name]), name
    batch.check_plain(prompts)


def poison(batch: Batch, value: float) -> None:
    """Overwrites whatever is not committed: cache rows behind each row's length, rows of unused sequences."""
    batch.flush()
    for cache in batch.state:
        if cache.dim() < 4:
            continue
        for row, length in enumerate(batch.length):
            # A draft model's row of the root is written again before it is read.
            cache[:, row, length if batch.texts[row] else 0 :] = value
    idle = torch.tensor([not text for text in batch.texts])
    batch.state = batch.state._replace(root_token=batch.state.root_token.masked_fill(idle, VOCABULARY - 1))


@pytest.mark.parametrize("value", [1e30, -1e30])
@pytest.mark.parametrize("draft", ["tree", "lookup tree", "eagle3", "chain", "lookup", "none"])
def test_poison_in_unused_rows(draft: str, value: float, edit: Edit) -> None:
    """vllm#33326; flashinfer#2793: what stands in padding and unused rows is read by nobody (I14, I17).

    Every row behind a committed length holds +-1e30 before each step; texts and acceptance stay bit for bit.
    """
    made = made_for(draft, edit)
    prompts = [PROMPTS[0], (), PROMPTS[1], PROMPTS[3]]
    clean, dirty = Batch.start(made, prompts), Batch.start(made, prompts)
    for _ in range(3):
        poison(dirty, value)
        drafts = [clean.draft(), dirty.draft()]
        assert torch.equal(drafts[0].tokens[[0, 2, 3]], drafts[1].tokens[[0, 2, 3]])
        verified = [batch.verify(draft) for batch, draft in zip((clean, dirty), drafts, strict=True)]
        live = drafts[0].valid & torch.tensor([True, False, True, True])[:, None]
        assert torch.equal(verified[0].logits[live], verified[1].logits[live])
        steps = [clean.step(), dirty.step()]
        for mine, theirs in zip(*steps, strict=True):
            assert torch.equal(mine, theirs)
    poison(dirty, value)
    assert torch.equal(clean.decode().logits[[0, 2, 3]], dirty.decode().logits[[0, 2, 3]])
    assert clean.texts == dirty.texts
    clean.check_plain(prompts)


def tempting(batch: Batch, row: int, tree: DraftTree) -> DraftTree:
    """The tree with padding nodes that would be accepted, if anybody looked at them."""
    argmax = batch.bench.plain.node_logits([batch.texts[row][:-1]], [tree])[0].argmax(-1).tolist()
    right = greedy_accept(tree, argmax, batch.bench.spec.depth)
    pad = tree.num_nodes - tree.num_valid
    tokens = (*tree.tokens[: tree.num_valid], *[right.bonus] * pad)
    return DraftTree(tokens, (*tree.parent[: tree.num_valid], *[right.path[right.accept_length]] * pad), tree.valid)


def test_what_padding_nodes_hold(edit: Edit) -> None:
    """vllm#31186: tokens and parents of padding nodes, and of a padded prompt, change nothing (I14)."""
    made, rng = bench("tree", DEFERRED, edit), Random(2)
    pair = [Batch.start(made) for _ in range(2)]
    for _ in range(4):
        trees = [pair[0].planted(row, rng, short=1.0, early_error=0.0) for row in range(4)]
        other = [tempting(pair[0], row, tree) for row, tree in enumerate(trees)]
        results = [batch.step(one) for batch, one in zip(pair, (trees, other), strict=True)]
        for mine, theirs in zip(*results, strict=True):
            assert torch.equal(mine, theirs)
        for batch in pair:
            check_caches(batch)
    for batch, padding in zip(pair, (0, VOCABULARY - 1), strict=True):
        batch.prefill([(1,), (2, 3, 4), (), (5, 6)], padding)
    for one, other_ in zip(pair[0].state, pair[1].state, strict=True):
        if one.dim() < 4:
            assert torch.equal(one, other_)
    check_caches(pair[1])


@pytest.mark.parametrize("draft", ["tree", "lookup tree", "eagle3", "none"])
def test_row_without_new_tokens_in_prefill(draft: str, edit: Edit) -> None:
    """vllm#33326: lengths[b] = 0 leaves row b untouched, in every slot, whether it is live, finished or unused."""
    made = made_for(draft, edit)
    batch = Batch.start(made, [PROMPTS[0], PROMPTS[1], ()])
    if draft != "none":
        batch.step()
    batch.flush()
    batch.state = batch.state._replace(finished=torch.tensor([False, True, True]))
    for chunks in ([(), (4, 5, 6), ()], [(1, 2, 3, 4, 5), (), ()], [(), (), (9,)]):
        idle = [row for row in range(3) if not chunks[row]]
        before = {row: live_slots(batch.state, row) for row in idle}
        batch.prefill(chunks)
        for row in idle:
            for name, value in live_slots(batch.state, row).items():
                assert torch.equal(value, before[row][name]), (name, row)


@EVERY_DRAFT
def test_prompt_in_chunks(draft: str, edit: Edit) -> None:
    """vllm#53051: a prompt in two chunks, split anywhere, ragged, equals one prefill (I22)."""
    made = made_for(draft, edit)
    prompts = [(5, 9, 3, 2, 11), (8, 1), (1, 16, 4, 4)]
    whole = Batch.start(made, prompts)
    whole.draft()
    texts = [list(text) for text in whole.texts]
    for cut in range(1, 5):
        parts = Batch.start(made, [prompt[:cut] for prompt in prompts])
        parts.prefill([prompt[cut:] for prompt in prompts])
        assert parts.texts == texts
        parts.draft()
        for name, value in whole.state._asdict().items():
            other = getattr(parts.state, name)
            if value.is_floating_point():
                length = int(whole.state.length.min())
                other, value = (one[:, :, :length] if one.dim() >= 4 else one for one in (other, value))
                if name == "recent_features":
                    other, value = other[:, 0], value[:, 0]
                assert torch.allclose(other, value, rtol=1e-9, atol=1e-9), (name, cut)
            elif name != "recent_tokens":
                assert torch.equal(other, value), (name, cut)
        check_caches(parts)


SEES_ONE_MORE = """
_visible = block_visible


def block_visible(length, total, block, positions, window):
    return _visible(length, total, block, positions, window) | (
        torch.arange(total) == (length + block.shape[-1] - 1).unsqueeze(1)
    ).unsqueeze(1)
"""
PARENTS_OF_PADDING = "jump = torch.where(valid, parent_row, torch.zeros_like(parent_row))"
FAULTS: dict[str, tuple[Check, Edit]] = {
    "finished rows go on": (
        partial(test_finished_row_in_the_batch, "tree"),
        swap("live = torch.logical_and(logical_not, limit > 0)", "live = limit > 0"),
    ),
    "finished rows' drafter rows": (
        partial(test_finished_row_in_the_batch, "tree"),
        swap(
            "written = state.recent_count.masked_fill(state.finished, 0)",
            "written = state.recent_count",
        ),
    ),
    "scratch rows are seen": (partial(test_poison_in_unused_rows, "tree", 1e30), append(SEES_ONE_MORE)),
    "padding nodes are accepted": (
        test_what_padding_nodes_hold,
        swap("drafted_valid = draft.valid.narrow", "drafted_valid = torch.ones_like(draft.valid).narrow"),
    ),
    "root of an idle row": (
        partial(test_row_without_new_tokens_in_prefill, "tree"),
        swap("new_root = torch.where(live, picked, state.root_token)", "new_root = picked"),
    ),
    "drafter's chunk of an idle row": (
        partial(test_row_without_new_tokens_in_prefill, "tree"),
        swap(
            "recent_count=torch.where(live, torch.ones_like(lengths), state.recent_count)",
            "recent_count=torch.ones_like(lengths)",
        ),
    ),
    "chunk from 0": (
        partial(test_prompt_in_chunks, "tree"),
        swap("positions = column + depth", "positions = 0 * column + depth"),
    ),
    "head's chunk from 0": (
        partial(test_prompt_in_chunks, "eagle3"),
        swap("starts_text = state.length == 0", "starts_text = state.length >= 0"),
    ),
    "prompt of one token": (
        partial(test_prompt_of_length_one, "tree"),
        swap("last_row = (lengths - 1).unsqueeze(1)", "last_row = (lengths - 2).unsqueeze(1)"),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_seen(fault: str) -> None:
    """The test of a class fails on a module with that fault."""
    check, edit = FAULTS[fault]
    with pytest.raises(AssertionError):
        check(edit=edit)
