"""Compares two traces: the first difference of every request, in words; timings apart.

Everything but `timing` is the same in two runs of the same command on the same machine, so the first field of the first
step that differs is where two runs parted: what comes after it follows from it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from specc.trace.read import IDENTITY, Trace, batch_steps
from specc.trace.schema import ORDER, Step, in_order

ABSENT = "absent"
MAX_ITEMS = 8
NODES = {"drafted": "node", "parent": "node", "path": "depth", "emitted": "new token"}
"""What an index into a field's list counts."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a request (None: the whole run) differs first. `index`: the place in a list, `text`: both in words."""

    request: int | None
    name: str
    step: int | None
    field: str
    a: Any
    b: Any
    text: str

    def as_json(self) -> dict[str, Any]:
        """All fields."""
        keys = ("request", "name", "step", "field", "a", "b", "text")
        return {key: getattr(self, key) for key in keys}


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two traces differ in, and how many requests are equal in both."""

    differences: tuple[Difference, ...]
    equal_requests: int
    steps: tuple[int, int]

    @property
    def equal(self) -> bool:
        return not self.differences


def compare(a: Trace, b: Trace, ignore: Collection[str] = ()) -> Comparison:
    """Compare all deterministic fields but those in `ignore` (names of the schema's keys)."""
    found = list(_run_differences(a, b, ignore))
    equal = 0
    skip = {*ignore, *IDENTITY}
    for request in sorted(a.requests.keys() | b.requests.keys()):
        difference = _request_difference(a, b, request, skip)
        if difference is None:
            equal += 1
        else:
            found.append(difference)
    return Comparison(tuple(found), equal, (len(a.steps), len(b.steps)))


def _run_differences(a: Trace, b: Trace, ignore: Collection[str]) -> Iterator[Difference]:
    """What all lines of a file share."""
    for key in IDENTITY:
        left, right = getattr(a.steps[0], key), getattr(b.steps[0], key)
        if key not in ignore and left != right:
            text = f"`{key}` is {_shown(left)} in A and {_shown(right)} in B"
            yield Difference(None, "", None, key, left, right, text)


def _request_difference(a: Trace, b: Trace, request: int, skip: Collection[str]) -> Difference | None:
    if request not in a.requests or request not in b.requests:
        return _missing(a, b, request)
    left_steps, right_steps = a.requests[request], b.requests[request]
    name = a.name(request)
    for left, right in zip(left_steps, right_steps, strict=False):
        difference = _step_difference(left, right, skip)
        if difference is not None:
            key, one, other, text = difference
            text = f"step {left.step}: {text}; {_texts(a.tokens(request), b.tokens(request))}"
            return Difference(request, name, left.step, key, one, other, text)
    if len(left_steps) != len(right_steps) and "step" not in skip:
        shorter, longer = ("A", "B") if len(left_steps) < len(right_steps) else ("B", "A")
        last = min(len(left_steps), len(right_steps)) - 1
        most = max(len(left_steps), len(right_steps)) - 1
        text = f"{shorter} ends after step {last}, {longer} goes on to step {most}; up to there they are equal"
        return Difference(request, name, last + 1, "step", len(left_steps) - 1, len(right_steps) - 1, text)
    return None


def _missing(a: Trace, b: Trace, request: int) -> Difference:
    """A request that one trace has not."""
    there, missing = ("A", "B") if request in a.requests else ("B", "A")
    trace = a if request in a.requests else b
    text = f"is in {there} only, with {len(trace.requests[request])} steps; {missing} has no such request"
    left, right = (request if request in side.requests else None for side in (a, b))
    return Difference(request, trace.name(request), None, "request", left, right, text)


def compare_texts(a: Trace, b: Trace) -> Comparison:
    """Compare what the requests emitted and nothing else, as two specs that both promise plain decoding's text do."""
    found, equal = list[Difference](), 0
    for request in sorted(a.requests.keys() | b.requests.keys()):
        if request not in a.requests or request not in b.requests:
            found.append(_missing(a, b, request))
            continue
        left, right = a.tokens(request), b.tokens(request)
        if left == right:
            equal += 1
        else:
            found.append(Difference(request, a.name(request), None, "emitted", left, right, _texts(left, right)))
    return Comparison(tuple(found), equal, (len(a.steps), len(b.steps)))


def _step_difference(left: Step, right: Step, skip: Collection[str]) -> tuple[str, Any, Any, str] | None:
    """(field, value in A, value in B, words) of the first field that differs."""
    one, other = left.deterministic, right.deterministic
    for key in dict.fromkeys((*ORDER, *one, *other)):
        if key in skip or (key in one and key in other and one[key] == other[key]):
            continue
        if key not in one or key not in other:
            there = "A" if key in one else "B"
            return (
                key,
                one.get(key),
                other.get(key),
                f"`{key}` is in {there} only: {_shown(one.get(key, other.get(key)))}",
            )
        return key, one[key], other[key], _in_words(key, one[key], other[key])
    return None


def _in_words(key: str, one: Any, other: Any) -> str:
    """Both values; of lists, the first place where they differ."""
    if not (isinstance(one, list) and isinstance(other, list)):
        return f"`{key}` is {_shown(one)} in A and {_shown(other)} in B"
    what, lists = NODES.get(key, "item"), f"({_shown(one)}, {_shown(other)})"
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return f"`{key}` differs first at {what} {index}: {left} in A and {right} in B {lists}"
    return f"`{key}` has {len(one)} entries in A and {len(other)} in B {lists}"


def _texts(a: list[int], b: list[int]) -> str:
    """Whether the emitted texts differ as well."""
    for index, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return f"the texts part at token {index}: {left} in A and {right} in B"
    if len(a) == len(b):
        return f"the texts are equal, {len(a)} tokens"
    return f"the texts are equal for {min(len(a), len(b))} tokens, then one of them ends ({len(a)} and {len(b)} tokens)"


def _shown(value: Any) -> str:
    """A value, long ones cut."""
    if isinstance(value, list):
        items = ", ".join(str(item) for item in value[:MAX_ITEMS])
        return f"[{items}{', ...' if len(value) > MAX_ITEMS else ''}]"
    text = str(value)
    return text if len(text) <= 16 else f"{text[:12]}..."


@dataclass(frozen=True, slots=True)
class StageTimes:
    """One stage in two traces: seconds in all, and how often it ran (once for all rows of a batch)."""

    stage: str
    seconds: tuple[float, float]
    runs: tuple[int, int]

    @property
    def ratio(self) -> float | None:
        """Time per run of B divided by that of A."""
        if not all(self.runs) or not self.seconds[0]:
            return None
        return (self.seconds[1] / self.runs[1]) / (self.seconds[0] / self.runs[0])


def stage_times(trace: Trace) -> dict[str, tuple[float, int]]:
    """Stage -> seconds and runs, each batch's step counted once."""
    found: dict[str, tuple[float, int]] = {}
    for group in batch_steps(trace.steps):
        for stage, seconds in group[0].timing.items():
            total, runs = found.get(stage, (0.0, 0))
            found[stage] = total + seconds, runs + 1
    return found


def compare_timing(a: Trace, b: Trace) -> list[StageTimes]:
    """The stages of both, in the order in which they run."""
    none = (0.0, 0)
    left, right = stage_times(a), stage_times(b)
    both = {stage: (left.get(stage, none), right.get(stage, none)) for stage in [*left, *right]}
    return [StageTimes(stage, (one[0], other[0]), (one[1], other[1])) for stage, (one, other) in in_order(both)]
