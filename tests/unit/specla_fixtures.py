"""Small inputs for the tests of SpecLA's evaluation."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from specc.bench.specla.cells import GEOMETRIES
from specc.bench.specla.sensitivity import SHAPES, Bench, stand_of
from specc.bench.specla.simulated import Simulated
from specc.check.weights import PREFIX, head_weights
from specc.lower.drafts.state import head_weight_table
from specc.output import write_text
from specc.spec import load

TREE = "tree of 16, top 4, depth 6"


def bench(cache_folder: Path, tokens: int = 40, steps: int = 8) -> Bench:
    """The tiny geometry on the CPU."""
    case, dtype = GEOMETRIES["gdn-tiny"]
    return Bench(case, torch.device("cpu"), cache_folder, tokens, steps, (0.0, 1.0), dtype)


@cache
def small_stand(cache_folder: Path) -> Simulated:
    """A row after its prompt, with its plain text."""
    with torch.no_grad():
        stand = stand_of(bench(cache_folder), SHAPES[TREE])
        stand.plain(40)
    return stand


def write_head(folder: Path, spec: Path, overrides: tuple[str, ...] = (), seed: int = 0) -> Path:
    """An untrained head in the layout of checkpoints."""
    loaded = load(spec, list(overrides))
    head = loaded.spec.eagle_geometry
    assert head is not None
    drawn, tensors = head_weights(loaded.spec, seed), dict[str, torch.Tensor]()
    for entry in head_weight_table(head):
        value: Any = drawn[PREFIX + entry.name]
        if entry.kind == "float":
            one = value[0] if isinstance(value, tuple) else value
            tensors[entry.checkpoint_names(1)[0]] = one.float().contiguous()
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors")
    write_text(folder / "config.json", '{"model_type": "eagle3"}\n')
    return folder


def turn(name: str, tokens: int, steps: int, seconds: tuple[float, float], looping: bool = False) -> dict[str, Any]:
    """A record as `specc.bench.evaluation.turns.turn_record` gives it: `seconds` of plain and speculative decoding."""
    text = [1, 2, 3] * tokens if looping else list(range(tokens))
    text = text[:tokens]
    plain = {"tokens": text, "prefill_seconds": 0.1, "decode_seconds": seconds[0]}
    ours = {
        "tokens": text, "prefill_seconds": 0.1, "decode_seconds": seconds[1], "steps": steps, "drafted": 15 * steps,
        "accepted": tokens - 1 - steps, "branch_steps": 0, "depths": [steps // 2], "stage_seconds": {},
    }  # fmt: skip
    return {"name": name, "ids": [1], "plain": plain, "speculative": ours, "compared": tokens, "differences": [],
            "category": ""}  # fmt: skip
