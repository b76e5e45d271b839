"""Naive programs of recurrent and hybrid targets equal plain decoding of whole texts, in float64 within 1e-10."""

from __future__ import annotations

from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.testing.draft_tree import DraftTree
from specc.testing.planted import PlantedShape, plant_tree
from specc.testing.tensors import tree_tensors
from tests.properties.recurrent_bench import (
    CHAIN,
    TREE,
    VOCABULARY,
    Naive,
    delta_config,
    hybrid_config,
    relative,
    spec_text,
    targets,
)

BOUND = 1e-10
COMMITS = ("{state: snapshots}", "{state: replay}", "{state: factors}")


def drawn_prompts(seed: int, rows: int) -> list[list[int]]:
    """Prompts of different lengths, one of them a single token."""
    rng = Random(seed)
    return [[rng.randrange(VOCABULARY) for _ in range(size)] for size in (7, 1, 4)[:rows]]


@settings(max_examples=25, deadline=None)
@given(targets(), st.integers(0, 1 << 20), st.sampled_from((1, 2, 3, 99)))
def test_prefill_and_decode_equal_the_formulas(target: str, seed: int, chunk: int) -> None:
    made = Naive.of(spec_text(target, "{method: none}"), seed)
    prompts = drawn_prompts(seed, 3)
    state, logits = made.start(prompts, chunk)
    for _ in range(4):
        for row, text in enumerate(prompts):
            assert relative(logits[row], made.plain.logits(text)) <= BOUND
            text.append(int(state["root_token"][row]))
        state, results = made.step("decode", state, {})
        logits = results["logits"]


def planted(made: Naive, texts: list[list[int]], rng: Random) -> list[DraftTree]:
    """A tree per text around its plain continuation, siblings and padding included."""
    spec = made.spec
    shape = PlantedShape(spec.num_nodes, spec.depth, 1 if spec.is_chain else 3, nothing_right=0.1)
    trees = []
    for text in texts:
        right = made.plain.continuation(text, spec.depth)
        trees.append(plant_tree([text[-1], *right], VOCABULARY, shape, rng))
    return trees


def speculate(made: Naive, seed: int, steps: int) -> int:
    """Steps with planted drafts: every node's logits and the text are plain decoding's; accepted branches."""
    prompts, rng = drawn_prompts(seed, 3), Random(seed)
    state, _ = made.start(prompts)
    texts = [[*prompt, int(state["root_token"][row])] for row, prompt in enumerate(prompts)]
    branches = 0
    for _ in range(steps):
        trees = planted(made, texts, rng)
        tokens, parent, valid = tree_tensors(trees)
        bag: dict[str, torch.Tensor | None] = {"tokens": tokens, "valid": valid}
        if not made.spec.is_chain:
            bag["parent"] = parent
        wanted = made.plain.node_logits([text[:-1] for text in texts], trees)
        for step in ("verify", "accept", "commit"):
            state, results = made.step(step, state, bag)
            bag |= results
        logits = bag["logits"]
        assert logits is not None
        assert relative(torch.where(valid[..., None], logits, 0.0), wanted) <= BOUND
        for row, text in enumerate(texts):
            emitted, shown, path = (bag[name] for name in ("emitted", "emitted_tokens", "path"))
            assert emitted is not None
            assert shown is not None
            assert path is not None
            new = shown[row, : int(emitted[row])].tolist()
            assert new == made.plain.continuation(text, len(new))
            branches += bool((path[row] > torch.arange(path.shape[1])).any())
            text += new
    check_states(made, state, texts)
    return branches


def check_states(made: Naive, state: dict[str, torch.Tensor], texts: list[list[int]]) -> None:
    """I16, I27: committed states and windows are those of the text without its root."""
    geometry = made.spec.target.geometry
    period = geometry.period
    for row, text in enumerate(texts):
        plain = made.plain.forward([text[:-1]])
        for layer, kind in enumerate(geometry.layers):
            if kind.mixer != "delta":
                continue
            prefix, trip = f"l{layer % period}_" if period > 1 else "", layer // period
            assert relative(state[f"{prefix}state"][trip, row], plain.states[layer][0, -1]) <= BOUND
            window = state[f"{prefix}conv_window"][trip, row]
            padded = torch.cat((torch.zeros_like(window), plain.mixed[layer][0]))
            assert relative(window, padded[-len(window) :]) <= BOUND


@settings(max_examples=12, deadline=None)
@given(targets(), st.sampled_from(COMMITS), st.integers(0, 1 << 20))
def test_tree_steps_equal_the_formulas(target: str, commit: str, seed: int) -> None:
    speculate(Naive.of(spec_text(target, TREE, commit), seed), seed, 2)


@pytest.mark.parametrize("commit", COMMITS)
@pytest.mark.parametrize("draft", [TREE, CHAIN], ids=["tree", "chain"])
@pytest.mark.parametrize("target", [delta_config(), hybrid_config("dad")], ids=["gated_deltanet", "qwen3_next"])
def test_steps_of_every_commit(target: str, draft: str, commit: str) -> None:
    made = Naive.of(spec_text(target, draft, commit))
    branches = speculate(made, 3, 4)
    assert made.spec.is_chain or branches > 2
