"""A tiny model with prompts to evaluate it on."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from specc.bench.evaluation.modules import module_inputs, module_places
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
