"""`specc check`: exit codes, text, JSON, replay, selection."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specc import driver
from specc.check import Counterexample, Report
from specc.check.example import Example, StepPlan, parse_token
from specc.check.findings import Finding
from specc.cli import main
from specc.codes.entry import SPEC_START
from specc.diagnostics import DiagnosticError
from specc.testing import make_tree

EXAMPLE = Example(1, ((3, 4), ()), 2, (64, 5), (StepPlan(0, 7, 2, 3, 1), StepPlan()), 2)


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "demo.yaml"
    path.write_text(SPEC_START, encoding="utf-8")
    return path


def report(counterexample: Counterexample | None = None, shortfalls: tuple[str, ...] = ()) -> Report:
    counts = {"steps": 10, "accept_two": 4, "accept_branch": 2, "accept_none": 1, "padding": 3}
    return Report(
        name="demo",
        examples=5,
        seconds=1.0,
        seed=0,
        variations=("the spec itself",),
        counts={"I1": 5},
        passes={"layer-major": 3},
        exercise={"all": counts},
        shortfalls=shortfalls,
        counterexample=counterexample,
        selected=frozenset({"I1", "I2"}),
    )


FOUND = Counterexample(
    Finding("I3", "step 1", "node 2 sees [0, 1, 2]", make_tree([5, 6, 7], [-1, 0, 0]), (0, 2)), EXAMPLE, "top_k=1"
)


def test_tokens_go_there_and_back() -> None:
    assert parse_token(EXAMPLE.token) == EXAMPLE
    assert all(letter.isalnum() or letter in "-_" for letter in EXAMPLE.token)


@pytest.mark.parametrize("text", ["", "abc", "?", EXAMPLE.token[:-4], "eJyrVkosLcmIT0osTlWyUjDSUVDKz8kvKgYAQ1MGfw"])
def test_other_texts_are_no_tokens(text: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        parse_token(text)
    assert caught.value.diagnostics[0].code == "SPC501"


@pytest.mark.parametrize(
    "changes",
    [{"chunk": 0}, {"against": 9}, {"limits": (1,)}, {"prompts": ((999,), ())}, {"steps": (StepPlan(row=5),)}],
)
def test_tokens_out_of_range_are_refused(changes: dict[str, object]) -> None:
    values = {name: getattr(EXAMPLE, name) for name in EXAMPLE.__slots__} | changes
    with pytest.raises(DiagnosticError):
        parse_token(Example(**values).token)


def test_a_bad_token_is_the_users_error(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(spec), "--replay", "zzz"]) == 2
    assert "error[SPC501]" in capsys.readouterr().err


def test_an_unknown_invariant_is_the_users_error(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(spec), "--invariant", "acylcic"]) == 2
    text = capsys.readouterr().err
    assert "error[SPC502]" in text
    assert "acyclic" in text


def test_report_lists_every_invariant_and_why_some_are_not_tested() -> None:
    text = report().as_text("demo.yaml")
    assert "I1 acyclic" in text
    assert "not applicable: paged targets only" in text
    assert "not applicable: recurrent targets only" in text
    assert "I2 ancestor-closed" in text
    assert text.endswith("all hold")


def test_counterexample_is_drawn_with_its_command() -> None:
    found = report(FOUND)
    assert not found.ok
    text = found.as_text("my specs/demo.yaml", ["draft.top_k=1"])
    assert "I3 mask-ancestors does not hold: row i of the mask is i and its ancestors" in text
    assert "└─ 2:7 *" in text
    assert f"specc check 'my specs/demo.yaml' --set draft.top_k=1 --replay {EXAMPLE.token}" in text
    values = found.as_json("demo.yaml")
    assert values["counterexample"]["token"] == EXAMPLE.token
    assert json.loads(json.dumps(values)) == values


def test_examples_that_exercise_nothing_fail() -> None:
    found = report(shortfalls=("steps that accept >= 2: 1 of 10",))
    assert not found.ok
    assert "the examples don't count: steps that accept >= 2" in found.as_text("demo.yaml")


def test_a_command_names_target_and_device() -> None:
    found = replace(report(FOUND), target="triton", device="cuda", ties=2)
    text = found.as_text("demo.yaml")
    assert f"specc check demo.yaml --target triton --device cuda --replay {EXAMPLE.token}" in text
    assert "ended at a tie of float32, which prove nothing: 2" in text
    assert found.as_json("demo.yaml")["target"] == "triton"


def test_triton_needs_its_package(
    spec: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "BACKENDS", {})
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["check", str(spec), "--target", "triton", "--max-examples", "1"]) == 2
    assert "error[SPC205]" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_cuda_device_must_be_there(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(spec), "--target", "triton", "--device", "cuda", "--max-examples", "1"]) == 2
    assert "error[SPC417]" in capsys.readouterr().err


@pytest.mark.slow
def test_a_spec_is_checked(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(spec), "--max-examples", "4", "--invariant", "lossless", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["ok"]
    assert values["invariants"]["I23"]["tests"] > 0
    assert values["invariants"]["I7"]["status"] == "not selected"
