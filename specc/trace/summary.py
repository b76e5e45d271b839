"""What a trace says in a few numbers: acceptance, by depth and by request, and the share of every stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specc.runtime.metrics import Metrics, step_metrics
from specc.runtime.trace import StepTrace
from specc.trace.diff import stage_times
from specc.trace.read import Trace, batch_steps
from specc.trace.schema import Step, in_order


def as_taken(step: Step) -> StepTrace:
    """A record of a file as the runtime's own."""
    return StepTrace(
        request=step.request,
        step=step.step,
        drafted=tuple(step.drafted),
        parent=tuple(step.parent),
        path=tuple(step.path),
        accept_length=step.accept_length,
        bonus=step.bonus,
        emitted=tuple(step.emitted),
        timing=step.timing,
    )


def metrics_of(steps: Sequence[Step]) -> Metrics:
    """The runtime's metrics of these records; seconds are those of the steps' stages, each batch's once."""
    seconds = sum(sum(group[0].timing.values()) for group in batch_steps(steps) if group[0].step)
    return step_metrics([as_taken(step) for step in steps], seconds)


def summary(trace: Trace) -> dict[str, Any]:
    """Numbers of the whole run, of its stages and of its requests."""
    times = stage_times(trace)
    decoding = sum(seconds for stage, (seconds, _) in times.items() if stage != "prefill")
    stages = {
        stage: {
            "seconds": round(times[stage][0], 6),
            "runs": times[stage][1],
            "share": round(times[stage][0] / decoding, 4) if decoding and stage != "prefill" else None,
        }
        for stage, _ in in_order(times)
    }
    requests = [
        {"request": request, "name": trace.name(request), **metrics_of(steps).as_json()}
        for request, steps in sorted(trace.requests.items())
    ]
    first = trace.steps[0]
    identity = {"schema": first.schema_, "seed": first.seed, "spec": first.spec, "pipeline": first.pipeline}
    return {**identity, "total": metrics_of(trace.steps).as_json(), "stages": stages, "requests": requests}


def summary_text(found: dict[str, Any]) -> str:
    """The same for a reader."""
    total = found["total"]
    lines = [
        f"{len(found['requests'])} requests, {total['tokens']} tokens, {total['steps']} steps after the prefill",
        f"acceptance_length {total['acceptance_length']:.2f}, acceptance_rate {total['acceptance_rate']:.2f}, "
        f"{total['branch_steps']} branch steps",
    ]
    if total["per_depth_acceptance"]:
        lines += ["", "depth  steps that accepted at least so deep"]
        for depth, share in enumerate(total["per_depth_acceptance"], 1):
            lines.append(f"{depth:5}  {share:6.1%}  {'#' * round(share * 40)}".rstrip())
    lines += ["", f"{'stage':10} {'seconds':>10} {'runs':>6} {'ms/run':>9}  share of the steps"]
    for stage, item in found["stages"].items():
        each = item["seconds"] / item["runs"] * 1e3
        share = "" if item["share"] is None else f"{item['share']:6.1%}"
        lines.append(f"{stage:10} {item['seconds']:10.4f} {item['runs']:6} {each:9.3f}  {share}".rstrip())
    lines += ["", f"{'request':>7}  {'steps':>5} {'tokens':>6} {'acceptance_length':>17}  name"]
    for item in found["requests"]:
        numbers = f"{item['steps']:5} {item['tokens']:6} {item['acceptance_length']:17.2f}"
        lines.append(f"{item['request']:7}  {numbers}  {item['name']}")
    return "\n".join(lines)
