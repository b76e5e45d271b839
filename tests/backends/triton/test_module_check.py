"""`specc check --target triton` under the interpreter: shipped specs hold, planted faults are found, ties set apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from specc.check import Report, Workbench, run
from specc.check.example import Example, StepPlan
from specc.check.findings import CheckFailure, Checks, Finding
from specc.check.runner import Run
from specc.check.session import Session
from specc.spec import load
from tests.cells import spread

SPECS = Path(__file__).parents[3] / "specs"
AGAINST = ("naive", "twins", "stages")


def bench_of(spec: str) -> Workbench:
    """The reduced spec alone."""
    return Workbench.of(load(SPECS / spec), limit=1, target="triton")


def checked(spec: str, bench: Workbench, examples: int) -> Report:
    loaded = load(SPECS / spec)
    return run(loaded, examples, bench=bench, against=AGAINST, target="triton", shrink=False)


@pytest.mark.slow
@pytest.mark.parametrize("spec", spread(["gdn-15m-tree.yaml", "smollm2-prompt-lookup-tree.yaml"], 1))
def test_shipped_specs_hold(spec: str) -> None:
    report = checked(spec, bench_of(spec), 3)
    assert report.ok, report.as_text(spec)
    assert report.ties == 0
    wanted = {"I7", "I9", "I13", "I14", "I20", "I22", "I23", "I27"}
    assert {id for id in wanted if not report.counts.get(id)} == set()


@pytest.mark.slow
def test_a_wrong_kernel_is_found() -> None:
    """With another epsilon in every norm the module is a program's no more; no tie explains that."""
    spec = "smollm2-prompt-lookup.yaml"
    bench = bench_of(spec)
    subject = bench.subject(0)
    assert "1e-05" in subject.source
    subject.__dict__["source"] = subject.source.replace("1e-05", "1e-01")
    report = checked(spec, bench, 2)
    assert report.counterexample is not None
    assert "--target triton" in report.as_text(spec)


EXAMPLE = Example(0, ((3, 4),), 9, (64,), (StepPlan(),), 0)


@pytest.mark.parametrize("seeds", [(0,), (0, 1), (0, 1, 2), (0, 2)])
def test_a_failure_that_other_weights_do_not_have_is_a_tie(
    seeds: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(session: Session) -> None:
        if session.subject.seed in seeds:
            raise CheckFailure(Finding("I23", "here", "another token"))

    monkeypatch.setattr(Session, "run", fails)
    monkeypatch.setattr(Session, "__init__", lambda self, subject, *_: setattr(self, "subject", subject))
    one = Run(bench_of("smollm2-plain.yaml"), Checks(), 10, False, lambda *_: None)
    tied = seeds == (0,)
    assert (one.one(EXAMPLE) is None) == tied
    assert len(one.ties) == tied
    assert one.shortfalls() == []
    one.ties |= {EXAMPLE, Example(0, ((5,),), 9, (64,), (), 0)}
    assert "at most 1 can be chance" in one.shortfalls()[0]
