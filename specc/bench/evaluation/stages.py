"""A cell that times the stages of a step: draft, verify, accept, commit, and a plain step beside them.

On a GPU a step is one graph, which has no stages that the host could see. So each stage is captured as a graph of its
own from the same module's `run_draft`, `run_verify`, `run_accept` and `run_commit` (`specc.bench.step_stand`), after a
real prompt's prefill with the real weights, and replayed in bursts; the whole step's graph is timed beside them. The
sum of the stages exceeds the step by what one graph saves. Elsewhere the stages are those of the decoder's own steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import torch

from specc.bench.evaluation.modules import opened
from specc.bench.evaluation.turns import decoded, warm_up
from specc.bench.step_cases import Case, floor_of, full_tree
from specc.bench.step_stand import Stand, form_rows, prefilled
from specc.runtime.generate import Request
from specc.runtime.session import Session
from specc.testing.tensors import tree_tensors

STAGES = ("draft", "verify", "accept", "commit")


def stage_cell(inputs: Mapping[str, Any], places: Mapping[str, str]) -> dict[str, Any]:
    """inputs: those of a module, `ids` (a prompt's tokens), `max_new_tokens` (elsewhere than on a GPU).

    Result: `us` (form -> microseconds), `shares` of the four stages, `how`, `context`; on a GPU also `launches` and the
    floor of a plain step (weights and K/V rows read once).
    """
    session = opened(inputs, places)
    ids = [int(token) for token in inputs["ids"]]
    if not str(inputs["device"]).startswith("cuda"):
        return _by_host(session, ids, int(inputs["max_new_tokens"]))
    with torch.no_grad():
        stand = stand_of(session, ids, torch.device(inputs["device"]))
        rows = list(form_rows(stand))
    us = {row["form"]: row["us"] for row in rows}
    floor = floor_of(session.loaded.spec, 1, len(ids))
    return {
        "us": us,
        "shares": shares({stage: us[stage] for stage in STAGES}),
        "sum_of_stages_us": round(sum(us[stage] for stage in STAGES), 2),
        "launches": {row["form"]: row["launches"] for row in rows},
        "floor_us": round(floor.us, 2),
        "context": len(ids),
        "how": "each stage captured as a CUDA graph of its own, replayed in bursts",
    }


def stand_of(session: Session, ids: Sequence[int], device: torch.device) -> Stand:
    """The module with its real weights after a prompt, and a tree without padding to verify."""
    spec, module = session.loaded.spec, session.module
    state = prefilled(module, session.decoder.weights, [list(ids)], device)
    tokens, parent, valid = tree_tensors([full_tree(spec, int(state.root_token[0]), Random(0))], device)
    case = Case(spec.name, "", len(ids), module.MAX_SEQUENCE_LENGTH)
    tree = (tokens, parent, valid)
    return Stand(case, session.loaded, module, session.decoder.weights, state, [list(ids)], tree)


def shares(times: Mapping[str, float]) -> dict[str, float]:
    """Each one's part of the sum."""
    total = sum(times.values())
    return {name: round(value / total, 4) if total else 0.0 for name, value in times.items()}


def _by_host(session: Session, ids: Sequence[int], most: int) -> dict[str, Any]:
    """From the seconds that the decoder's own steps give per stage."""
    warm_up(session, "cpu")
    request = Request(0, "stages", tuple(ids))
    plain = decoded(session, request, most, speculative=False)
    made = decoded(session, request, most, speculative=True)
    times = {stage: made["stage_seconds"].get(stage, 0.0) for stage in STAGES}
    steps, tokens = max(made["steps"], 1), max(len(plain["tokens"]) - 1, 1)
    us = {stage: round(seconds / steps * 1e6, 2) for stage, seconds in times.items()}
    us |= {
        "step": round(made["decode_seconds"] / steps * 1e6, 2),
        "plain": round(plain["decode_seconds"] / tokens * 1e6, 2),
    }
    return {"us": us, "shares": shares(times), "context": len(ids), "how": "the decoder's own steps, timed by the host"}
