"""Traces and metrics of hand-made steps: what is counted, and how it is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from specc.runtime.generate import BatchResult, Request, RequestResult
from specc.runtime.metrics import request_metrics, run_metrics, stage_seconds
from specc.runtime.trace import RunIdentity, StepTrace, prefill_trace, step_traces, without_timing, write_trace

IDENTITY = RunIdentity(seed=5, spec="s" * 64, pipeline="p" * 64)


class Step(NamedTuple):
    tokens: Tensor
    parent: Tensor | None
    valid: Tensor | None
    path: Tensor
    accept_length: Tensor
    bonus: Tensor
    emitted: list[list[int]]
    seconds: dict[str, float]


def tree_step() -> Step:
    """Three rows: one accepts the second child of the root and its child, one is finished, one accepts nothing."""
    return Step(
        tokens=torch.tensor([[10, 11, 12, 13, 14], [0, 0, 0, 0, 0], [20, 21, 22, 0, 0]]),
        parent=torch.tensor([[-1, 0, 0, 1, 2], [-1, 0, 0, 0, 0], [-1, 0, 0, 0, 0]]),
        valid=torch.tensor([[True] * 5, [True] + [False] * 4, [True, True, True, False, False]]),
        path=torch.tensor([[0, 2, 4], [0, 0, 0], [0, 0, 0]]),
        accept_length=torch.tensor([2, 0, 0]),
        bonus=torch.tensor([99, 0, 77]),
        emitted=[[12, 14, 99], [], [77]],
        seconds={"draft": 0.5, "verify": 1.0},
    )


def test_a_tree_step_gives_one_trace_per_live_row() -> None:
    traces = step_traces(tree_step(), [7, 8, 9], 3)
    assert sorted(traces) == [0, 2]
    assert traces[0] == StepTrace(
        request=7,
        step=3,
        drafted=(10, 11, 12, 13, 14),
        parent=(-1, 0, 0, 1, 2),
        path=(0, 2, 4),
        accept_length=2,
        bonus=99,
        emitted=(12, 14, 99),
        timing={"draft": 0.5, "verify": 1.0},
    )
    assert traces[2].drafted == (20, 21, 22)
    assert traces[2].path == (0,)


def test_a_chain_step_has_parents_too() -> None:
    step = tree_step()._replace(parent=None, valid=None, path=torch.tensor([[0, 1, 2], [0, 0, 0], [0, 0, 0]]))
    trace = step_traces(step, [0, 1, 2], 1)[0]
    assert trace.parent == (-1, 0, 1, 2, 3)
    assert not trace.accepts_branch


@pytest.mark.parametrize(
    ("path", "branch"), [((0,), False), ((0, 1, 3), False), ((0, 2), True), ((0, 2, 4), True), ((0, 1, 5), True)]
)
def test_a_branch_is_a_node_with_an_elder_sibling(path: tuple[int, ...], branch: bool) -> None:
    trace = StepTrace(0, 1, (1, 2, 3, 4, 5, 6), (-1, 0, 0, 1, 2, 1), path, len(path) - 1, 0, (0,))
    assert trace.accepts_branch is branch


def test_traces_are_equal_without_their_timings(tmp_path: Path) -> None:
    first = [prefill_trace(0, 4, 1.0), *step_traces(tree_step(), [0, 1, 2], 1).values()]
    later = tree_step()._replace(seconds={"draft": 9.0, "verify": 2.0})
    second = [prefill_trace(0, 4, 7.0), *step_traces(later, [0, 1, 2], 1).values()]
    texts = []
    for number, traces in enumerate((first, second)):
        path = tmp_path / f"{number}.jsonl"
        write_trace(path, traces, {0: "a", 2: "b"}, IDENTITY)
        texts.append(path.read_text())
    assert texts[0] != texts[1]
    assert without_timing(texts[0]) == without_timing(texts[1])
    records = without_timing(texts[0])
    assert [record["step"] for record in records] == [0, 1, 1]
    assert records[1] == {
        "schema": "specc.trace/1",
        "request": 0,
        "name": "a",
        "step": 1,
        "drafted": [10, 11, 12, 13, 14],
        "parent": [-1, 0, 0, 1, 2],
        "path": [0, 2, 4],
        "accept_length": 2,
        "bonus": 99,
        "emitted": [12, 14, 99],
        "seed": 5,
        "spec": "s" * 64,
        "pipeline": "p" * 64,
    }
    assert json.loads(texts[0].splitlines()[1])["timing"] == {"draft": 0.5, "verify": 1.0}


def batch() -> BatchResult:
    """The requests of `tree_step` after a prefill and that step; row 1 had ended with its first token."""
    traces = step_traces(tree_step(), [0, 1, 2], 1)
    results = []
    for row in range(3):
        request = Request(row, f"r{row}", (1, 2))
        taken = [prefill_trace(row, 5, 1.0)] + ([traces[row]] if row in traces else [])
        tokens = [token for trace in taken for token in trace.emitted]
        results.append(RequestResult(request, tokens, taken, 1.5 if row in traces else 0.0, "limit"))
    return BatchResult(results, 1.0, 1.5, {"draft": 0.5, "verify": 1.0})


def test_metrics_of_a_run() -> None:
    found = run_metrics([batch(), batch()])
    assert found.tokens == 14
    assert found.decoded == 8
    assert found.steps == 4
    assert found.acceptance_length == 2.0
    assert found.drafted == 2 * (4 + 2)
    assert found.acceptance_rate == pytest.approx(4 / 12)
    assert found.per_depth_acceptance == [0.5, 0.5]
    assert found.branch_steps == 2
    assert found.tokens_per_second == pytest.approx(8 / 3.0)
    assert stage_seconds([batch(), batch()]) == {"prefill": 2.0, "draft": 1.0, "verify": 2.0}


def test_metrics_of_one_request_and_of_none() -> None:
    result = batch().results[0]
    assert request_metrics([result], result.seconds).acceptance_length == 3.0
    empty = request_metrics([], 0.0)
    assert (empty.tokens_per_second, empty.acceptance_length, empty.acceptance_rate) == (0.0, 0.0, 0.0)
