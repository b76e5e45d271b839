"""How good a head is: agreement along held-out texts, and the acceptance length of the compiled module."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specc.runtime.generate import BatchResult, Request, batches, decode_batch
from specc.runtime.lossless import LosslessReport, check_batch
from specc.runtime.metrics import run_metrics
from specc.runtime.session import open_session
from specc.spec import LoadedSpec
from specc.train.draft.batches import Text, in_batches
from specc.train.draft.head import EagleHead
from specc.train.draft.teacher import Teacher
from specc.train.draft.unroll import unroll

RANKS = 4


@dataclass(slots=True)
class Agreement:
    """Counts over held-out rows: how often the text's next token is the head's first, or among its first four, at each
    step of a chain whose earlier tokens are the text's; and what chains of that depth would accept."""

    rows: list[int]
    top1: list[int]
    top4: list[int]
    roots: int = 0
    accepted: int = 0

    def to_json(self) -> dict[str, Any]:
        """Shares by step; `chain_length`: tokens per step of greedy chains of that depth, the bonus included."""

        def shares(counts: Sequence[int]) -> list[float]:
            return [round(count / max(rows, 1), 4) for count, rows in zip(counts, self.rows, strict=True)]

        return {
            "rows": self.rows[0],
            "top1": shares(self.top1),
            "top4": shares(self.top4),
            "chain_length": round(1 + self.accepted / max(self.roots, 1), 4),
        }


@torch.no_grad()
def agreement(head: EagleHead, teacher: Teacher, texts: Sequence[Text], steps: int, budget: int) -> Agreement:
    """Teacher-forced agreement. Along accepted tokens a text is what was drafted, so the run of first-choice hits
    behind each root is what a greedy chain would accept there."""
    device = head.embedding.device
    found = Agreement([0] * steps, [0] * steps, [0] * steps)
    for number, batch in enumerate(in_batches(texts, budget)):
        batch = batch.to(device)
        lesson = teacher.lesson(batch, -1 - number)
        hits = torch.zeros(steps, batch.ids.shape[0], batch.ids.shape[1] - 1, dtype=torch.bool, device=device)
        counted = torch.zeros_like(hits)
        row = batch.rows % (batch.ids.shape[1] - 1)
        text = batch.rows // (batch.ids.shape[1] - 1)
        wanted = batch.ids[text, row + 2]
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            for step, output in enumerate(unroll(head, lesson.features, batch.ids, steps)):
                best = head.logits(output[text, row]).topk(min(RANKS, head.geometry.draft_vocab_size), -1).indices
                same = head.target_ids[best] == wanted.unsqueeze(1)
                rooted = row >= step
                found.rows[step] += int(rooted.sum())
                found.top1[step] += int((same[:, 0] & rooted).sum())
                found.top4[step] += int((same.any(1) & rooted).sum())
                hits[step, text, row] = same[:, 0]
                counted[step, text, row] = True
        roots, accepted = chain_lengths(hits, counted)
        found.roots += roots
        found.accepted += accepted
    return found


def chain_lengths(hits: Tensor, counted: Tensor) -> tuple[int, int]:
    """Roots, and tokens that their chains accept; hits, counted bool [S,B,R]. Root t's chain is row t + s of step s.

    Only roots whose whole chain lies within counted rows count.
    """
    steps, width = hits.shape[0], hits.shape[2]
    if width < steps:
        return 0, 0
    end = width - steps + 1
    inside = torch.stack([counted[s, :, s : s + end] for s in range(steps)]).all(0)
    runs = torch.stack([hits[s, :, s : s + end] for s in range(steps)]).long().cumprod(0).sum(0)
    return int(inside.sum()), int((runs * inside).sum())


@dataclass(frozen=True, slots=True)
class Trial:
    """How the compiled module decodes held-out prompts: at most `prompts` of them, `new_tokens` each, and no batch
    begins after `seconds`."""

    target: str = "reference"
    device: str = "cpu"
    prompts: int = 8
    new_tokens: int = 64
    seconds: float = 60.0


def compiled_acceptance(
    loaded: LoadedSpec, model: Path, head: Path, texts: Sequence[Text], trial: Trial
) -> dict[str, Any]:
    """Acceptance length of the exported head in the compiled module, and whether it decodes what plain decoding does.

    `seconds` are those of the speculative steps.
    """
    session = open_session(loaded, str(model), str(head), target=trial.target, device=trial.device)
    capacity = session.module.MAX_SEQUENCE_LENGTH - trial.new_tokens
    prompts = [text.ids[: text.prompt].tolist() for text in texts if text.prompt < capacity]
    requests = [Request(i, f"held-out-{i}", tuple(ids)) for i, ids in enumerate(prompts[: trial.prompts])]
    results: list[BatchResult] = []
    report = LosslessReport()
    began = time.monotonic()
    for group in batches(requests, session.module.MAX_BATCH_SIZE):
        results.append(decode_batch(session.decoder, group, trial.new_tokens))
        check_batch(report, session.module, session.decoder, results[-1], trial.new_tokens)
        if time.monotonic() - began > trial.seconds:
            break
    session.decoder.close()
    shown = {"prompts": sum(len(batch.results) for batch in results), **run_metrics(results).as_json()}
    differences = [item.allowed for item in report.differences]
    shown["lossless"] = {
        "tokens": report.tokens,
        "differences_within_rounding": sum(differences),
        "differences": len(differences) - sum(differences),
    }
    return {"target": trial.target, "device": trial.device, **shown}
