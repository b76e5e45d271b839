"""The metrics of a run, defined once.

- `tokens_per_second`: new tokens of the steps divided by the seconds of the steps; the prefill and the token that it
  gives are left out. For a request in a batch the seconds are those of the steps that it took part in.
- `acceptance_length` (tau): tokens that a step emits, mean over the steps of every request; accepted drafted tokens and
  the bonus. 1.0 is plain decoding.
- `acceptance_rate`: accepted drafted tokens divided by drafted tokens (the root is not drafted).
- `per_depth_acceptance[d - 1]`: share of the steps that accepted at least d drafted tokens.
- `branch_steps`: steps whose accepted path holds a node that has an elder sibling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # these import torch, which the numbers of a trace file don't need
    from specc.runtime.generate import BatchResult, RequestResult
    from specc.runtime.trace import StepTrace


@dataclass(frozen=True, slots=True)
class Metrics:
    """Sums over requests; the ratios of the module's docstring are properties. 0 where nothing was counted."""

    tokens: int
    decoded: int
    seconds: float
    steps: int
    drafted: int
    accepted: int
    branch_steps: int
    depths: tuple[int, ...]

    @property
    def tokens_per_second(self) -> float:
        return self.decoded / self.seconds if self.seconds else 0.0

    @property
    def acceptance_length(self) -> float:
        return self.decoded / self.steps if self.steps else 0.0

    @property
    def acceptance_rate(self) -> float:
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def per_depth_acceptance(self) -> list[float]:
        return [count / self.steps for count in self.depths]

    def as_json(self) -> dict[str, Any]:
        """All numbers, rounded to what they mean."""
        return {
            "tokens": self.tokens,
            "steps": self.steps,
            "tokens_per_second": round(self.tokens_per_second, 3),
            "acceptance_length": round(self.acceptance_length, 4),
            "acceptance_rate": round(self.acceptance_rate, 4),
            "per_depth_acceptance": [round(share, 4) for share in self.per_depth_acceptance],
            "branch_steps": self.branch_steps,
            "seconds": round(self.seconds, 4),
        }


def request_metrics(results: Sequence[RequestResult], seconds: float) -> Metrics:
    """The metrics of these requests, whose steps took `seconds`."""
    found = step_metrics([trace for result in results for trace in result.traces], seconds)
    tokens = sum(len(result.tokens) for result in results)
    # Plain decoding has tokens and no traces.
    return replace(found, tokens=tokens, decoded=tokens - sum(1 for result in results if result.tokens))


def step_metrics(traces: Sequence[StepTrace], seconds: float) -> Metrics:
    """The metrics of these steps, prefills among them, all but which took `seconds`."""
    steps = [trace for trace in traces if trace.step > 0]
    deepest = max((trace.accept_length for trace in steps), default=0)
    return Metrics(
        tokens=sum(len(trace.emitted) for trace in traces),
        decoded=sum(len(trace.emitted) for trace in steps),
        seconds=seconds,
        steps=len(steps),
        drafted=sum(len(trace.drafted) - 1 for trace in steps),
        accepted=sum(trace.accept_length for trace in steps),
        branch_steps=sum(trace.accepts_branch for trace in steps),
        depths=tuple(sum(trace.accept_length >= depth for trace in steps) for depth in range(1, deepest + 1)),
    )


def run_metrics(batches: Sequence[BatchResult]) -> Metrics:
    """The metrics of a whole run."""
    results = [result for batch in batches for result in batch.results]
    return request_metrics(results, sum(batch.decode_seconds for batch in batches))


def stage_seconds(batches: Sequence[BatchResult]) -> dict[str, float]:
    """Seconds per stage: prefill, then the stages of the steps in their order."""
    total = {"prefill": sum(batch.prefill_seconds for batch in batches)}
    for batch in batches:
        for stage, seconds in batch.stage_seconds.items():
            total[stage] = total.get(stage, 0.0) + seconds
    return total
