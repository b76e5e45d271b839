"""The metrics of a run, defined once.

- `tokens_per_second`: new tokens of the steps divided by the seconds of the steps; the prefill and the token that it
  gives are left out. For a request in a batch the seconds are those of the steps that it took part in.
- `acceptance_length` (tau): tokens that a step emits, mean over the steps of every request; accepted drafted tokens and
  the bonus. 1.0 is plain decoding.
- `acceptance_rate`: accepted drafted tokens divided by drafted tokens (the root is not drafted).
- `per_depth_acceptance[d - 1]`: share of the steps that accepted at least d drafted tokens.
- `branch_steps`: steps whose accepted path holds a node that has an elder sibling.
- `speed-up` of a turn: its speculative tokens per second divided by plain decoding's, by the same module. Of many
  turns: the headline is total tokens by total time, speculative over plain; beside it stand the mean over the turns and
  the percentiles of the turns' ratios.
- `looping`: a turn of whose n-grams of 8 tokens `LOOPING` or more have occurred in it before. Repeated text is easy to
  draft: such turns are reported apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # these import torch, which the numbers of a trace file don't need
    from specc.runtime.generate import BatchResult, RequestResult
    from specc.runtime.trace import StepTrace

LOOPING = 0.05
LOOP_NGRAM = 8


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


def repeated_share(tokens: Sequence[int], length: int = LOOP_NGRAM) -> float:
    """Share of a text's n-grams of `length` tokens that stood in it before; 0 for shorter texts."""
    count = len(tokens) - length + 1
    if count <= 0:
        return 0.0
    return 1.0 - len({tuple(tokens[place : place + length]) for place in range(count)}) / count


def is_looping(tokens: Sequence[int]) -> bool:
    """Whether a text goes round in circles."""
    return repeated_share(tokens) >= LOOPING


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of the values lie, linear between two. Raises ValueError for none."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@dataclass(frozen=True, slots=True)
class Paired:
    """One turn decoded both ways by the same module: tokens of the steps (the prefill's is left out) and seconds."""

    plain_tokens: int
    plain_seconds: float
    speculative_tokens: int
    speculative_seconds: float

    @property
    def ratio(self) -> float:
        """The turn's speed-up; 0 where a decoding took no step."""
        if not (self.plain_tokens and self.plain_seconds and self.speculative_seconds):
            return 0.0
        return self.speculative_tokens / self.speculative_seconds * self.plain_seconds / self.plain_tokens


@dataclass(frozen=True, slots=True)
class SpeedUp:
    """Speed-up over many turns; `turns` counts those that took a step."""

    turns: int
    headline: float
    mean: float
    p50: float
    p90: float
    p99: float

    def as_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return {name: round(getattr(self, name), 4) for name in self.__dataclass_fields__}


def speed_up(turns: Sequence[Paired]) -> SpeedUp | None:
    """The speed-up over turns; None where none of them took a step."""
    counted = [turn for turn in turns if turn.ratio > 0]
    if not counted:
        return None
    ratios = [turn.ratio for turn in counted]
    total = Paired(
        sum(turn.plain_tokens for turn in counted),
        sum(turn.plain_seconds for turn in counted),
        sum(turn.speculative_tokens for turn in counted),
        sum(turn.speculative_seconds for turn in counted),
    )
    tails = (percentile(ratios, share) for share in (0.5, 0.9, 0.99))
    return SpeedUp(len(counted), total.ratio, sum(ratios) / len(ratios), *tails)
