"""`specc bench profile` without a GPU: a profiler's page, the rule of what limits a kernel, what can go wrong."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from specc.bench import profile, profile_child
from specc.bench.gpu_timing import Row
from specc.bench.profile_cases import CASES, Profiled
from specc.bench.profile_child import MARK
from specc.bench.profile_csv import (
    METRICS,
    Launch,
    cases_of,
    counters,
    launches_of,
    medians,
    rows_of,
    scale_of,
    verdict,
)
from specc.bench.profile_table import markdown
from specc.cli import main
from specc.diagnostics import DiagnosticError

MARKED = '"{}","void at::fill<4, at::native::heaviside_kernel(int)>","(128, 1, 1)","(1, 1, 1)","2","0","0","1","1",'
REST = '"1.02","8","1","1"'
PAGE = f"""\
==PROF== Connected to process 77 (/usr/bin/python3.12)
==PROF== Profiling "walk": 0%....50%....100% - 9 passes
"ID","Kernel Name","Block Size","Grid Size","gpu__time_duration.sum","dram__bytes_read.sum","dram__bytes_write.sum",\
"dram__throughput.avg.pct_of_peak_sustained_elapsed","smsp__issue_active.avg.pct_of_peak_sustained_active",\
"sm__cycles_active.avg","sm__cycles_elapsed.avg","sm__inst_executed.sum","launch__block_size",\
"launch__shared_mem_per_block_static","launch__shared_mem_per_block_driver","launch__occupancy_limit_registers",\
"smsp__average_warps_issue_stalled_wait_per_issue_active.ratio",\
"smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio"
"","","","","us","Mbyte","Kbyte","%","%","cycle","cycle","inst","","byte/block","Kbyte/block","block","inst","inst"
{MARKED.format(0)}"9","90","4","128","0",{REST}
"1","walk","(64, 1, 1)","(16, 8, 1)","29.5","16.8","250","12.5","40","9,000","10,000","1,234,567","64","128",\
"1.02","8","2.5","7.25"
"2","walk","(64, 1, 1)","(16, 8, 1)","31.5","16.8","350","13.5","42","9,000","10,000","1,234,567","64","128",\
"1.02","8","2.5","8.25"
"3","void at::copy<4>","(64, 1, 1)","(16, 8, 1)","1","0","0","1","1","9","90","4","128","0",{REST}
"4","merge","(32, 1, 1)","(8, 1, 1)","3.5","0","0","1","1","9","90","nan","128","n/a",{REST}
{MARKED.format(5)}"9","90","4","128","0",{REST}
"6","apply","(32, 1, 1)","(8, 1, 1)","3.5","0","0","1","1","9","90","4","128","0",{REST}
"""
"""As Nsight Compute writes it with the units that suit the numbers, shortened to a few columns."""


def row_of(us: float = 30.0, active: float = 100.0, inside: Row | None = None, **busy: float) -> Row:
    """What the rule asks for."""
    inside = {name: value / active * 100 for name, value in busy.items()} if inside is None else inside
    return {"us": us, "active_percent": active, "busy": busy, "busy_when_active": inside, "stalls": {"wait": 2.5}}


@pytest.mark.parametrize(
    ("unit", "scale"),
    [("ns", 1e-9), ("nsecond", 1e-9), ("us", 1e-6), ("usecond", 1e-6), ("ms", 1e-3), ("msecond", 1e-3), ("s", 1.0),
     ("second", 1.0), ("byte", 1.0), ("Kbyte", 1e3), ("Mbyte", 1e6), ("Gbyte", 1e9), ("Kbyte/block", 1e3),
     ("byte/block", 1.0), ("%", 1.0), ("inst", 1.0), ("Minst", 1e6), ("cycle", 1.0), ("register/thread", 1.0),
     ("warp", 1.0), ("block", 1.0), ("", 1.0)],
)  # fmt: skip
def test_units_have_one_scale(unit: str, scale: float) -> None:
    assert scale_of(unit) == scale


def test_a_page_is_read_in_base_units() -> None:
    launches = launches_of(PAGE)
    assert [launch.kernel.split("<")[0] for launch in launches[:3]] == ["void at::fill", "walk", "walk"]
    walk = launches[1]
    assert (walk.grid, walk.block) == ("(16, 8, 1)", "(64, 1, 1)")
    assert walk.get("gpu__time_duration.sum") == pytest.approx(29.5e-6)
    assert walk.get("dram__bytes_read.sum") == pytest.approx(16.8e6)
    assert walk.get("dram__bytes_write.sum") == pytest.approx(250e3)
    assert walk.get("sm__inst_executed.sum") == 1234567
    assert walk.get("launch__shared_mem_per_block_driver") == pytest.approx(1020)
    assert launches[4].get("launch__shared_mem_per_block_static") is None


def test_cases_stand_between_marks_without_torchs_kernels() -> None:
    parts = cases_of(launches_of(PAGE), MARK)
    assert [[launch.kernel for launch in part] for part in parts] == [["walk", "walk", "merge"], ["apply"]]


def test_a_case_of_torchs_kernels_alone_keeps_them() -> None:
    launches = [Launch(name, "", "", {}) for name in (MARK, "at::mul", MARK, "at::copy", "walk")]
    assert [[launch.kernel for launch in part] for part in cases_of(launches, MARK)] == [["at::mul"], ["walk"]]


def test_launches_of_a_kernel_become_their_median() -> None:
    part = cases_of(launches_of(PAGE), MARK)[0]
    (walk, count), (merge, one) = medians(part)
    assert (walk.kernel, count, merge.kernel, one) == ("walk", 2, "merge", 1)
    row = counters(walk)
    assert row["us"] == 30.5
    assert row["written_mb"] == 0.3
    assert row["warps"] == 2
    assert row["shared_bytes"] == 1148
    assert row["active_percent"] == 90.0
    assert row["clock_mhz"] == 328
    assert row["busy_when_active"] == {"issue": 41.0, "memory": 14.4}
    assert row["busy"] == {"memory": 13.0, "issue": 36.9}
    assert list(row["stalls"].items()) == [("long_scoreboard", 7.75), ("wait", 2.5)]
    assert row["occupancy_limits"] == {"registers": 8}
    assert row["registers"] is None
    assert counters(Launch("void at::mul<4, (int)1>(int)", "", "", {}))["kernel"] == "void at::mul"
    other = Launch("walk", "(1, 1, 1)", walk.block, {})
    assert [n for _, n in medians([*part, other])] == [2, 1, 1]


@pytest.mark.parametrize("text", ["", "==ERROR== no\n", '"A","B"\n"1","2"\n'])
def test_what_is_no_page_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no table"):
        launches_of(text)


@pytest.mark.parametrize(
    ("row", "limit", "percent"),
    [
        (row_of(memory=85.0, issue=30.0), "memory", 85.0),
        (row_of(memory=56.0, L2=80.0), "memory", 80.0),
        (row_of(memory=55.0, L2=80.0), "L2", 80.0),
        (row_of(memory=61.0, issue=72.0, fma=40.0), "issue", 72.0),
        (row_of(memory=20.0, tensor=60.0), "tensor", 60.0),
        (row_of(memory=20.0, tensor=59.9), "latency", 59.9),
        (row_of(us=2.9, memory=20.0), "launch", 20.0),
        (row_of(us=2.9, memory=70.0), "memory", 70.0),
        # Busy where it runs, but it runs on half of the multiprocessors.
        (row_of(active=50.0, memory=10.0, issue=40.0), "grid", 40.0),
        (row_of(active=50.0, memory=40.0, issue=4.0), "grid", 40.0),
        (row_of(active=80.0, memory=10.0, issue=56.0), "latency", 56.0),
        (row_of(active=50.0, memory=10.0, issue=20.0), "latency", 20.0),
        (row_of() | {"busy": {}}, "unknown", None),
    ],
)
def test_the_rule(row: Row, limit: str, percent: float | None) -> None:
    found = verdict(row)
    assert (found["limit"], found["limit_percent"]) == (limit, percent)
    assert (limit != "latency") or "wait 2.5" in found["why"]


class Fake:
    """Nsight Compute as far as the command sees it: writes a page and what the child would have told."""

    def __init__(self, page: str, told: Sequence[Row]) -> None:
        self.page, self.told, self.runs = page, told, list[list[str]]()

    def __call__(self, words: Sequence[str], **_: Any) -> Any:
        self.runs.append(list(words))
        if "--query-metrics" in words:
            return type("Done", (), {"stdout": "dram__bytes_read  Counter  byte  # read\ngpu__time_duration\n"})()
        chosen = [word for before, word in pairwise(words) if before == "--case"]
        log, told = (Path(words[words.index(name) + 1]) for name in ("--log-file", "--told"))
        log.write_text(self.page, encoding="utf-8")
        lines = [json.dumps(line) for line in self.told if line["case"] in chosen]
        told.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return type("Done", (), {"returncode": 0})()


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("specc.bench.gpu_timing.gpu", lambda: {"gpu": "some device"})
    monkeypatch.setenv("SPECC_COMMIT", "c0ffee")
    monkeypatch.setattr("specc.bench.profile.shutil.which", lambda name: f"/bin/{name}")


FIRST, SECOND, THIRD = "serial-16-b8", "tree-32-b1", "token-b1"


@pytest.mark.usefixtures("on_a_gpu")
def test_a_run_leaves_rows_by_case_and_goes_on_behind_a_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = [
        {"case": FIRST, "begun": True}, {"case": FIRST, "marked": True}, {"case": FIRST, "ended": True},
        {"case": SECOND, "begun": True}, {"case": SECOND, "ended": True, "failed": "RuntimeError: no room"},
        {"case": THIRD, "begun": True}, {"case": THIRD, "marked": True},
    ]  # fmt: skip
    fake = Fake(PAGE, told)
    monkeypatch.setattr("specc.bench.profile.subprocess.run", fake)
    words = ["--warm", "0", "--output", str(tmp_path), "--pages", str(tmp_path / "pages"), "--launches", "2"]
    chosen = [word for name in (FIRST, SECOND, THIRD) for word in ("--case", name)]
    assert profile.main([*words, *chosen, "--case", "commit-24-layers"]) == 1
    kept = json.loads((tmp_path / "profile.json").read_text())
    seen = [(row["case"], row.get("kernel"), row.get("failed")) for row in kept["rows"]]
    assert seen == [
        (FIRST, "walk", None), (FIRST, "merge", None), (SECOND, None, "RuntimeError: no room"),
        (THIRD, "apply", None), (THIRD, None, "the process ended in it (status 0)"),
    ]  # fmt: skip
    assert kept["rows"][0]["bar_us"] == 22.0
    assert kept["rows"][0]["limit"] == "latency"
    assert kept["skipped"] == ["commit-24-layers"]  # the second child, asked for it alone, began nothing
    assert "commit-24-layers" in fake.runs[2]
    assert FIRST not in fake.runs[2]
    assert fake.runs[1][fake.runs[1].index("--metrics") + 1] == "gpu__time_duration.sum,dram__bytes_read.sum"
    assert fake.runs[1][fake.runs[1].index("--launches") + 1] == "2"
    table = (tmp_path / "profile.md").read_text()
    assert f"| {FIRST} | `walk` | 30.5 | (16,8,1) | 2 |" in table
    assert "RuntimeError: no room" in table
    assert "some device" in table
    assert (tmp_path / "pages" / "0.csv").read_text() == PAGE


@pytest.mark.usefixtures("on_a_gpu")
def test_an_earlier_result_is_taken_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = [{"case": FIRST, "us": 1.0}, {"case": SECOND, "us": 2.0}, {"case": SECOND, "wrong": True, "failed": "x"}]
    (tmp_path / "old.json").write_text(json.dumps({"commit": "old", "rows": rows}))
    told = [{"case": SECOND, "begun": True}, {"case": SECOND, "marked": True}, {"case": SECOND, "ended": True}]
    fake = Fake(PAGE, told)
    monkeypatch.setattr("specc.bench.profile.subprocess.run", fake)
    words = ["--warm", "0", "--output", str(tmp_path), "--earlier", str(tmp_path / "old.json")]
    assert profile.main([*words, "--case", FIRST, "--case", SECOND]) == 0
    kept = json.loads((tmp_path / "profile.json").read_text())["rows"]
    assert kept[0] == {"case": FIRST, "us": 1.0, "commit": "old"}
    assert [(row["case"], row["kernel"]) for row in kept[1:]] == [(SECOND, "walk"), (SECOND, "merge")]
    assert FIRST not in fake.runs[1]


def test_metrics_stay_where_none_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "specc.bench.profile.subprocess.run", lambda *_, **__: type("Done", (), {"stdout": "no device\n"})()
    )
    assert profile.known_metrics("ncu") == METRICS


@pytest.mark.usefixtures("on_a_gpu")
@pytest.mark.parametrize(
    ("page", "says", "remedy"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n", "ERR_NVGPUCTRPERM", "root"),
        ("==ERROR== Failed to initialize the profiler: LibraryNotLoaded\n", "LibraryNotLoaded", "--query-metrics"),
        ("", "wrote none", "--query-metrics"),
    ],
)
def test_counters_that_cannot_be_read_have_a_code_and_a_remedy(
    page: str, says: str, remedy: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr("specc.bench.profile.subprocess.run", Fake(page, []))
    assert main(["bench", "profile", "--warm", "0", "--output", str(tmp_path)]) == 2
    text = capsys.readouterr().err
    assert "SPC298" in text
    assert says in text
    assert remedy in text
    assert "Traceback" not in text


def test_without_the_profiler_there_is_a_code_and_a_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert main(["bench", "profile", "--ncu", "no-such-command"]) == 2
    text = capsys.readouterr().err
    assert "SPC298" in text
    assert "no-such-command" in text
    assert "help:" in text
    with pytest.raises(DiagnosticError):
        profile.profiler("no-such-command")


def test_the_child_tells_what_failed_and_begins_nothing_late(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_room() -> Any:
        raise RuntimeError("no room")

    monkeypatch.setattr(profile_child, "CASES", {FIRST: Profiled(FIRST, no_room)})
    told = tmp_path / "told.jsonl"
    words = ["--told", str(told), "--case", FIRST]
    assert profile_child.main([*words, "--until", "0"]) == 0
    assert profile.told_by(told) == {}
    assert profile_child.main(words) == 0
    said = profile.told_by(told)[FIRST]
    assert (said["begun"], said["ended"], said["failed"]) == (True, True, "RuntimeError: no room")
    assert "marked" not in said


def test_cases_have_labels_and_some_meet_their_bars() -> None:
    assert all(case.label["case"] == name for name, case in CASES.items())
    assert {case.missed for case in CASES.values()} == {True, False}
    assert CASES["attention-64-smol-b8"].bar == pytest.approx(83, abs=0.5)
    assert markdown({"rows": [CASES[FIRST].label | {"failed": "x"}]}).count("\n") >= 3


def test_rows_need_no_counters() -> None:
    (row,) = rows_of([Launch("k", "(1, 1, 1)", "(32, 1, 1)", {})])
    assert row["limit"] == "unknown"
    assert row["launches"] == 1
