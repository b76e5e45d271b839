"""A cell that decodes conversations turn by turn at batch 1: plainly and speculatively, by the same module.

The prefill is timed apart; both decodings go through the module's own `Decoder.generate`. A later turn is asked with
plain decoding's answer to the one before, so that every module gets the same prompts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from specc.bench.evaluation.along import differences
from specc.bench.evaluation.baselines import Baselines
from specc.bench.evaluation.modules import code_of, opened
from specc.bench.evaluation.prompts import from_json
from specc.runtime.generate import Request, RequestResult
from specc.runtime.metrics import request_metrics
from specc.runtime.session import Conversation, Session
from specc.runtime.trace import step_traces

WARM_UP_TOKENS = 8
WARM_UP_WIDTHS = (16, 37, 300)
"""Lengths of prompts: kernels are specialised on whether they are multiples of 16, and on how many chunks there are."""


def decode_cell(inputs: Mapping[str, Any], places: Mapping[str, str]) -> dict[str, Any]:
    """inputs: those of a module; `conversations` (`prompts.prepared`); `max_new_tokens`; `plain_turns`: how many turns
    are decoded plainly for their time (None: all; the others' texts come from the kept baselines); `bound`: measured
    numerical bound or None; `first_number`: the first turn's, for its random stream.

    Result: `turns`, a list of records: see `turn_record`; `skipped`: names of turns that do not fit into the module;
    `peak_memory`: most bytes that tensors held on the GPU, weights included (None elsewhere); `module_code`: see
    `modules.code_of`.
    """
    session, most = opened(inputs, places), int(inputs["max_new_tokens"])
    accept = session.loaded.spec
    kept = Baselines.of(inputs, places, accept.runtime.dtype, accept.accept.stop_tokens)
    plain_turns, number = inputs["plain_turns"], int(inputs["first_number"])
    warm_up(session, inputs["device"])
    on_gpu = str(inputs["device"]).startswith("cuda")
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    turns: list[dict[str, Any]] = []
    skipped: list[str] = []
    for item in inputs["conversations"]:
        prompt = from_json(item)
        talk = Conversation(prompt, list(prompt.messages), list(prompt.turns))
        while talk.turns or talk.turn == 0:
            request = talk.next_request(session.tokenizer, number, raw=False)
            number += 1
            if len(request.ids) + most >= session.module.MAX_SEQUENCE_LENGTH:
                skipped.append(request.name)
                break
            timed = plain_turns is None or len(turns) < plain_turns
            record = turn_record(session, request, most, kept, timed, inputs["bound"])
            turns.append(record | {"category": prompt.category})
            answer = session.tokenizer.decode(kept.get(request.ids) or [])
            talk.messages.append({"role": "assistant", "content": answer})
    peak = torch.cuda.max_memory_allocated() if on_gpu else None
    return {"turns": turns, "skipped": skipped, "peak_memory": peak, "module_code": code_of(session)}


def warm_up(session: Session, device: str) -> None:
    """A few steps of both kinds, so that kernels are compiled and graphs captured before anything is timed."""
    for ids in warm_up_prompts(session.module, device):
        for speculative in (True, False):
            decoded(session, Request(0, "warm-up", tuple(ids)), WARM_UP_TOKENS, speculative)


def warm_up_prompts(module: Any, device: str) -> list[list[int]]:
    """Prompts of telling lengths that fit into the module; one where nothing is compiled for lengths."""
    widths = WARM_UP_WIDTHS if device.startswith("cuda") else WARM_UP_WIDTHS[:1]
    fitting = [width for width in widths if width + WARM_UP_TOKENS < module.MAX_SEQUENCE_LENGTH]
    return [[token % module.VOCAB_SIZE for token in range(1, 1 + width)] for width in fitting]


def decoded(session: Session, request: Request, most: int, speculative: bool) -> dict[str, Any]:
    """One text: tokens, seconds of the prefill and of the decoding, and the counts of its steps (speculative)."""
    decoder: Any = session.decoder
    made = decoder.generate(
        [list(request.ids)], most, speculative=speculative, seed=session.identity.seed, requests=[request.number]
    )
    found: dict[str, Any] = {
        "tokens": made.tokens[0],
        "prefill_seconds": round(made.prefill_seconds, 6),
        "decode_seconds": round(made.decode_seconds, 6),
    }
    if speculative:
        traces = [
            trace
            for count, step in enumerate(made.steps, 1)
            for trace in step_traces(step, [request.number], count).values()
        ]
        counts = request_metrics([RequestResult(request, made.tokens[0], traces)], made.decode_seconds)
        found |= {
            "steps": counts.steps,
            "drafted": counts.drafted,
            "accepted": counts.accepted,
            "branch_steps": counts.branch_steps,
            "depths": list(counts.depths),
            "stage_seconds": _stages(made.steps),
        }
    return found


def _stages(steps: Sequence[Any]) -> dict[str, float]:
    """Seconds of each stage over the steps (one stage, `step`, where a step is one graph)."""
    total: dict[str, float] = {}
    for step in steps:
        for stage, seconds in step.seconds.items():
            total[stage] = total.get(stage, 0.0) + seconds
    return {stage: round(seconds, 6) for stage, seconds in total.items()}


def turn_record(
    session: Session, request: Request, most: int, kept: Baselines, timed: bool, bound: float | None
) -> dict[str, Any]:
    """What one turn gave.

    name; ids (the prompt's tokens); `plain` and `speculative`: see `decoded` (`plain.decode_seconds` is None where the
    text was kept before and not timed); `differences`: see specc.runtime.lossless; `compared`: positions.
    """
    text = None if timed else kept.get(request.ids)
    if text is None:
        plain = decoded(session, request, most, speculative=False)
        kept.put(request.ids, plain["tokens"])
    else:
        plain = {"tokens": text, "prefill_seconds": None, "decode_seconds": None}
    if not timed:
        plain |= {"prefill_seconds": None, "decode_seconds": None}
    ours = decoded(session, request, most, speculative=True)
    pair = (plain["tokens"], ours["tokens"])
    found = differences(session, request.name, request.number, request.ids, pair, most, bound)
    return {
        "name": request.name,
        "ids": list(request.ids),
        "plain": plain,
        "speculative": ours,
        "compared": len(ours["tokens"]),
        "differences": [item.as_json() for item in found],
    }
