"""Traces: what every step drafted and accepted, one JSON object per line.

The schema, `specc.trace/1`, is written down in specc/trace/TRACE.md and checked by specc/trace/schema.py. Keys are
sorted; there is one line per (request, step), in the order in which they happened.

The text of a request is the concatenation of its `emitted`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specc.output import write_text
from specc.trace.schema import SCHEMA

if TYPE_CHECKING:  # it imports torch, which the command that reads traces doesn't need
    from specc.runtime.module import StepRecord


@dataclass(frozen=True, slots=True)
class StepTrace:
    """One step of one request, on the host: the fields of the schema that depend on the step."""

    request: int
    step: int
    drafted: tuple[int, ...]
    parent: tuple[int, ...]
    path: tuple[int, ...]
    accept_length: int
    bonus: int
    emitted: tuple[int, ...]
    timing: Mapping[str, float] = field(default_factory=dict)

    @property
    def accepts_branch(self) -> bool:
        """Whether an accepted node has an elder sibling: a chain of first children would not have had this path."""
        return any(self.parent.index(self.parent[node]) < node for node in self.path[1:])


def step_traces(step: StepRecord, requests: Sequence[int], number: int) -> dict[int, StepTrace]:
    """Row -> trace of a speculative step, for the rows that took part; `requests` name the rows."""
    tokens, path = step.tokens.tolist(), step.path.tolist()
    nodes = range(len(tokens[0]))
    chain = [node - 1 for node in nodes]
    parents = [chain] * len(tokens) if step.parent is None else step.parent.tolist()
    valid = [[True for _ in nodes]] * len(tokens) if step.valid is None else step.valid.tolist()
    lengths, bonus = step.accept_length.tolist(), step.bonus.tolist()
    made: dict[int, StepTrace] = {}
    for row, emitted in enumerate(step.emitted):
        if emitted:
            count = sum(valid[row])  # padding nodes come last
            made[row] = StepTrace(
                request=requests[row],
                step=number,
                drafted=tuple(tokens[row][:count]),
                parent=tuple(parents[row][:count]),
                path=tuple(path[row][: lengths[row] + 1]),
                accept_length=lengths[row],
                bonus=bonus[row],
                emitted=tuple(emitted),
                timing=step.seconds,
            )
    return made


def prefill_trace(request: int, token: int, seconds: float) -> StepTrace:
    """The trace of a prefill: step 0."""
    return StepTrace(request, 0, (), (), (), 0, token, (token,), {"prefill": seconds})


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """What all lines of a trace share: the seed and the fingerprints of spec and passes."""

    seed: int
    spec: str
    pipeline: str


def trace_line(trace: StepTrace, name: str, identity: RunIdentity) -> str:
    """One line of a trace file, without its newline."""
    record: dict[str, Any] = {
        "schema": SCHEMA,
        "request": trace.request,
        "name": name,
        "step": trace.step,
        "drafted": trace.drafted,
        "parent": trace.parent,
        "path": trace.path,
        "accept_length": trace.accept_length,
        "bonus": trace.bonus,
        "emitted": trace.emitted,
        "seed": identity.seed,
        "spec": identity.spec,
        "pipeline": identity.pipeline,
        "timing": {stage: round(seconds, 6) for stage, seconds in trace.timing.items()},
    }
    return json.dumps(record, sort_keys=True)


def write_trace(path: Path, traces: Iterable[StepTrace], names: Mapping[int, str], identity: RunIdentity) -> None:
    """Write the whole trace file, or nothing. Raises DiagnosticError (SPC460)."""
    lines = [trace_line(trace, names[trace.request], identity) for trace in traces]
    write_text(path, "".join(line + "\n" for line in lines))


def without_timing(text: str) -> list[dict[str, Any]]:
    """The records of a trace file without their timings: equal for two runs of the same command."""
    records = [json.loads(line) for line in text.splitlines()]
    return [{key: value for key, value in record.items() if key != "timing"} for record in records]
