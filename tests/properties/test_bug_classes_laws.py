"""Known bug classes of what is emitted (public reports): coins, temperature, stop tokens, equality with plain text."""

from __future__ import annotations

from collections import Counter
from functools import partial
from random import Random
from typing import Any

import pytest
import torch

from specc.testing import ALPHA, Exercise, p_value
from specc.testing.draft_tree import DraftTree, make_tree
from specc.testing.tensors import acceptances
from tests.properties.bug_class_bench import (
    DEFERRED,
    DRAFTER,
    IMMEDIATE,
    PROMPTS,
    VOCABULARY,
    Batch,
    Bench,
    Check,
    Edit,
    append,
    bench,
    check_caches,
    swap,
    unchanged,
)

SMALL = f"{{{DRAFTER}, tree: static, choices: [[0], [1], [2], [0, 0], [0, 1]]}}"
ONE_MINUS = "1.0 - 2.0**-53"
RULES = pytest.mark.parametrize("rule", ["target_only", "true_q"])


@pytest.fixture
def edit() -> Edit:
    """No fault; `test_planted_fault_is_seen` calls the tests with one."""
    return unchanged


def sampling(rule: str, temperature: float, top_k: int = 0) -> str:
    """Sections of a spec that samples."""
    keep = f", top_k: {top_k}" if top_k else ""
    return f"accept: {{method: rejection, rule: {rule}}}\nsampling: {{temperature: {temperature}{keep}}}\n{DEFERRED}"


def coin(value: str) -> Edit:
    """Every uniform number is this one."""
    return append(
        "_uniform = counter_uniform\n\n\ndef counter_uniform(*args):\n"
        f"    return torch.full_like(_uniform(*args), {value})\n"
    )


def both(one: Edit, other: Edit) -> Edit:
    """One edit after the other."""
    return lambda source: other(one(source))


def uniform_law(trees: list[DraftTree]) -> torch.Tensor:
    """q [B,N,V] that gives every token the same mass."""
    return torch.full((len(trees), trees[0].num_nodes, VOCABULARY), 1 / VOCABULARY, dtype=torch.float64)


def step_with(batch: Batch, rule: str, trees: list[DraftTree]) -> Any:
    """One step with planted drafts, and with their law where the rule reads it."""
    return batch.step(trees, **({"q_probs": uniform_law(trees)} if rule == "true_q" else {}))


@RULES
def test_coin_of_zero_accepts_nothing_impossible(rule: str, edit: Edit) -> None:
    """vllm-ascend PR 13470: u = 0 accepted every draft. A token of probability 0 is never accepted, whatever u is."""
    for value in ("0.0", ONE_MINUS):
        made = bench(SMALL, sampling(rule, 1.0, top_k=3), both(edit, coin(value)))
        batch = Batch.start(made)
        for _ in range(3):
            trees, likely = [], []
            for text in batch.texts:
                order = made.plain.logits(text).argsort(descending=True).tolist()
                likely.append(set(order[:3]))
                trees.append(make_tree([text[-1], *order[-3:], 1, 2], [-1, 0, 0, 0, 1, 1], 6))
            accepted = step_with(batch, rule, trees)
            assert accepted.accept_length.tolist() == [0] * 4
            assert all(token in few for token, few in zip(accepted.bonus.tolist(), likely, strict=True))


@RULES
def test_coin_at_both_ends(rule: str, edit: Edit) -> None:
    """vllm-ascend PR 13470: with u = 0 the first possible child is taken, with u = 1 - 2^-53 only a certain one.

    target_only: when two of three possible tokens were rejected, the third is certain.
    """
    taken = {}
    for value in ("0.0", ONE_MINUS):
        made = bench(SMALL, sampling(rule, 1.0, top_k=3), both(edit, coin(value)))
        batch = Batch.start(made)
        trees = []
        for text in batch.texts:
            order = made.plain.logits(text).argsort(descending=True).tolist()
            trees.append(make_tree([text[-1], order[2], order[1], order[0]], [-1, 0, 0, 0], 6))
        taken[value] = step_with(batch, rule, trees).path[:, 1].tolist()
    assert taken["0.0"] == [1] * 4
    if rule == "target_only":
        assert taken[ONE_MINUS] == [3] * 4
    else:  # p > q may hold for an earlier one, and is certain then
        assert all(node > 0 for node in taken[ONE_MINUS])


@RULES
def test_sampled_rows_do_not_depend_on_the_batch(rule: str, edit: Edit) -> None:
    """vllm#55504, sampling: a request's text is a function of its seed, its name and its prompt alone (I13)."""
    made = bench(SMALL, sampling(rule, 0.7), edit)
    prompts, names = [[5, 9, 3], [8], [1, 16, 4, 7]], [7, 2, 11]
    together = made.decoder().generate(prompts, 12, requests=names, seed=5).tokens
    for row, prompt in enumerate(prompts):
        for place in (0, 2):
            batch, own = [[2, 2], [3], [9]], [0, 1, 3]
            batch[place], own[place] = prompt, names[row]
            assert made.decoder().generate(batch, 12, requests=own, seed=5).tokens[place] == together[row]
    assert made.decoder().generate(prompts, 12, requests=names, seed=6).tokens != together
    same = made.decoder().generate([[8]] * 3, 12, requests=names).tokens
    assert len({tuple(tokens) for tokens in same}) > 1


ROWS = 2500


@pytest.mark.parametrize(("temperature", "other"), [(1.0, 0.25), (0.25, 1.0)])
def test_temperature_is_used(temperature: float, other: float, edit: Edit) -> None:
    """sglang PR 31214: the temperature was ignored. Frequencies follow softmax(logits / T), and not the other T's.

    The prefill's token, a step's first token, and the second one after the likeliest first.
    """
    prompt = (5, 9, 3)
    made = bench(SMALL, sampling("target_only", temperature), edit, batch=4096)
    state = made.module.init_state(ROWS)
    keys = torch.randint(-(2**62), 2**62, (ROWS,), generator=torch.Generator().manual_seed(4))
    batch = Batch(made, state._replace(rng=keys), [[] for _ in range(ROWS)])
    batch.prefill([prompt] * ROWS)
    roots = [text[-1] for text in batch.texts]
    compare(made, prompt, roots, temperature, other)
    root = Counter(roots).most_common(1)[0][0]
    accepted = batch.step()
    rows = [row for row in range(ROWS) if roots[row] == root]
    first = [int(accepted.emitted_tokens[row, 0]) for row in rows]
    compare(made, (*prompt, root), first, temperature, other)
    token = Counter(first).most_common(1)[0][0]
    pairs = [row for row, own in zip(rows, first, strict=True) if own == token and accepted.emitted[row] > 1]
    second = [int(accepted.emitted_tokens[row, 1]) for row in pairs]
    assert len(second) > 60
    law = torch.softmax(made.plain.logits((*prompt, root, token)) / temperature, -1)
    assert p_value([second.count(one) for one in range(VOCABULARY)], law.tolist()) >= ALPHA


def compare(made: Bench, text: tuple[int, ...], drawn: list[int], temperature: float, other: float) -> None:
    """The drawn tokens follow the law at `temperature`, and that test would see the other temperature."""
    counts = [drawn.count(token) for token in range(VOCABULARY)]
    laws = [torch.softmax(made.plain.logits(text) / one, -1).tolist() for one in (temperature, other)]
    assert p_value(counts, laws[0]) >= ALPHA
    assert p_value(counts, laws[1]) < ALPHA


STOP = 3


def stopping_prompts(made: Bench) -> list[list[int]]:
    """Prompts 0 to 4: the plain text of prompt j has its first stop token j tokens after the prefill's token.

    They are prefixes of one plain text that goes on for a while before it reaches the stop token.
    """
    for first in range(VOCABULARY):
        text = [first, *made.plain.continuation([first], 24)]
        if STOP in text[6:] and STOP not in text[:6]:
            end = text.index(STOP)
            return [text[: end - place] for place in range(5)]
    raise AssertionError("no plain text reaches the stop token late enough")


@pytest.mark.parametrize("update", [DEFERRED, IMMEDIATE], ids=["deferred", "immediate"])
def test_stop_token_inside_a_path(update: str, edit: Edit) -> None:
    """TensorRT-LLM#18892: stop tokens per node. Text ends at the first one in the accepted path; nothing after it is
    emitted or committed, and a stop token on a rejected branch stops nothing.
    """
    made = bench("tree", f"accept: {{stop_tokens: [{STOP}]}}\n{update}", edit)
    prompts = stopping_prompts(made)[1:]
    batch = Batch.start(made, prompts)
    trees = []
    for row in range(4):
        root, right = batch.texts[row][-1], batch.continuation(row, 3)
        decoy = STOP if right[0] != STOP else 0
        trees.append(make_tree([root, decoy, *right], [-1, 0, 0, 2, 3], 8))
    accepted = batch.step(trees)
    assert accepted.accept_length.tolist() == [0, 1, 2, 3]
    assert accepted.bonus.tolist() == [STOP] * 4
    assert accepted.stopped.tolist() == [True] * 4
    assert accepted.path.tolist() == [[0, 0, 0, 0], [0, 2, 0, 0], [0, 2, 3, 0], [0, 2, 3, 4]]
    assert accepted.emitted_tokens.tolist() == [
        [*text[len(prompt) + 1 :], *[0] * (3 - row)]
        for row, (text, prompt) in enumerate(zip(batch.texts, prompts, strict=True))
    ]
    check_caches(batch)
    before = [list(text) for text in batch.texts]
    assert not bool(batch.step().emitted.any())
    assert batch.texts == before
    batch.check_plain(prompts)


def test_stop_token_ends_generation(edit: Edit) -> None:
    """TensorRT-LLM#18892, whole texts: cut behind the first stop token, that of the prefill included."""
    made = bench("tree", f"accept: {{stop_tokens: [{STOP}]}}\n{DEFERRED}", edit)
    prompts = stopping_prompts(made)[:4]
    generation = made.decoder().generate(prompts, 20)
    assert [len(tokens) for tokens in generation.tokens] == [1, 2, 3, 4]
    assert all(tokens[-1] == STOP for tokens in generation.tokens)
    assert generation.tokens == made.decoder().generate(prompts, 20, speculative=False).tokens
    for prompt, tokens in zip(prompts, generation.tokens, strict=True):
        assert tokens == made.plain.continuation(prompt, len(tokens))


CASES = [
    ("tree", DEFERRED),
    ("tree", IMMEDIATE),
    ("tree", "verify: {attention: eager}\n" + DEFERRED),
    ("tree", "commit: {update: deferred, fast_reorder: false}"),
    ("wide", DEFERRED),
    ("lookup tree", DEFERRED),
    ("eagle3", IMMEDIATE),
]


@pytest.mark.parametrize(("draft", "sections"), CASES)
def test_text_is_plain_greedy_whatever_is_drafted(draft: str, sections: str, edit: Edit) -> None:
    """EAGLE#212: speculative text differed from plain greedy text. Many planted drafts, ragged rows that end at
    different times; the margin says that rounding decided nothing (I23).
    """
    made, rng, counts, margin = bench(draft, sections, edit), Random(11), Exercise(), 1.0
    for remaining in ([13, 4, 20, 9], [6, 18, 2, 15]):
        batch = Batch.start(made)
        batch.state = batch.state._replace(remaining=torch.tensor(remaining))
        for _ in range(6):
            live = [not done for done in batch.state.finished.tolist()]
            trees = [batch.planted(row, rng, early_error=0.1) for row in range(4)]
            accepted = batch.step(trees)
            results = acceptances(accepted.path, accepted.accept_length, accepted.bonus, accepted.stopped)
            for row, tree in enumerate(trees):
                if live[row]:
                    counts.record(tree, results[row])
                else:
                    counts.record_idle()
        batch.check_plain(PROMPTS)
        made_tokens = [len(text) - len(prompt) - 1 for text, prompt in zip(batch.texts, PROMPTS, strict=True)]
        assert all(count <= left for count, left in zip(made_tokens, remaining, strict=True))
        for text, prompt in zip(batch.texts, PROMPTS, strict=True):
            for end in range(len(prompt), len(text)):
                best = made.plain.logits(text[:end]).topk(2).values
                margin = min(margin, float(best[0] - best[1]))
    counts.require()
    assert margin > 1e-6


ACCEPT_ROW = "passed = accept_uniform < token_prob"
FAULTS: dict[str, tuple[Check, Edit]] = {
    "u = 0 accepts": (
        partial(test_coin_of_zero_accepts_nothing_impossible, "target_only"),
        swap(ACCEPT_ROW, "passed = accept_uniform <= token_prob"),
    ),
    "rejected tokens stay": (
        partial(test_coin_at_both_ends, "target_only"),
        swap("residual.masked_fill(is_token, 0.0)", "residual.masked_fill(is_token, 1e-9)"),
    ),
    "one stream for all rows": (
        partial(test_sampled_rows_do_not_depend_on_the_batch, "target_only"),
        swap(
            "bonus_uniform = counter_uniform(state.rng, ",
            "bonus_uniform = counter_uniform(state.rng[:1].expand_as(state.rng), ",
        ),
    ),
    "temperature of accept": (
        partial(test_temperature_is_used, 0.25, 1.0),
        swap("sampling_probs(verified.logits, 0.25,", "sampling_probs(verified.logits, 1.0,"),
    ),
    "coin of accept": (partial(test_temperature_is_used, 1.0, 0.25), swap(ACCEPT_ROW, "passed = token_prob > 0")),
    "stop tokens of accepted nodes": (
        partial(test_stop_token_inside_a_path, DEFERRED),
        swap("all_emitted == 3)", "(all_emitted == 3) & (column == column_2))"),
    ),
    "stop token of the prefill": (test_stop_token_ends_generation, swap("new_root == 3", "new_root == 99")),
    "one mask bit too few": (
        partial(test_text_is_plain_greedy_whatever_is_drafted, *CASES[0]),
        swap(
            "mask = ancestor_mask(parent_row, valid)",
            "mask = ancestor_mask(parent_row, valid)\n    mask[:, 1:, 0] = False",
        ),
    ),
    "one mask bit too many": (
        partial(test_text_is_plain_greedy_whatever_is_drafted, *CASES[0]),
        swap(
            "mask = ancestor_mask(parent_row, valid)",
            "mask = ancestor_mask(parent_row, valid)\n    mask[:, 2:, 1] = True",
        ),
    ),
    "the bonus of the root": (
        partial(test_text_is_plain_greedy_whatever_is_drafted, *CASES[1]),
        swap("target_argmax[batch_index(current), current.unsqueeze(1)],", "target_argmax[:, :1],"),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_seen(fault: str) -> None:
    """The test of a class fails on a module with that fault."""
    check, edit = FAULTS[fault]
    with pytest.raises(AssertionError):
        check(edit=edit)
