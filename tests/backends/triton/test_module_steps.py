"""Triton modules under the interpreter, step by step: every step function and the whole step equal the reference's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.backends.triton.lockstep import Lockstep
from tests.backends.triton.modules import Cell, clean, modules
from tests.cells import spread

QUICK = (
    Cell("llama", "lookup tree", "path, deferred"),
    Cell("pangu", "chain", "length"),
    Cell("delta", "lookup tree", "windowed"),
    Cell("pangu", "lookup tree", "path", page=16),
)
ALWAYS = (
    Cell("qwen3", "static tree", "path", "true_q"),
    Cell("llama", "eagle", "path"),
    Cell("llama", "bigram", "path"),
    Cell("narrow heads", "dynamic tree", "path, deferred"),
    Cell("experts", "lookup tree", "deferred"),
    Cell("llama", "chain", "path, deferred", page=16),
)
SLOW = (
    Cell("llama", "plain", "length"),
    Cell("shared heads", "chain", "snapshots", schedule="serial"),
    Cell("pangu", "lookup tree", "slow path"),
    Cell("pangu", "dynamic tree", "path", "target_only"),
    Cell("qwen3", "model chain", "length", "true_q"),
    Cell("llama", "chain", "path", "typical"),
    Cell("llama", "eagle", "path, deferred", "target_only"),
    Cell("llama", "bigram static", "path, deferred", "target_only"),
    Cell("pangu", "bigram chain", "length"),
    Cell("delta", "bigram", "windowed"),
    Cell("delta", "chain", "windowed", schedule="hybrid"),
    Cell("delta", "lookup tree", "replay", schedule="replay"),
    Cell("delta", "lookup tree", "snapshots", schedule="serial"),
    Cell("delta", "static tree", "deferred", "true_q"),
    Cell("shared heads", "lookup tree", "windowed", "target_only", "serial"),
    Cell("hybrid", "chain", "replay", schedule="serial"),
    Cell("hybrid", "lookup tree", "windowed", schedule="hybrid"),
    Cell("hybrid", "dynamic tree", "deferred"),
    Cell("hybrid", "dynamic tree", "deferred", page=16),
    Cell("experts", "chain", "factors", "target_only", "hybrid"),
    Cell("experts", "static tree", "windowed", "true_q"),
)


def cells() -> list[Any]:
    """All cells of the matrix; most are slow."""
    slow = [pytest.param(cell, id=str(cell), marks=pytest.mark.slow) for cell in (*ALWAYS, *spread(SLOW, 6))]
    return [*(pytest.param(cell, id=str(cell)) for cell in QUICK), *slow]


@pytest.mark.parametrize("cell", cells())
def test_steps_equal_the_reference(cell: Cell, tmp_path: Path) -> None:
    """Prompts in two chunks; own and planted drafts, whole steps and plain steps in turn, with commits pending.
    Ruff has nothing to say about the module either: that is asked here because making one takes long."""
    clean([modules(cell).compilation.source], tmp_path)
    both = Lockstep(modules(cell))
    both.prefill()
    both.whole_step()
    both.speculate()
    both.speculate(seed=0)
    both.plain_step()
    both.decode()
    both.speculate(seed=1)
    both.whole_step()
    assert both.ties * 10 <= both.compared
    assert both.accepted >= 1 or cell.draft == "plain" or cell.accept != "greedy"
