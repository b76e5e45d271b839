"""Prompt lookup against the plain-Python reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.ir.dims import BATCH
from specc.ir.interpreter import init_state, run_step
from specc.lower.assemble import lower
from specc.program import DecodeProgram
from specc.testing import DraftTree, prompt_lookup_chain, prompt_lookup_tree
from specc.testing.draft_oracles import suffix_matches
from tests.unit.decoding_fixtures import Decoding, plain_greedy, small_spec, target_weights

LONGEST = 24
NGRAM = {"min": 1, "max": 3}
RUNTIME = {"max_batch_size": 4, "max_sequence_length": LONGEST, "dtype": "float64"}
CHAIN = {"method": "prompt_lookup", "tree": "chain", "num_speculative_tokens": 4, "ngram": NGRAM}
TREE = {
    "method": "prompt_lookup",
    "tree": "dynamic",
    "num_speculative_tokens": 6,
    "num_steps": 3,
    "top_k": 2,
    "ngram": NGRAM,
}
Texts = st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=LONGEST), min_size=1, max_size=3)


@pytest.fixture(scope="module")
def chain() -> DecodeProgram:
    return lower(small_spec(CHAIN, runtime=RUNTIME))


@pytest.fixture(scope="module")
def tree() -> DecodeProgram:
    return lower(small_spec(TREE, runtime=RUNTIME))


def test_the_history_holds_a_text_of_full_length_and_no_more(chain: DecodeProgram) -> None:
    capacity = chain.slots["k_cache"].shape[2]
    assert chain.slots["history"].shape == (BATCH, capacity + 1)


def draft(program: DecodeProgram, texts: Sequence[Sequence[int]], junk: int = 0) -> dict[str, torch.Tensor]:
    """The draft after these texts; what lies behind them in `history` is `junk`, and must not matter."""
    state = init_state(program, len(texts))
    state["finished"] = torch.zeros(len(texts), dtype=torch.bool)
    state["history"].fill_(junk)
    for row, text in enumerate(texts):
        state["history"][row, : len(text)] = torch.tensor(text)
    state["length"] = torch.tensor([len(text) - 1 for text in texts])
    state["root_token"] = torch.tensor([text[-1] for text in texts])
    return run_step(program, "draft", state, {}, {}, strict=True)[1]


def row_of(found: dict[str, Any], row: int) -> DraftTree:
    valid = tuple(found["valid"][row].tolist())
    parent = found["parent"][row].tolist() if "parent" in found else [i - 1 if ok else 0 for i, ok in enumerate(valid)]
    return DraftTree(tuple(found["tokens"][row].tolist()), tuple(parent), valid)


@given(Texts, st.integers(0, 2))
def test_the_chain_is_what_followed_the_latest_longest_match(
    chain: DecodeProgram, texts: list[list[int]], junk: int
) -> None:
    found = draft(chain, texts, junk)
    for row, text in enumerate(texts):
        assert row_of(found, row) == prompt_lookup_chain(text, 1, 3, 4)


def merged(text: list[int], budget: int, num_steps: int, top_k: int) -> DraftTree:
    """The reference tree of the latest `budget` matches: the text is cut so that older ones don't exist."""
    n, ends = suffix_matches(text, 1, 3)
    if len(ends) <= budget:
        return prompt_lookup_tree(text, 1, 3, budget, num_steps, top_k)
    # The oldest match that counts starts at ends[budget - 1] - n.
    return prompt_lookup_tree(text[ends[budget - 1] - n :], n, n, budget, num_steps, top_k)


@settings(max_examples=100)
@given(Texts, st.integers(0, 2))
def test_the_tree_merges_the_latest_matches(tree: DecodeProgram, texts: list[list[int]], junk: int) -> None:
    found = draft(tree, texts, junk)
    for row, text in enumerate(texts):
        assert row_of(found, row) == merged(text, 6, 3, 2)


def test_more_matches_than_nodes_keeps_the_latest(tree: DecodeProgram) -> None:
    text = [1, 2, *[1, 0] * 8, 1]
    assert len(suffix_matches(text, 1, 1)[1]) > 6
    assert row_of(draft(tree, [text]), 0) == merged(text, 6, 3, 2)


@pytest.mark.parametrize("section", [CHAIN, TREE])
def test_the_history_follows_the_text_through_prefill_and_commit(section: dict[str, Any]) -> None:
    spec = small_spec(section)
    weights = target_weights(spec)
    prompts = [[1, 2, 3, 1, 2, 3, 1, 2], [5]]
    decoding = Decoding.start(spec, weights, prompts)
    for _ in range(12):
        decoding.step()
        for row, text in enumerate(decoding.texts):
            assert decoding.state["history"][row, : len(text)].tolist() == text
            assert decoding.state["length"][row] == len(text) - 1
    for row, prompt in enumerate(prompts):
        text = decoding.texts[row]
        assert text == plain_greedy(weights, spec.target.geometry, prompt, len(text) - len(prompt))


def test_a_repeating_text_is_accepted() -> None:
    # The target's own greedy text as prompt, cut in the middle: lookup finds the loop it falls into.
    spec = small_spec(CHAIN, runtime={"max_batch_size": 1, "max_sequence_length": 200, "dtype": "float64"})
    weights = target_weights(spec, seed=5)
    weights["embed_tokens"] = weights["embed_tokens"][torch.arange(31) % 4]
    prompt = plain_greedy(weights, spec.target.geometry, [1], 120)
    decoding = Decoding.start(spec, weights, [prompt])
    lengths = [int(decoding.step()[1]["accept_length"][0]) for _ in range(8)]
    assert sum(lengths) >= 8
