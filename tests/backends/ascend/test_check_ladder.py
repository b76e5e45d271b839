"""`specc check --target ascend`: the rungs that it climbs, and what it says of one that it can't."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from specc.backends.ascend.harness import wheel
from specc.backends.export import packages
from specc.bench import ascend_rungs
from specc.check import replay
from specc.check.ascend import ladder
from specc.check.report import Rung
from specc.cli import main
from specc.diagnostics import DiagnosticError
from specc.spec import load

SPECS = Path(__file__).resolve().parents[3] / "specs"


def test_a_rung_without_its_wheel_is_skipped_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "graphs_executable", lambda: "no torch_npu; run `specc fetch torch-npu`")
    monkeypatch.setattr(ladder, "FEWEST", 1)
    rungs = ladder.climb(load(SPECS / "smollm2-plain.yaml"), 1)
    assert [(rung.ok, rung.ran) for rung in rungs] == [(True, True), (True, True), (True, False)]
    assert rungs[2].line().endswith("skipped: no torch_npu; run `specc fetch torch-npu`")
    assert "float16, batch 1: 1 rows' steps" in rungs[1].text


def test_graphs_need_protobuf_beside_the_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain installation has none: the rung is skipped with a remedy, whatever the cache holds."""

    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(wheel, "unzipped_wheel", Path)
    monkeypatch.setattr(wheel, "version", absent)
    assert ladder.graphs_executable() == "GE graphs need the package `protobuf`; pip install 'specc[ascend]'"
    monkeypatch.setattr(wheel, "version", lambda name: "6.31")
    assert ladder.graphs_executable() is None


def test_a_table_of_rungs_is_refused_without_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda name: None)
    for rung, target in ascend_rungs.WITNESSES.items():
        with pytest.raises(DiagnosticError, match=f"SPC205.*target `{target}` needs"):
            ascend_rungs.check_rungs([ascend_rungs.CONTRACTS, rung])
    ascend_rungs.check_rungs([ascend_rungs.CONTRACTS, ascend_rungs.EAGER])


def test_a_failed_rung_fails_the_report() -> None:
    assert Rung("1 contracts", False, "SPC512").line() == "  1 contracts, FAILED: SPC512"


@pytest.mark.slow
def test_the_command_climbs_all_rungs(capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "check",
        str(SPECS / "smollm2-prompt-lookup.yaml"),
        "--target",
        "ascend",
        "--max-examples",
        "5",
        "--json",
    ]
    assert main(command) == 0
    report = json.loads(capsys.readouterr().out)
    assert [(rung["name"][0], rung["ok"], rung["ran"]) for rung in report["ladder"]] == [
        ("1", True, True),
        ("2", True, True),
        ("3", True, True),
    ]
    assert "0 recompiles" in report["ladder"][2]["text"]


FOLDED = (
    "eNqdkDEOgzAMRe_iOUMEaSC5CmIwJKVRS4KS0A6Iu9cw0IWhYrL8_J8teYE3RofZBQ-aM5hiGKecQDdNyRlnom5b"
    "Bv1j9k_QisHLjW4fS0E8ZTttzQIm4n3jtCJZa0AXFO5mM9i8Q-yPEzF8qK7sRLrJ6opV1ResQvwkpf61-LkkD4m-"
    "ggM6nyhRrl_qQmrO"
)
"""Asks what a node depends on, of a step whose verify has folded the pending factors into the state."""


@pytest.mark.slow
def test_a_verify_that_folds_what_is_pending_is_no_leak() -> None:
    assert replay(load(SPECS / "gdn-15m-eagle.yaml"), FOLDED, ["I17"], target="ascend").ok
