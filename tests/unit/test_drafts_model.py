"""Drafting with a model: every tree against the reference trees of an independent forward pass, step after step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from specc.ir import ops
from specc.lower.drafts.static import Shape
from specc.lower.sampling import DRAFT_DRAW
from specc.spec.model import Spec
from specc.testing import DraftTree, dynamic_tree, static_tree
from tests.unit.decoding_fixtures import (
    SIZES,
    Decoding,
    head_weights,
    perturbed,
    plain_forward,
    plain_greedy,
    plain_layer,
    prefixed,
    small_spec,
    target_weights,
)

PROMPTS = [[3, 1, 4, 1, 5, 9], [2], [6, 5, 3]]
CHOICES = [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0], [0, 0, 1], [1, 0, 0]]
MODEL = {"method": "draft_model", "config": SIZES}
HEAD = {"method": "eagle3", "aux_hidden_state_layer_ids": [0, 1], "aux_hidden_state_of": "output"}
SMALL_HEAD = HEAD | {"config": {"draft_vocab_size": 17}}
SHAPES: dict[str, dict[str, Any]] = {
    "chain": {"tree": "chain", "num_speculative_tokens": 4},
    "chain above a threshold": {
        "tree": "chain",
        "num_speculative_tokens": 4,
        "prune": {"min_path_log_prob": -1.5},
    },
    "chain within a margin": {
        "tree": "chain",
        "num_speculative_tokens": 4,
        "prune": {"path_log_prob_margin": 1.0},
    },
    "one token": {"tree": "chain", "num_speculative_tokens": 1},
    "dynamic": {"tree": "dynamic", "num_speculative_tokens": 7, "num_steps": 3, "top_k": 3},
    "one level": {"tree": "dynamic", "num_speculative_tokens": 3, "num_steps": 1, "top_k": 3},
    "more than the candidates": {"tree": "dynamic", "num_speculative_tokens": 6, "num_steps": 2, "top_k": 2},
    "pruned": {
        "tree": "dynamic",
        "num_speculative_tokens": 8,
        "num_steps": 3,
        "top_k": 3,
        "prune": {"path_log_prob_margin": 2.0, "min_path_log_prob": -2.3},
    },
    "static": {"tree": "static", "choices": CHOICES},
    "chain of ranks": {"tree": "static", "choices": [[1], [1, 0], [1, 0, 2]]},
}


def model_drafter(weights: Mapping[str, Any], geometry: Any, text: list[int]) -> Any:
    """The reference drafter of a draft model after a text."""
    return lambda path: plain_forward(weights, geometry, [*text, *path])[0][-1].log_softmax(-1).tolist()


def head_drafter(spec: Spec, head: Mapping[str, Any], target: Mapping[str, Any], text: list[int]) -> Any:
    """The reference drafter of an EAGLE-3 head: target features up to the root, below it the head's own outputs."""
    geometry, eps = spec.target.geometry, spec.target.geometry.rms_norm_eps

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * head[name]

    outputs = plain_forward(target, geometry, text[:-1])[1]
    features = torch.cat([outputs[layer] for layer in spec.draft.aux_hidden_state_layer_ids], -1) @ head["fc"].T
    d2t = head.get("d2t", torch.zeros(len(head["lm_head"]), dtype=torch.int64))

    def log_probs(path: tuple[int, ...]) -> list[float]:
        residual, tokens = features, list(text[1:])
        for token in (*path, None):
            embedded = target["embed_tokens"][torch.tensor(tokens)]
            inputs = torch.cat((norm(embedded, "input_layernorm"), norm(residual, "hidden_norm")), -1)
            out = plain_layer(residual, inputs, head, geometry)
            if token is not None:
                residual, tokens = torch.cat((residual, out[-1:])), [*tokens, token]
        law = (norm(out[-1], "norm") @ head["lm_head"].T).log_softmax(-1)
        full = torch.full((geometry.vocab_size,), -torch.inf, dtype=torch.float64)
        full[torch.arange(len(law)) + d2t] = law
        return full.tolist()

    return log_probs


def reference_tree(spec: Spec, drafter: Any, root: int) -> DraftTree:
    """What the spec drafts in one row."""
    draft, nodes = spec.draft, spec.num_nodes
    if draft.choices:
        return static_tree(draft.choices, drafter, root, nodes)
    prune = draft.prune
    return dynamic_tree(
        drafter,
        root,
        spec.depth,
        1 if spec.is_chain else draft.top_k,
        nodes - 1,
        prune.path_log_prob_margin if prune else None,
        prune.min_path_log_prob if prune else None,
    ).tree


def drafted(draft: Mapping[str, torch.Tensor], row: int) -> DraftTree:
    """One row of a draft as the oracle's tree."""
    count = draft["tokens"].shape[1]
    parent = draft["parent"][row].tolist() if "parent" in draft else None
    valid = tuple(draft["valid"][row].tolist())
    if parent is None:
        parent = [i - 1 if ok else 0 for i, ok in enumerate(valid)]
    assert len(parent) == count
    return DraftTree(tuple(draft["tokens"][row].tolist()), tuple(parent), valid)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_model_drafts_the_reference_tree_at_every_step(shape: str) -> None:
    spec = small_spec(MODEL | SHAPES[shape])
    geometry = spec.target.geometry
    target = target_weights(spec)
    model = perturbed(target, 0.15)
    decoding = Decoding.start(spec, {**target, **prefixed(model)}, PROMPTS)
    accepted = 0
    for _ in range(4):
        texts = [list(text) for text in decoding.texts]
        draft, result = decoding.step()
        accepted += int(result["accept_length"].sum())
        for row, text in enumerate(texts):
            expected = reference_tree(spec, model_drafter(model, geometry, text), text[-1])
            assert drafted(draft, row) == expected
    assert accepted >= 4
    for row, prompt in enumerate(PROMPTS):
        text = decoding.texts[row]
        assert text == plain_greedy(target, geometry, prompt, len(text) - len(prompt))


@pytest.mark.parametrize("method", ["draft_model", "eagle3"])
@pytest.mark.parametrize("shape", ["chain", "one token", "static"])
def test_drawn_children_come_from_the_random_numbers_of_their_place(shape: str, method: str) -> None:
    """Gumbel-top-k (Kool et al. 2019) with the numbers of the row's key, the position of the drawn tokens and the
    number of their parent, so that a run can be repeated and no number is used twice."""
    temperature = 2.0
    sampled = {"accept": {"method": "rejection", "rule": "true_q"}, "sampling": {"temperature": temperature}}
    spec = small_spec((MODEL if method == "draft_model" else SMALL_HEAD) | SHAPES[shape], **sampled)
    target = target_weights(spec)
    own = perturbed(target, 0.15) if method == "draft_model" else head_weights(spec)
    decoding = Decoding.start(spec, {**target, **prefixed(own)}, PROMPTS, rng=torch.tensor([3, -4, 11]))
    for _ in range(3):
        texts = [list(text) for text in decoding.texts]
        draft, _ = decoding.step()
        for row, text in enumerate(texts):
            drafter = (
                model_drafter(own, spec.target.geometry, text)
                if method == "draft_model"
                else head_drafter(spec, own, target, text)
            )
            tree, paths = drafted(draft, row), {0: ()}
            for node in range(spec.num_nodes):
                kids = [kid for kid in range(1, spec.num_nodes) if tree.parent[kid] == node]
                paths |= {kid: (*paths[node], tree.tokens[kid]) for kid in kids}
                law = (torch.tensor(drafter(paths[node]), dtype=torch.float64) / temperature).softmax(-1)
                (ids,) = torch.nonzero(law, as_tuple=True)
                place = torch.tensor([[len(text) + len(paths[node])]]), torch.tensor([[DRAFT_DRAW + node]])
                uniform = ops.counter_uniform_rows(decoding.state["rng"][row : row + 1], *place, len(ids))[0, 0]
                best = ids[(law[ids].log() - (-uniform.log()).log()).topk(max(len(kids), 1)).indices].tolist()
                assert [tree.tokens[kid] for kid in kids] == best[: len(kids)]
                torch.testing.assert_close(draft["q_probs"][row, node], law if kids else torch.zeros_like(law))


@pytest.mark.parametrize(
    "choices", [((0,), (0, 0, 0)), ((0,), (1, 0)), ((0,), (0,))], ids=["a level missing", "no parent", "twice"]
)
def test_rank_paths_that_are_no_tree_are_refused(choices: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(ValueError, match="distinct rank paths, each with its prefixes"):
        Shape.of(choices)


@pytest.mark.parametrize("draft_vocabulary", [31, 17])
@pytest.mark.parametrize("shape", ["chain", "dynamic", "static"])
def test_a_head_drafts_the_reference_tree_at_every_step(shape: str, draft_vocabulary: int) -> None:
    spec = small_spec(HEAD | {"config": {"draft_vocab_size": draft_vocabulary}} | SHAPES[shape])
    target, head = target_weights(spec), head_weights(spec)
    decoding = Decoding.start(spec, {**target, **prefixed(head)}, PROMPTS)
    for _ in range(4):
        texts = [list(text) for text in decoding.texts]
        # A random head is never right: the target's own continuation is planted, so that several rows are caught up.
        draft = decoding.run("draft")
        for row, text in enumerate(texts):
            expected = reference_tree(spec, head_drafter(spec, head, target, text), text[-1])
            assert drafted(draft, row) == expected
        decoding.step(planted(spec, target, draft, texts))
    lengths = [len(text) - len(prompt) - 1 for text, prompt in zip(decoding.texts, PROMPTS, strict=True)]
    assert min(lengths) > 4


def planted(spec: Spec, target: Mapping[str, Any], draft: Mapping[str, Any], texts: list[list[int]]) -> dict[str, Any]:
    """The draft with the target's own continuation along the first path of two nodes below the root."""
    tokens = draft["tokens"].clone()
    for row, text in enumerate(texts):
        future = plain_greedy(target, spec.target.geometry, text, 2)[-2:]
        parent = draft["parent"][row].tolist() if "parent" in draft else list(range(-1, tokens.shape[1] - 1))
        below = [
            node
            for node in range(1, len(parent))
            if parent[node] in range(1, len(parent)) and draft["valid"][row, node]
        ]
        second = below[-1]
        first = parent[second]
        while parent[first] != 0:
            second, first = first, parent[first]
        for node in range(1, len(parent)):
            # Distinct siblings: nobody else may hold the planted tokens.
            tokens[row, node] = 30 - node if 30 - node not in future else 0
        tokens[row, first], tokens[row, second] = future
    return {**draft, "tokens": tokens}


@pytest.mark.parametrize("shape", ["chain", "static"])
def test_a_drafter_that_is_the_target_is_always_right(shape: str) -> None:
    spec = small_spec(MODEL | SHAPES[shape])
    target = target_weights(spec)
    decoding = Decoding.start(spec, {**target, **prefixed(target)}, PROMPTS)
    for _ in range(4):
        _, accepted = decoding.step()
        assert accepted["accept_length"].tolist() == [spec.depth] * len(PROMPTS)


@pytest.mark.parametrize("shape", ["chain", "dynamic", "static"])
def test_drafting_twice_changes_nothing(shape: str) -> None:
    spec = small_spec(MODEL | SHAPES[shape])
    target = target_weights(spec)
    decoding = Decoding.start(spec, {**target, **prefixed(perturbed(target, 0.1))}, PROMPTS)
    decoding.step()
    first = decoding.run("draft")
    state = decoding.state
    second = decoding.run("draft")
    for name in state:
        assert torch.equal(state[name], decoding.state[name]), name
    for name in first:
        assert torch.equal(first[name], second[name]), name


def drafting(method: str) -> tuple[Spec, dict[str, Any]]:
    """A dynamic tree by a draft model or a head, with weights."""
    spec = small_spec((MODEL if method == "draft_model" else HEAD) | SHAPES["dynamic"])
    target = target_weights(spec)
    drafter = perturbed(target, 0.1) if method == "draft_model" else head_weights(spec)
    return spec, {**target, **prefixed(drafter)}


@pytest.mark.parametrize("method", ["draft_model", "eagle3"])
def test_a_batch_drafts_what_its_rows_draft_alone(method: str) -> None:
    spec, weights = drafting(method)
    batch = Decoding.start(spec, weights, PROMPTS)
    alone = [Decoding.start(spec, weights, [prompt]) for prompt in PROMPTS]
    for _ in range(3):
        together, _ = batch.step()
        for row, single in enumerate(alone):
            own, _ = single.step()
            for name in ("tokens", "parent", "valid"):
                assert torch.equal(own[name][0], together[name][row]), name
            torch.testing.assert_close(own["log_probs"][0], together["log_probs"][row], rtol=0, atol=1e-6)
    assert batch.texts == [single.texts[0] for single in alone]


@pytest.mark.parametrize("method", ["draft_model", "eagle3"])
def test_a_finished_row_keeps_its_state_and_drafts_only_its_root(method: str) -> None:
    spec, weights = drafting(method)
    decoding = Decoding.start(spec, weights, PROMPTS)
    decoding.step()
    decoding.state["finished"] = torch.tensor([False, True, False])
    before = decoding.state
    draft, accepted = decoding.step()
    assert draft["valid"][1].tolist() == [True] + [False] * (spec.num_nodes - 1)
    assert draft["tokens"][1, 1:].eq(0).all()
    assert accepted["emitted"][1] == 0
    dims = {name: slot.batch_dim for name, slot in decoding.program.slots.items()}
    for name, value in decoding.state.items():
        if decoding.program.slots[name].role != "candidate":
            assert torch.equal(value.select(dims[name], 1), before[name].select(dims[name], 1)), name


@pytest.mark.parametrize("method", ["draft_model", "eagle3"])
@pytest.mark.parametrize("splits", [(1, 5), (2, 3, 1), (5, 1)])
def test_a_prompt_in_chunks_drafts_as_in_one(method: str, splits: tuple[int, ...]) -> None:
    spec, weights = drafting(method)
    prompt = PROMPTS[0]
    whole = Decoding.start(spec, weights, [prompt, [7, 7]])
    first = splits[0]
    parts = Decoding.start(spec, weights, [prompt[:first], [7, 7]])
    for size in splits[1:]:
        parts.prefill([prompt[first : first + size], []])
        first += size
    for _ in range(2):
        one, _ = whole.step()
        other, _ = parts.step()
        for name in ("tokens", "parent", "valid"):
            assert torch.equal(one[name], other[name]), name


@pytest.mark.parametrize("method", ["draft_model", "eagle3"])
def test_a_prompt_that_follows_steps_finds_every_earlier_row(method: str) -> None:
    spec, weights = drafting(method)
    target = {name: value for name, value in weights.items() if not name.startswith("draft_")}
    drafter = {name.removeprefix("draft_"): value for name, value in weights.items() if name.startswith("draft_")}
    decoding = Decoding.start(spec, weights, PROMPTS)
    # Accepted tokens are waiting for their drafter rows when the next prompt comes, and no draft runs in between.
    draft = decoding.run("draft")
    _, accepted = decoding.step(planted(spec, target, draft, decoding.texts))
    assert accepted["accept_length"].min() >= 1
    more = [[11, 12], [], [13]]
    chunks = [[text[-1], *extra] if extra else [] for text, extra in zip(decoding.texts, more, strict=True)]
    decoding.prefill(chunks)
    draft = decoding.run("draft")
    for row, extra in enumerate(more):
        text = decoding.texts[row] + extra + ([int(decoding.state["root_token"][row])] if extra else [])
        if method == "draft_model":
            expected = reference_tree(spec, model_drafter(drafter, spec.target.geometry, text), text[-1])
        else:
            expected = reference_tree(spec, head_drafter(spec, drafter, target, text), text[-1])
        assert drafted(draft, row) == expected
