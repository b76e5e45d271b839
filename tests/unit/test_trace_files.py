"""Trace files: what the runtime writes is read back; what is broken is named; differences are found where they are."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.runtime.trace import RunIdentity, StepTrace, prefill_trace, write_trace
from specc.trace.diff import compare, compare_texts, compare_timing, stage_times
from specc.trace.perfetto import perfetto
from specc.trace.read import Trace, batch_steps, read_trace
from specc.trace.summary import as_taken, summary

IDENTITY = RunIdentity(seed=5, spec="s" * 64, pipeline="p" * 64)
STAGES = ("draft", "verify", "accept", "commit")


@st.composite
def steps_of(draw: st.DrawFn, request: int, prefill: float, timings: list[dict[str, float]]) -> list[StepTrace]:
    """A request's prefill and its steps: trees of a few nodes, a path that follows them."""
    token = st.integers(0, 9)
    taken = [prefill_trace(request, draw(token), prefill)]
    for number, timing in enumerate(timings, 1):
        parents = [-1, *(draw(st.integers(0, node)) for node in range(draw(st.integers(0, 5))))]
        drafted = (taken[-1].bonus, *(draw(token) for _ in parents[1:]))
        path = [0]
        while (below := [n for n, parent in enumerate(parents) if parent == path[-1]]) and draw(st.booleans()):
            path.append(draw(st.sampled_from(below)))
        bonus = draw(token)
        emitted = (*(drafted[node] for node in path[1:]), bonus)
        taken.append(
            StepTrace(request, number, drafted, tuple(parents), tuple(path), len(path) - 1, bonus, emitted, timing)
        )
    return taken


@st.composite
def runs(draw: st.DrawFn) -> list[StepTrace]:
    """A run of one or two batches of one to three requests, its lines in the order in which `specc run` writes them."""
    lines: list[StepTrace] = []
    request = 0
    for batch in range(draw(st.integers(1, 2))):
        stages = draw(st.sampled_from([STAGES, ("step",)]))
        seconds = st.integers(1, 1000).map(lambda thousandths: thousandths / 1000)
        timings = [{stage: draw(seconds) for stage in stages} for _ in range(draw(st.integers(0, 3)))]
        rows: list[StepTrace] = []
        for _ in range(draw(st.integers(1, 3))):
            rows += draw(steps_of(request, 1.0 + batch, timings[: draw(st.integers(0, len(timings)))]))
            request += 1
        lines += sorted(rows, key=lambda item: (item.step, item.request))
    return lines


def written(lines: list[StepTrace], path: Path, identity: RunIdentity = IDENTITY) -> Trace:
    """The lines through a file and back."""
    write_trace(path, lines, {item.request: f"prompt {item.request}" for item in lines}, identity)
    return read_trace(path)


def in_folder(check: Callable[[Path], None]) -> None:
    """Run a check of a property in a temporary folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        check(Path(folder))


@settings(max_examples=40, deadline=None)
@given(runs())
def test_what_the_runtime_writes_is_read_back(lines: list[StepTrace]) -> None:
    def check(folder: Path) -> None:
        trace = written(lines, folder / "a.jsonl")
        assert [as_taken(step) for step in trace.steps] == lines
        assert compare(trace, trace).equal
        assert compare_texts(trace, trace).equal_requests == len(trace.requests)

    in_folder(check)


@settings(max_examples=40, deadline=None)
@given(runs(), st.data())
def test_a_changed_bonus_is_found_where_it_is(lines: list[StepTrace], data: st.DataObject) -> None:
    """The last token of a request: nothing before it differs, so it is the first difference, and the only one."""
    request = data.draw(st.sampled_from(sorted({item.request for item in lines})))
    place = max(n for n, item in enumerate(lines) if item.request == request)
    old = lines[place]
    changed = replace(old, bonus=old.bonus + 1, emitted=(*old.emitted[:-1], old.bonus + 1))
    other = [changed if n == place else item for n, item in enumerate(lines)]

    def check(folder: Path) -> None:
        a, b = written(lines, folder / "a.jsonl"), written(other, folder / "b.jsonl")
        found = compare(a, b)
        assert [(item.request, item.step, item.field) for item in found.differences] == [(request, old.step, "bonus")]
        assert (found.differences[0].a, found.differences[0].b) == (old.bonus, old.bonus + 1)
        last = len(a.tokens(request)) - 1
        assert f"the texts part at token {last}: {old.bonus} in A and {old.bonus + 1} in B" in found.differences[0].text
        assert compare(a, b, ["bonus", "emitted"]).equal
        assert not compare_texts(a, b).equal

    in_folder(check)


def tree_run(timing: dict[str, float] | None = None) -> list[StepTrace]:
    """Two requests in one batch: one ends with the prefill, the other takes two steps."""
    stages = timing or {"verify": 0.5, "draft": 0.25}
    return [
        prefill_trace(0, 4, 1.0),
        prefill_trace(1, 7, 1.0),
        StepTrace(1, 1, (7, 8, 9), (-1, 0, 0), (0, 2), 1, 5, (9, 5), stages),
        StepTrace(1, 2, (5, 6, 6), (-1, 0, 1), (0,), 0, 3, (3,), stages),
    ]


def test_the_first_difference_is_the_cause(tmp_path: Path) -> None:
    """Another drafted node is named, not the path that follows from it; the texts are equal."""
    lines = tree_run()
    other = [*lines[:2], replace(lines[2], drafted=(7, 9, 8), path=(0, 1)), lines[3]]
    found = compare(written(lines, tmp_path / "a"), written(other, tmp_path / "b"))
    assert [item.text for item in found.differences] == [
        "step 1: `drafted` differs first at node 1: 8 in A and 9 in B ([7, 8, 9], [7, 9, 8]); "
        "the texts are equal, 4 tokens"
    ]
    assert found.equal_requests == 1


def test_missing_requests_steps_and_keys_are_differences(tmp_path: Path) -> None:
    a = written(tree_run(), tmp_path / "a")
    shorter = written(tree_run()[:3], tmp_path / "b")
    assert [item.text for item in compare(a, shorter).differences] == [
        "B ends after step 1, A goes on to step 2; up to there they are equal"
    ]
    alone = written(tree_run()[1:], tmp_path / "c")
    assert [item.text for item in compare(alone, a).differences] == [
        "is in B only, with 1 steps; A has no such request"
    ]
    text = (tmp_path / "a").read_text().replace('"accept_length": 1', '"accept_length": 1, "added_later": 3')
    (tmp_path / "d").write_text(text)
    assert [item.text for item in compare(a, read_trace(tmp_path / "d")).differences] == [
        "step 1: `added_later` is in B only: 3; the texts are equal, 4 tokens"
    ]


def test_the_runs_identity_is_compared_once(tmp_path: Path) -> None:
    a = written(tree_run(), tmp_path / "a")
    b = written(tree_run(), tmp_path / "b", replace(IDENTITY, spec="t" * 64, seed=6))
    assert [item.text for item in compare(a, b).differences] == [
        "`seed` is 5 in A and 6 in B",
        "`spec` is ssssssssssss... in A and tttttttttttt... in B",
    ]
    assert compare(a, b, ["seed", "spec"]).equal


@settings(max_examples=40, deadline=None)
@given(runs())
def test_a_batchs_time_counts_once(lines: list[StepTrace]) -> None:
    """However many rows a batch has, its step took what the timing says."""

    def check(folder: Path) -> None:
        trace = written(lines, folder / "a.jsonl")
        groups = list(batch_steps(trace.steps))
        assert [step for group in groups for step in group] == list(trace.steps)
        assert sum(group[0].step == 0 for group in groups) == len(
            {item.timing["prefill"] for item in lines if not item.step}
        )
        total = sum(seconds for seconds, _ in stage_times(trace).values())
        assert total == pytest.approx(sum(sum(group[0].timing.values()) for group in groups))
        assert all(item.ratio == pytest.approx(1) for item in compare_timing(trace, trace))

    in_folder(check)


def test_timings_of_two_runs(tmp_path: Path) -> None:
    a = written(tree_run(), tmp_path / "a")
    b = written(tree_run({"verify": 1.0, "draft": 0.25}), tmp_path / "b")
    assert compare(a, b).equal
    assert [(item.stage, item.seconds, item.runs, item.ratio) for item in compare_timing(a, b)] == [
        ("prefill", (1.0, 1.0), (1, 1), 1.0),
        ("draft", (0.5, 0.5), (2, 2), 1.0),
        ("verify", (1.0, 2.0), (2, 2), 2.0),
    ]


@settings(max_examples=40, deadline=None)
@given(runs())
def test_the_timeline_is_well_formed(lines: list[StepTrace]) -> None:
    """Slices of a track do not overlap, stages lie in their step, counters say what was accepted."""

    def check(folder: Path) -> None:
        trace = written(lines, folder / "a.jsonl")
        events = json.loads(json.dumps(perfetto(trace), allow_nan=False))["traceEvents"]
        for request, steps in trace.requests.items():
            own = [event for event in events if event["ph"] == "X" and event["tid"] == request + 1]
            slices = [event for event in own if event["cat"] == "step"]
            assert [event["args"]["emitted"] for event in slices] == [step.emitted for step in steps]
            for before, after in pairwise(slices):
                assert before["ts"] + before["dur"] <= after["ts"] + 1e-2
            for event in slices:
                end = event["ts"] + event["dur"]
                stages = [item for item in own if item["cat"] == "stage" and event["ts"] - 1e-2 <= item["ts"] < end]
                place = event["ts"]
                for item in stages:
                    assert item["ts"] == pytest.approx(place, abs=1e-2)
                    place += item["dur"]
                assert not stages or place == pytest.approx(end, abs=1e-2)
            counters = [
                event["args"]["value"] for event in events if event["name"] == f"accept_length (request {request})"
            ]
            assert counters == [step.accept_length for step in steps[1:]]

    in_folder(check)


def test_a_step_of_one_graph_is_one_slice(tmp_path: Path) -> None:
    split = perfetto(written(tree_run(), tmp_path / "a"))["traceEvents"]
    whole = perfetto(written(tree_run({"step": 0.5}), tmp_path / "b"))["traceEvents"]
    assert [event["name"] for event in split if event["ph"] == "X" and event["tid"] == 2] == [
        "prefill",
        *("step 1", "draft", "verify"),
        *("step 2", "draft", "verify"),
    ]
    assert [event["name"] for event in whole if event["ph"] == "X" and event["tid"] == 2] == [
        "prefill",
        "step 1",
        "step 2",
    ]


def test_a_summary_has_the_runtimes_metrics(tmp_path: Path) -> None:
    lines = tree_run()
    found = summary(written(lines, tmp_path / "a"))
    assert found["total"] == {
        "tokens": 5,
        "steps": 2,
        "tokens_per_second": 2.0,
        "acceptance_length": 1.5,
        "acceptance_rate": 0.25,
        "per_depth_acceptance": [0.5],
        "branch_steps": 1,
        "seconds": 1.5,
    }
    assert {stage: item["share"] for stage, item in found["stages"].items()} == {
        "prefill": None,
        "draft": pytest.approx(1 / 3, abs=1e-4),
        "verify": pytest.approx(2 / 3, abs=1e-4),
    }
    assert [item["steps"] for item in found["requests"]] == [0, 2]
