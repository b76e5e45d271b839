"""A trace as Chrome trace events, the JSON that ui.perfetto.dev and chrome://tracing load.

One track per request. A step is a slice with what it drafted and accepted as arguments; its stages are slices inside
it. Where all stages are one CUDA graph the timing has one entry, and the step is one slice. A trace holds durations and
no clock, so steps are laid end to end, as they stand in the file: rows of one batch lie above each other, and time
between the steps is not shown. Counters: `accept_length` and `acceptance_length so far` of each request.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from specc.trace.read import Trace, batch_steps
from specc.trace.schema import Step, in_order

PROCESS = 1
Event = dict[str, Any]


def microseconds(seconds: float) -> float:
    """To a nanosecond, the resolution of the format."""
    return round(seconds * 1e6, 3)


def perfetto(trace: Trace) -> dict[str, Any]:
    """The whole document."""
    first = trace.steps[0]
    return {
        "displayTimeUnit": "ms",
        "otherData": {"schema": first.schema_, "seed": first.seed, "spec": first.spec, "pipeline": first.pipeline},
        "traceEvents": [*_names(trace), *_events(trace)],
    }


def _names(trace: Trace) -> Iterator[Event]:
    """Metadata: what the process and its tracks are called, and their order."""
    yield {"ph": "M", "name": "process_name", "pid": PROCESS, "args": {"name": "speculative decoding"}}
    for request in trace.requests:
        label = {"name": f"request {request}: {trace.name(request)}"}
        yield {"ph": "M", "name": "thread_name", "pid": PROCESS, "tid": request + 1, "args": label}
        order = {"sort_index": request}
        yield {"ph": "M", "name": "thread_sort_index", "pid": PROCESS, "tid": request + 1, "args": order}


def _events(trace: Trace) -> Iterator[Event]:
    """Slices and counters of all steps, by time."""
    clock = 0.0
    emitted: dict[int, int] = {}
    for group in batch_steps(trace.steps):
        end = clock + sum(group[0].timing.values())
        for step in group:
            yield from _slices(step, clock)
            if step.step:
                emitted[step.request] = emitted.get(step.request, 0) + len(step.emitted)
                yield _counter(step, "accept_length", step.accept_length, end)
                so_far = round(emitted[step.request] / step.step, 4)
                yield _counter(step, "acceptance_length so far", so_far, end)
        clock = end


def _slices(step: Step, start: float) -> Iterator[Event]:
    """The step, and its stages if there are several."""
    stages = in_order(step.timing)
    title = "prefill" if step.step == 0 else f"step {step.step}"
    yield _slice(title, "step", step, start, sum(step.timing.values()), _arguments(step))
    if len(stages) > 1:
        for stage, seconds in stages:
            yield _slice(stage, "stage", step, start, seconds, {"step": step.step, "seconds": seconds})
            start += seconds


def _arguments(step: Step) -> dict[str, Any]:
    found = {"step": step.step, "bonus": step.bonus, "emitted": step.emitted}
    if step.step:
        found |= {"drafted": len(step.drafted) - 1, "accept_length": step.accept_length, "path": step.path}
    return found


def _slice(name: str, category: str, step: Step, start: float, seconds: float, arguments: dict[str, Any]) -> Event:
    place = {"pid": PROCESS, "tid": step.request + 1, "ts": microseconds(start), "dur": microseconds(seconds)}
    return {"ph": "X", "name": name, "cat": category, **place, "args": arguments}


def _counter(step: Step, name: str, value: float, at: float) -> Event:
    """Counters belong to a process, so that each request's has its number in its name."""
    title = f"{name} (request {step.request})"
    return {"ph": "C", "name": title, "pid": PROCESS, "ts": microseconds(at), "args": {"value": value}}
