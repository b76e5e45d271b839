"""Modules of recurrent and hybrid targets: the interpreter's values step by step, and lossless text, in every cell of
schedules and commits."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from specc.driver import generate, lower_spec, run_passes
from specc.program import DecodeProgram
from specc.spec import LoadedSpec, from_mapping
from tests.backends.reference_support import Lockstep, load_text, weights_of
from tests.passes.recurrent_programs import TARGETS, TREES

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
PROMPTS = [[3, 4, 6, 3, 4, 7, 3, 4], [1], [8, 9, 8, 9, 8]]
Program = tuple[LoadedSpec, DecodeProgram, DecodeProgram]


def cells(also: list[tuple[str, str]]) -> list[Any]:
    """All cells; those not in `also` are slow."""
    return [pytest.param(*cell, marks=() if cell in also else pytest.mark.slow) for cell in CELLS]


@cache
def programs(target: str, tree: str, schedule: str, commit: str, dtype: str = "float64") -> Program:
    """The spec, its naive program, and the program after all passes."""
    loaded = from_mapping(
        {
            "specc": 1,
            "name": "small",
            "target": TARGETS[target],
            "draft": TREES[tree],
            "verify": {"recurrence": schedule},
            "accept": {"method": "greedy", "stop_tokens": [5]},
            "commit": COMMITS[commit],
            "runtime": {"max_batch_size": 4, "max_sequence_length": 64, "dtype": dtype},
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
    both = RecurrentLockstep(program, batch=3, weights=weights)
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


@pytest.mark.parametrize(("schedule", "commit"), cells(QUICK))
def test_text_is_that_of_plain_decoding(schedule: str, commit: str) -> None:
    loaded, naive, program = programs("delta", "dynamic", schedule, commit)
    module = load_text(generate(loaded, program))
    decoder = module.Decoder(module.Weights(**fused(naive, program)))
    fast = decoder.generate(PROMPTS, 24)
    assert fast.tokens == decoder.generate(PROMPTS, 24, speculative=False).tokens
    assert fast.acceptance_length > 1.0
    assert fast.tokens == [decoder.generate([prompt], 24).tokens[0] for prompt in PROMPTS]


@pytest.mark.parametrize(("schedule", "commit"), cells([("tree", "windowed")]))
def test_ruff_finds_nothing(schedule: str, commit: str, tmp_path: Path) -> None:
    loaded, naive, program = programs("experts", "dynamic", schedule, commit)
    for name, stage in (("naive", naive), ("planned", program)):
        (tmp_path / f"{name}.py").write_text(generate(loaded, stage))
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
