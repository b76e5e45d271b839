"""The first steps of a trace as a drawing, and what the whole trace says in numbers."""

from __future__ import annotations

from collections.abc import Sequence

from specc.report.charts import LEFT, RIGHT, WIDTH, by_depth, coordinate, label_at, svg, ticks
from specc.report.markup import Html, element, joined, text
from specc.report.results import ByDepth, Column, Table
from specc.report.tables import number_text, table
from specc.trace.read import Trace, batch_steps
from specc.trace.schema import STAGES, Step, in_order
from specc.trace.summary import metrics_of, summary

MAX_STEPS = 16
MAX_TRACKS = 8
TRACK = 34
BAR = 16
OTHER = len(STAGES)
"""Class number of a stage that the schema does not know, such as `step`: all stages as one CUDA graph."""


def stage_class(stage: str) -> str:
    """The colour of a stage."""
    return f"stage-{STAGES.index(stage) if stage in STAGES else OTHER}"


def first_steps(trace: Trace) -> list[list[Step]]:
    """The steps of the first batch after its prefill, at most `MAX_STEPS`, each with its rows."""
    found: list[list[Step]] = []
    for group in batch_steps(trace.steps):
        if group[0].step == 0:
            if found:
                break
            continue
        found.append(group)
        if len(found) == MAX_STEPS:
            break
    return found


def timeline(trace: Trace) -> Html:
    """One track per request, a slice per stage; above each step the number of tokens that it emitted."""
    groups = first_steps(trace)
    if not groups:
        return element("p", "The trace has no step after the prefill.", class_="note")
    requests = sorted({step.request for group in groups for step in group})
    shown = requests[:MAX_TRACKS]
    total = sum(sum(group[0].timing.values()) for group in groups) or 1.0
    height = 30 + TRACK * len(shown) + 34
    parts: list[Html] = []
    for row, request in enumerate(shown):
        parts.append(label_at(LEFT - 6, 30 + row * TRACK + BAR - 3, request, "tick end"))
    clock = 0.0
    for group in groups:
        for step in group:
            if step.request in shown:
                top = 30 + shown.index(step.request) * TRACK
                parts += _step(step, clock, total, top)
        clock += sum(group[0].timing.values())
    parts += _axis(total, height)
    left = len(requests) - len(shown)
    more = f" {left} more requests of the batch are not drawn." if left else ""
    caption = f"The first {len(groups)} steps of the first batch, a track for each request.{more}"
    stages = dict(in_order({stage: 0 for group in groups for stage in group[0].timing}))
    legend = [element("li", element("span", class_=f"key {stage_class(stage)}"), stage) for stage in stages]
    picture = svg(WIDTH, height, caption, *parts)
    note = "Numbers above the slices: tokens that the step emitted. Time between steps, on the host, is not in a trace."
    return element(
        "figure",
        element("figcaption", caption),
        element("ul", *legend, class_="legend"),
        picture,
        element("p", note, class_="note"),
    )


def _place(seconds: float, total: float) -> float:
    return LEFT + seconds / total * (WIDTH - LEFT - RIGHT)


def _step(step: Step, start: float, total: float, top: float) -> list[Html]:
    """The slices of one step, and its number of tokens."""
    begin, parts = start, list[Html]()
    accepted = f"{step.accept_length} of {len(step.drafted) - 1} drafted tokens accepted"
    for stage, seconds in in_order(step.timing):
        x, end = _place(start, total), _place(start + seconds, total)
        said = f"request {step.request} ({step.name}), step {step.step}, {stage}: {seconds * 1e3:.3f} ms; {accepted}"
        parts.append(
            element(
                "rect",
                element("title", text(said)),
                x=coordinate(x),
                y=coordinate(top),
                width=coordinate(max(end - x - 1, 0.5)),  # a gap between slices
                height=BAR,
                class_=stage_class(stage),
            )
        )
        start += seconds
    middle = (_place(begin, total) + _place(start, total)) / 2
    parts.append(label_at(middle, top - 3, len(step.emitted), "tick middle"))
    return parts


def _axis(total: float, height: float) -> list[Html]:
    """Milliseconds."""
    parts = []
    for value in ticks(0, total * 1e3, 8):
        if value <= total * 1e3:
            place = _place(value / 1e3, total)
            parts.append(label_at(place, height - 20, number_text(value, None), "tick middle"))
    return [*parts, label_at((LEFT + WIDTH - RIGHT) / 2, height - 4, "milliseconds", "axis middle")]


def trace_numbers(trace: Trace) -> Html:
    """Acceptance by depth, shares of the stages, and a line for each request."""
    found = summary(trace)
    total = found["total"]
    lead = element(
        "p",
        f"{len(found['requests'])} requests, {total['tokens']} tokens in {total['steps']} steps: acceptance_length "
        f"{total['acceptance_length']:.2f} (accepted tokens and the bonus, mean over steps), acceptance_rate "
        f"{total['acceptance_rate']:.2f}, {total['branch_steps']} steps took a branch that a chain does not have.",
    )
    stages = [{"stage": stage, **item} for stage, item in found["stages"].items()]
    stage_columns = (
        Column(key="stage"),
        Column(key="seconds", unit="s", digits=4),
        Column(key="runs"),
        Column(key="share", title="share of the steps", digits=3),
    )
    request_columns = (
        *(Column(key=key) for key in ("request", "name", "tokens", "steps")),
        *(Column(key=key, digits=2) for key in ("acceptance_length", "acceptance_rate")),
    )
    return joined(
        [
            lead,
            by_depth([ByDepth(label="all requests", shares=shares)]) if (shares := depths(trace.steps)) else "",
            table(Table(name="stages", title="Time by stage", columns=stage_columns, rows=tuple(stages))),
            table(Table(name="requests", title="Requests", columns=request_columns, rows=tuple(found["requests"]))),
        ]
    )


def depths(steps: Sequence[Step]) -> tuple[float, ...]:
    """Share of the steps that accepted at least d tokens, d from 1."""
    return tuple(metrics_of(steps).per_depth_acceptance)
