"""`specc bench`: what is there, what it says without a GPU, what a search makes of its rows."""

from __future__ import annotations

import importlib
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from specc.bench import kernels, soak, tune
from specc.bench.families import FAMILIES, there
from specc.bench.gpu_timing import Report
from specc.cli import main
from specc.cli.bench import BENCHMARKS

ON_GPU = ("kernels", "step", "tune", "soak", "profile")
NEEDS = {"soak": ["--model", "m", "--spec", "s.yaml"]}


@pytest.mark.parametrize("name", sorted(BENCHMARKS))
def test_every_benchmark_has_a_main(name: str) -> None:
    assert callable(importlib.import_module(BENCHMARKS[name]).main)


@pytest.mark.parametrize("name", ON_GPU)
def test_without_a_gpu_there_is_a_code_and_a_remedy(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["bench", name, *NEEDS.get(name, [])]) == 2
    text = capsys.readouterr().err
    assert "SPC292" in text
    assert f"specc bench {name}" in text
    assert "help:" in text
    assert "Traceback" not in text


def test_unknown_families_and_bad_numbers_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    bad = ("kernels --family x", "tune --family x", "step --case x", "step --batch 0", "step --compile-only")
    for words in map(str.split, bad):
        with pytest.raises(SystemExit) as caught:
            main(["bench", *words])
        assert caught.value.code == 2
    assert "invalid choice" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        soak.main(["--model", "m", "--spec", "s.yaml", "--compile-only"])


def test_help_of_kernels_needs_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "kernels", "--help"]) == 0
    assert "--family" in capsys.readouterr().out


def test_families_run_apart_and_the_worst_status_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, tuple[str, ...]]] = []

    def run_family(family: str, rest: list[str]) -> int:
        ran.append((family, tuple(rest)))
        return len(ran) - 1

    monkeypatch.setattr(kernels, "run_family", run_family)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert kernels.main(["--family", "delta", "--family", "linear", "--seconds", "9"]) == 1
    assert ran == [("delta", ("--seconds", "9")), ("linear", ("--seconds", "9"))]
    ran.clear()
    kernels.main([])
    assert [family for family, _ in ran] == [family for family in FAMILIES if there(family)]


def test_the_best_configuration_is_the_fastest_right_one() -> None:
    rows = [
        {"geometry": "g", "nodes": 16, "config": "slow", "us": 9.0, "wrong": False},
        {"geometry": "g", "nodes": 16, "config": "fast", "us": 7.0, "wrong": False},
        {"geometry": "g", "nodes": 16, "config": "wrong", "us": 1.0, "wrong": True},
        {"geometry": "g", "nodes": 16, "config": "broken"},
        {"geometry": "g", "nodes": 32, "config": "other", "us": 20.0},
    ]
    assert tune.best_of(rows, ("geometry", "nodes")) == {
        "geometry=g, nodes=16": "fast",
        "geometry=g, nodes=32": "other",
    }


@pytest.mark.parametrize("fails", [False, True])
def test_a_search_leaves_its_rows_and_table(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def search(report: Report, seconds: float) -> dict[str, str]:
        report.add({"config": "c", "us": 1.0, "errors": {"o": 1e-7}})
        if fails:
            raise RuntimeError("illegal address")
        return {"key": "c"}

    family: Any = types.ModuleType("specc_family")
    family.tune = search
    monkeypatch.setitem(sys.modules, "specc_family", family)
    monkeypatch.setattr(tune, "FAMILIES", {"x": "specc_family"})
    monkeypatch.setattr("specc.bench.gpu_timing.gpu", lambda: {"gpu": "some device"})
    monkeypatch.setenv("SPECC_COMMIT", "c0ffee")
    assert tune.tune_family("x", 5.0, tmp_path, ["--family", "x"]) == fails
    kept = json.loads((tmp_path / "tuning_x.json").read_text())
    assert (kept["gpu"], kept["commit"]) == ({"gpu": "some device"}, "c0ffee")
    assert kept["table"] == ({} if fails else {"key": "c"})
    assert kept["rows"][0]["errors"] == {"o": 1e-7}
    assert ("illegal address" in capsys.readouterr().err) is fails
    del family.tune
    assert tune.tune_family("x", 5.0, tmp_path, []) == 0
