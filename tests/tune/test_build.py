"""Processes that warm variants up, and the shares of the time for measuring."""

from __future__ import annotations

import pickle
import time
from pathlib import Path

import pytest

from specc.diagnostics import DiagnosticError, error
from specc.tune import budget
from specc.tune.budget import Clock
from specc.tune.build import Warm, Warming, Workplace
from specc.tune.variants import Source, generous, source_of

SPECS = Path(__file__).resolve().parents[2] / "specs"
ONE_LAYER = ("draft.aux_hidden_state_layer_ids=[0]", "draft.aux_hidden_state_of=output")


def does_nothing() -> None:
    pass


def refuses() -> None:
    raise DiagnosticError([error("SPC490", "no")])


def test_only_jobs_that_succeed_are_ready(capfd: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    jobs = [("good", does_nothing, ()), ("bad", refuses, ())]
    assert Warming(jobs, workers=2).run(time.monotonic() + 300, said.append) == {"good"}
    assert sorted(line.split(" after")[0] for line in said) == ["bad: failed", "good: ready"]
    assert "Traceback" not in capfd.readouterr().err


def test_a_job_that_left_its_stamp_is_not_done_again(tmp_path: Path) -> None:
    names = ("good", "bad", "done")
    stamps = {name: tmp_path / f"made/{name}.ready" for name in names}
    stamps["done"].parent.mkdir()
    stamps["done"].touch()
    said: list[str] = []
    jobs: list[Warm] = [("good", does_nothing, ()), ("bad", refuses, ()), ("done", refuses, ())]
    assert Warming(jobs, stamps, workers=2).run(time.monotonic() + 300, said.append) == {"good", "done"}
    assert [stamps[name].is_file() for name in names] == [True, False, True]
    assert len(said) == 2


@pytest.mark.parametrize("overrides", [[], ["draft.top_k=4"]])
def test_a_workplace_reaches_another_process(overrides: list[str]) -> None:
    source = Source.read(SPECS / "gdn-15m-tree.yaml", overrides)
    work = Workplace(source, "model", None, "triton", "cuda", SPECS)
    there = pickle.loads(pickle.dumps(work))
    assert there.source.loaded.spec == source.loaded.spec
    assert there.folder == SPECS


def test_jobs_are_ended_at_the_deadline() -> None:
    said: list[str] = []
    began = time.monotonic()
    assert Warming([("late", time.sleep, (600.0,))], workers=1).run(began + 0.2, said.append) == set()
    assert time.monotonic() - began < 60
    assert said == ["late: not ready in time"]
    assert Warming([("never", time.sleep, (1.0,))]).run(began, said.append) == set()


def test_a_part_has_what_the_one_before_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(budget.time, "monotonic", lambda: now[0])
    clock = Clock(10.0)
    assert clock.end(0.4) == 104
    now[0] = 101.0  # three seconds are left over
    assert clock.end(0.3) == 107
    now[0] = 120.0  # over, and then some that was spent on building
    assert clock.end(0.3) == 123


@pytest.mark.slow
def test_the_tree_of_every_candidate_of_ten_levels_compiles() -> None:
    """Its accepted path is looked for in a loop over 149 nodes, whose indices are known to stay inside."""
    source = Source.read(SPECS / "gdn-15m-eagle.yaml", ["target.config.num_hidden_layers=1", *ONE_LAYER])
    tree = generous("eagle3", 4, 10)
    assert tree.nodes == 148
    assert "class Decoder" in source_of(source.with_tree(tree), "reference")
