"""Tables of results: the fastest right time of each, and who made them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specc.bench.results import RESULTS
from specc.bench.tables import main
from specc.cli import main as cli

ROWS = [
    {"case": "a", "n": 16, "us": 9.0, "read_us": 2.0, "wrong": False},
    {"case": "a", "n": 16, "us": 4.0, "read_us": 2.0},
    {"case": "a", "n": 16, "us": 1.0, "read_us": 2.0, "wrong": True},
    {"case": "a", "n": 16, "peer": "p", "us": 30.0},
    {"case": "a", "n": 16, "peer": "p", "us": 14.0},
    {"case": "a", "n": 16, "peer": "q", "us": 210.0},
    {"case": "b", "n": 32, "peer": "q", "us": 5.0},
    {"case": "b", "n": 32, "peer": "q", "failed": "x", "wrong": True},
    {"other": 1, "us": 1.0},
]
HEAD = {
    "gpu": {"gpu": "G", "torch": "2.11", "triton": "3.6", "cuda": "13.0"},
    "commit": "0123456789abcdef",
    "command": "c",
}


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "r.json"
    path.write_text(json.dumps(HEAD | {"rows": ROWS}))
    return str(path)


def test_the_fastest_right_rows_stand_beside_each_other(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([file, "--by", "case", "--by", "n", "--floor"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "| case | n | floor us | specc us | p us | q us | times faster |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| a | 16 | 2.0 | 4.0 | 14.0 | 210 | 3.5 |",
        "| b | 32 | - | - | - | 5.0 | - |",
        "",
        "G, torch 2.11, triton 3.6, cuda 13.0, commit 0123456789ab, `c`",
    ]
    main([file, "--by", "n", "--where", "case=b"])
    assert capsys.readouterr().out.splitlines()[2:4] == ["| 32 | - | 5.0 | - |", ""]


def test_kept_results_can_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    main([str(RESULTS / "kernels_delta.json"), "--by", "geometry", "--by", "nodes", "--by", "batch"])
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("| gdn-1.3b | 16 | 1 |") for line in lines)


def test_other_files_and_bad_options_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "o.json"
    for text in ("", "[]", "{}", '{"rows": 3}'):
        other.write_text(text)
        assert cli(["bench", "tables", str(other), "--by", "n"]) == 2
        assert "SPC293" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([str(other), "--by", "n", "--where", "x"])
