"""Modules of recurrent and hybrid targets: the interpreter's values step by step, and lossless text, in every cell of
schedules and commits."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from specc.driver import generate, lower_spec, run_passes
from specc.program import DecodeProgram
from specc.spec import LoadedSpec, from_mapping
from specc.testing import Exercise, PlantedShape, plant_tree
from tests.backends.reference_support import Lockstep, load_text, weights_of
from tests.passes.recurrent_programs import TARGETS, TREES, VOCABULARY

SCHEDULES = ("replay", "serial", "hybrid", "tree")
COMMITS: Mapping[str, dict[str, Any]] = {
    "snapshots": {"state": "snapshots", "update": "immediate"},
    "replay": {"state": "replay", "update": "immediate"},
    "factors": {"state": "factors", "update": "immediate"},
    "deferred": {"state": "factors", "update": "deferred"},
    "windowed": {"state": "factors", "update": "deferred", "window": 6},
}
CELLS = [(schedule, commit) for schedule in SCHEDULES for commit in COMMITS]
QUICK = [("serial", "windowed"), ("tree", "windowed"), ("hybrid", "snapshots"), ("replay", "replay")]
PROMPTS = [[3, 4, 6, 3, 4, 7, 3, 4], [1], [8, 9, 8, 9, 8], [2, 11]]
TOKENS = 48
Program = tuple[LoadedSpec, DecodeProgram, DecodeProgram]


def cells(also: list[tuple[str, str]]) -> list[Any]:
    """All cells; those not in `also` are slow."""
    return [pytest.param(*cell, marks=() if cell in also else pytest.mark.slow) for cell in CELLS]


@cache
def programs(target: str, tree: str, schedule: str, commit: str, stop: bool = True) -> Program:
    """The spec, its naive program, and the program after all passes."""
    loaded = from_mapping(
        {
            "specc": 1,
            "name": "small",
            "target": TARGETS[target],
            "draft": TREES[tree],
            "verify": {"recurrence": schedule},
            "accept": {"method": "greedy", "stop_tokens": [5] if stop else []},
            "commit": COMMITS[commit],
            "runtime": {"max_batch_size": 4, "max_sequence_length": 64, "dtype": "float64"},
        }
    )
    naive = lower_spec(loaded)
    return loaded, naive, run_passes(loaded, naive, verify=False).program


def fused(naive: DecodeProgram, program: DecodeProgram) -> dict[str, Any]:
    """The naive program's random weights as the program wants them: fused projections are concatenations."""
    own = weights_of(naive)
    by_source = {
        (weight.model, weight.first_layer, weight.sources): own[name] for name, weight in naive.weights.items()
    }
    made: dict[str, Any] = {}
    for name, weight in program.weights.items():
        parts, sources = [], weight.sources
        while sources:
            size = next(
                n for n in range(len(sources), 0, -1) if (weight.model, weight.first_layer, sources[:n]) in by_source
            )
            parts.append(by_source[weight.model, weight.first_layer, sources[:size]])
            sources = sources[size:]
        layered = weight.layers is not None
        made[name] = tuple(torch.cat(rows) for rows in zip(*parts, strict=True)) if layered else torch.cat(parts)
    return made


class RecurrentLockstep(Lockstep):
    """Compares states and windows whole, caches as far as they are committed, and pending rows as far as they count."""

    def compare_state(self, where: str) -> None:
        ours, theirs = dict(self.interpreted), self.state._asdict()
        for name, value in ours.items():
            if name.endswith(("k_cache", "v_cache")):
                shown = torch.arange(value.shape[2]) < ours["length"].unsqueeze(1)
                shown = shown.view(1, *shown.shape, 1, 1)
                ours[name], theirs[name] = value * shown, theirs[name] * shown
        self.compare(where, ours, theirs)


def padded(prompts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(len(prompt) for prompt in prompts)
    ids = torch.tensor([prompt + [0] * (longest - len(prompt)) for prompt in prompts])
    return ids, torch.tensor([len(prompt) for prompt in prompts])


def run_both(program: DecodeProgram, weights: dict[str, Any]) -> None:
    """Prefill, speculative and plain steps in turn."""
    both = RecurrentLockstep(program, batch=len(PROMPTS), weights=weights)
    both.prefill(*padded(PROMPTS))
    for number in range(5):
        both.speculate()
        if number % 2:
            both.decode()


@pytest.mark.parametrize(("schedule", "commit"), cells(QUICK))
def test_module_equals_interpreter(schedule: str, commit: str) -> None:
    _, naive, program = programs("delta", "dynamic", schedule, commit)
    run_both(program, fused(naive, program))


@pytest.mark.parametrize(
    ("target", "tree", "schedule", "commit"),
    [
        ("experts", "dynamic", "tree", "windowed"),
        pytest.param("hybrid", "chain", "serial", "deferred", marks=pytest.mark.slow),
        pytest.param("two periods", "dynamic", "hybrid", "factors", marks=pytest.mark.slow),
        pytest.param("shared heads", "chain", "tree", "windowed", marks=pytest.mark.slow),
        pytest.param("shared heads", "static", "serial", "snapshots", marks=pytest.mark.slow),
    ],
)
def test_other_targets_equal_the_interpreter(target: str, tree: str, schedule: str, commit: str) -> None:
    _, naive, program = programs(target, tree, schedule, commit)
    run_both(program, fused(naive, program))


@pytest.mark.parametrize("target", ["delta", pytest.param("experts", marks=pytest.mark.slow)])
def test_naive_modules_equal_the_interpreter(target: str) -> None:
    """The token loop with its tables of states is printed as it is."""
    _, naive, _ = programs(target, "dynamic", "serial", "factors")
    run_both(naive, weights_of(naive))


def planted_texts(module: Any, weights: Any, plain: list[list[int]]) -> tuple[list[list[int]], Exercise]:
    """The texts decoded with trees in which a part of the plain text is hidden among wrong tokens."""
    rng, exercise = Random(0), Exercise()
    shape = PlantedShape(num_nodes=6, num_steps=3, top_k=2, nothing_right=0.1)
    state, _ = module.prefill(weights, module.init_state(len(PROMPTS)), *padded(PROMPTS))
    state = state._replace(remaining=torch.full_like(state.remaining, TOKENS - 1))
    texts = [[int(token)] for token in state.root_token]
    while not bool(state.finished.all()):
        state, draft = module.draft(weights, state)
        left = [text[len(made) - 1 :] for text, made in zip(plain, texts, strict=True)]
        trees = [plant_tree(rest, VOCABULARY, shape, rng) for rest in left]
        tokens, parent, valid = (
            torch.tensor([list(getattr(tree, name)) for tree in trees]) for name in ("tokens", "parent", "valid")
        )
        draft = draft._replace(tokens=tokens, parent=parent, valid=valid)
        state, verified = module.verify(weights, state, tokens, parent, valid)
        state, accepted = module.accept(state, verified, draft)
        for b, count in enumerate(accepted.emitted.tolist()):
            texts[b] += accepted.emitted_tokens[b, :count].tolist()
            if count:
                exercise.steps += 1
                path = accepted.path[b, : int(accepted.accept_length[b]) + 1].tolist()
                exercise.accept_branch += path != list(range(len(path)))
                exercise.accept_none += len(path) == 1
        state = module.commit(state, verified, accepted)
    return texts, exercise


@pytest.mark.parametrize(("schedule", "commit"), cells(QUICK))
def test_text_is_that_of_plain_decoding(schedule: str, commit: str) -> None:
    """Four prompts, 48 tokens, drafts with planted errors; a quarter of the steps and more accept a branch."""
    loaded, naive, program = programs("delta", "dynamic", schedule, commit, stop=False)
    module = load_text(generate(loaded, program))
    weights = module.Weights(**fused(naive, program))
    plain = module.Decoder(weights).generate(PROMPTS, TOKENS, speculative=False).tokens
    texts, exercise = planted_texts(module, weights, plain)
    assert texts == plain
    assert exercise.accept_branch >= 0.25 * exercise.steps
    assert exercise.accept_none >= 3


BITWISE = {
    "specc": 1,
    "name": "bits",
    "target": {
        "family": "gated_deltanet",
        "config": {"num_hidden_layers": 2, "hidden_size": 16, "num_heads": 4, "head_dim": 4, "expand_v": 2}
        | {"intermediate_size": 24, "vocab_size": VOCABULARY},
    },
    "draft": {"method": "prompt_lookup", "tree": "dynamic", "num_speculative_tokens": 12, "num_steps": 5, "top_k": 4},
    "runtime": {"max_batch_size": 4, "max_sequence_length": 64, "dtype": "float32"},
}


def root_only(tokens: list[int], nodes: int) -> tuple[torch.Tensor, ...]:
    """tokens, parent, valid of a verify whose only valid node is the root."""
    size = (len(tokens), nodes)
    first, valid = torch.zeros(size, dtype=torch.int64), torch.zeros(size, dtype=torch.bool)
    first[:, 0], valid[:, 0] = torch.tensor(tokens), True
    return first, torch.full(size, -1), valid


def plain_logits(module: Any, weights: Any, state: Any, path: list[int]) -> torch.Tensor:
    """The logits after a path of tokens, one per step: each a verify of one valid node, padded to the same N."""
    longest = module.SPEC["draft"]["num_steps"] + 1
    for token in path:
        nodes = root_only([token], 13)
        state, verified = module.verify(weights, state._replace(root_token=torch.tensor([token])), *nodes)
        none, one = torch.zeros(1, longest, dtype=torch.int64), torch.ones(1, dtype=torch.int64)
        accepted = module.Accepted(
            path=none, accept_length=one - 1, bonus=one, emitted_tokens=none, emitted=one, stopped=one == 0
        )
        state = module.commit(state, verified, accepted)
    return verified.logits[0, 0]


@pytest.mark.parametrize(
    "commit", ["windowed", *(pytest.param(name, marks=pytest.mark.slow) for name in ("factors", "snapshots"))]
)
@pytest.mark.parametrize("schedule", ["serial", "hybrid", "replay"])
def test_logits_have_the_bits_of_plain_decoding(schedule: str, commit: str) -> None:
    """In float32, 13 nodes and 4 value heads: rows of every size lie in vectorised parts and in tails."""
    loaded = from_mapping(BITWISE | {"verify": {"recurrence": schedule}, "commit": COMMITS[commit]})
    naive = lower_spec(loaded)
    program = run_passes(loaded, naive, verify=False).program
    module = load_text(generate(loaded, program))
    weights = module.Weights(**fused(naive, program))
    state, _ = module.prefill(weights, module.init_state(1), torch.tensor([PROMPTS[0]]), torch.tensor([8]))
    rng = Random(10)
    parent = [-1, *(rng.randrange(max(0, node - 3), node) for node in range(1, 13))]
    tokens = [int(state.root_token), *(rng.randrange(VOCABULARY) for _ in range(12))]

    def copy() -> Any:
        return type(state)(*(x.clone() for x in state))

    tree = torch.tensor([tokens]), torch.tensor([parent]), torch.ones(1, 13, dtype=torch.bool)
    logits = module.verify(weights, copy(), *tree)[1].logits[0]
    for node in range(13):
        path = [node]
        while parent[path[0]] >= 0:
            path.insert(0, parent[path[0]])
        assert torch.equal(plain_logits(module, weights, copy(), [tokens[i] for i in path]), logits[node])


@pytest.mark.parametrize(("schedule", "commit"), cells([("tree", "windowed"), ("serial", "windowed")]))
def test_ruff_finds_nothing(schedule: str, commit: str, tmp_path: Path) -> None:
    """Nothing unused: without attention nothing reads the mask of a schedule by steps, or the parents of a tree's."""
    for target in ("delta", "experts"):
        loaded, naive, program = programs(target, "dynamic", schedule, commit)
        for name, stage in (("naive", naive), ("planned", program)):
            (tmp_path / f"{target}_{name}.py").write_text(generate(loaded, stage))
    for command in (["check"], ["format", "--check"]):
        whole = [sys.executable, "-m", "ruff", *command, "--isolated", "--no-cache", str(tmp_path)]
        done = subprocess.run(whole, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_mypy_strict_accepts_the_modules(tmp_path: Path) -> None:
    for schedule in SCHEDULES:
        loaded, naive, program = programs("experts", "dynamic", schedule, "windowed")
        (tmp_path / f"{schedule}.py").write_text(generate(loaded, program))
    (tmp_path / "naive.py").write_text(generate(loaded, naive))
    paths = sorted(str(path) for path in tmp_path.glob("*.py"))
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir=cache", "--config-file=", *paths]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
