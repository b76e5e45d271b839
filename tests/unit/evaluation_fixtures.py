"""A tiny model with prompts to evaluate it on."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from specc.bench.evaluation.modules import module_inputs, module_places
from specc.lower.drafts.state import head_geometry, head_weight_table
from specc.models.random_weights import random_weights
from specc.spec import load
from tests.run_support import spec_text, write_model


def write_prompts(folder: Path, mt_bench: int = 2, humaneval: int = 81, gsm8k: int = 3) -> Path:
    """A data folder with short prompts under the names of the published sets."""
    for name in ("mt_bench", "humaneval", "gsm8k"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    chats = [
        {"question_id": 81 + number, "category": "x", "turns": [f"hi {number}", "and?"]} for number in range(mt_bench)
    ]
    functions = [{"task_id": f"HumanEval/{number}", "prompt": f"def f{number}():\n"} for number in range(humaneval)]
    questions = [{"question": f"What is {number} + {number}?", "answer": "-"} for number in range(gsm8k)]
    (folder / "mt_bench" / "question.jsonl").write_text("\n".join(map(json.dumps, chats)), encoding="utf-8")
    packed = gzip.compress("\n".join(map(json.dumps, functions)).encode())
    (folder / "humaneval" / "HumanEval.jsonl.gz").write_bytes(packed)
    (folder / "gsm8k" / "test.jsonl").write_text("\n".join(map(json.dumps, questions)), encoding="utf-8")
    return folder


def tiny(
    folder: Path, draft: str = "dynamic", overrides: tuple[str, ...] = ()
) -> tuple[dict[str, Any], dict[str, str]]:
    """Inputs and places of a module of the tiny model; a drafter is the model with other weights."""
    model = folder / "model"
    if not model.is_dir():
        write_model(model)
    drafter = None
    if draft in ("static", "dynamic"):
        drafter = folder / "drafter"
        if not drafter.is_dir():
            write_model(drafter, seed=3)
    spec = folder / f"{draft}.yaml"
    spec.write_text(spec_text(draft, batch=16), encoding="utf-8")
    inputs = module_inputs(spec, list(overrides), model=model, draft_model=drafter, device="cpu")
    return inputs, module_places(spec, model=model, draft_model=drafter, cache=folder / "cache")


def write_head(folder: Path, spec: Path, seed: int = 5) -> Path:
    """A folder with a random EAGLE-3 head of a spec's sizes."""
    head = load(spec).spec.eagle_geometry
    assert head is not None
    table, same = head_weight_table(head), head.draft_vocab_size == head.vocab_size
    weights = random_weights(table, head_geometry(head), seed, torch.float32, include_optional=not same)
    names = {entry.name: entry.checkpoint_name for entry in table}
    told = {names[name]: value for name, value in weights.items() if isinstance(value, torch.Tensor)}
    if not same:
        told["d2t"] = torch.arange(head.draft_vocab_size) * 0
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: value.contiguous() for name, value in told.items()}, folder / "model.safetensors")
    return folder
