"""`specc trace`: exit codes, output, and what it says of files that are no traces."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specc.cli import main
from specc.runtime.trace import RunIdentity, StepTrace, prefill_trace, trace_line

ROOT = Path(__file__).resolve().parents[2]
IDENTITY = RunIdentity(seed=0, spec="s" * 64, pipeline="p" * 64)
STEPS = (
    prefill_trace(0, 7, 1.0),
    StepTrace(0, 1, (7, 8, 9), (-1, 0, 0), (0, 2), 1, 5, (9, 5), {"draft": 0.25, "verify": 0.5}),
    StepTrace(0, 2, (5, 6), (-1, 0), (0,), 0, 3, (3,), {"draft": 0.25, "verify": 0.5}),
)


def lines() -> list[dict[str, Any]]:
    """The records of a small trace."""
    found: list[dict[str, Any]] = [json.loads(trace_line(step, "chat", IDENTITY)) for step in STEPS]
    return found


def text_of(records: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "a.jsonl"
    path.write_text(text_of(lines()), encoding="utf-8")
    return path


def edited(number: int, **changes: Any) -> str:
    """The trace's text with keys of one line changed; None takes a key out."""
    records = lines()
    records[number] |= changes
    return text_of([{key: value for key, value in record.items() if value is not None} for record in records])


BROKEN: dict[str, tuple[str, str, str]] = {
    "no lines": ("", "SPC480", "has no lines"),
    "not JSON": (text_of(lines()).replace('{"', "{'", 1), "SPC481", "line 1: this is not JSON"),
    "a list": ("[1]\n" + text_of(lines()), "SPC481", "line 1: "),
    "a blank line": (text_of(lines()[:1]) + "\n" + text_of(lines()[1:]), "SPC481", "line 2: this is not JSON"),
    "a key missing": (edited(1, bonus=None), "SPC481", "line 2: `bonus`: the key is missing"),
    "text for a number": (edited(1, bonus="5"), "SPC481", "line 2: `bonus`: Input should be a valid integer"),
    "true for a number": (edited(1, accept_length=True), "SPC481", "line 2: `accept_length`"),
    "not a number": (edited(1, timing={"draft": float("nan")}), "SPC481", "NaN is not a number of JSON"),
    "a negative time": (edited(1, timing={"draft": -1.0}), "SPC481", "line 2: `timing.draft`"),
    "a parent behind": (edited(1, parent=[-1, 2, 0]), "SPC481", "line 2: node 1 has the parent 2"),
    "two roots": (edited(1, parent=[-1, -1, 0]), "SPC481", "line 2: node 1 has the parent -1"),
    "fewer parents": (edited(1, parent=[-1, 0]), "SPC481", "`parent` has 2 entries, `drafted` has 3"),
    "a path off the tree": (edited(1, path=[0, 3]), "SPC481", "from node 0 to 3, which is not its child"),
    "a path from elsewhere": (edited(1, path=[1, 2]), "SPC481", "`path` begins at the root"),
    "a long path": (edited(1, accept_length=2), "SPC481", "not the root and 2 accepted ones"),
    "another text": (edited(1, emitted=[8, 5]), "SPC481", "`emitted` is not the accepted nodes' tokens"),
    "a prefill that drafts": (edited(0, accept_length=1), "SPC481", "line 1: step 0 is the prefill"),
    "cut off": (text_of(lines())[:-9], "SPC482", "line 3: the file ends within this line"),
    "another version": (edited(2, schema="specc.trace/2"), "SPC483", "line 3: the schema is `specc.trace/2`"),
    "two runs": (text_of(lines()) * 2, "SPC484", "request 0 goes on with step 0; its step 3 has not come"),
    "another seed": (edited(2, seed=1), "SPC484", "line 3: `seed` is 1, on line 1 it is 0"),
    "a step missing": (text_of([lines()[0], lines()[2]]), "SPC484", "goes on with step 2; its step 1 has not come"),
    "another name": (edited(2, name="other"), "SPC484", "line 3: request 0 is called `other`, and `chat` before"),
    "another root": (edited(2, drafted=[4, 6]), "SPC484", "the root of request 0 is token 4, but the last token"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused_with_its_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, code, message = BROKEN[name]
    path = tmp_path / "broken.jsonl"
    path.write_text(text, encoding="utf-8")
    assert main(["trace", "summary", str(path)]) == 2
    said = capsys.readouterr().err
    assert f"error[{code}]" in said
    assert message in said


def test_a_whole_last_line_needs_no_newline(trace: Path) -> None:
    trace.write_text(text_of(lines()).rstrip("\n"), encoding="utf-8")
    assert main(["trace", "summary", str(trace)]) == 0


def test_findings_are_bounded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("x\n" * 1000, encoding="utf-8")
    assert main(["trace", "summary", str(path), "--json"]) == 2
    assert len(json.loads(capsys.readouterr().out)["diagnostics"]) == 10


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "No such file"),
        (lambda path: path.mkdir(), "Is a directory"),
        (lambda path: path.write_bytes(b'{"a": "\xff"}\n'), "is not UTF-8 text: byte 7"),
    ],
)
def test_what_is_no_text_file_is_refused(
    make: Callable[[Path], object], message: str, trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    make(other)
    assert main(["trace", "diff", str(trace), str(other)]) == 2
    said = capsys.readouterr().err
    assert "error[SPC480]" in said
    assert message in said


def test_diff_says_equal_with_other_timings(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "b.jsonl"
    other.write_text(edited(1, timing={"draft": 0.5, "verify": 0.5}), encoding="utf-8")
    assert main(["trace", "diff", str(trace), str(other), "--timing"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "equal: 1 requests"
    assert out[-2].split() == ["draft", "250.000", "375.000", "1.500", "2", "2"]


def test_diff_says_the_first_difference(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "b.jsonl"
    other.write_text(edited(2, drafted=[5, 1]), encoding="utf-8")
    assert main(["trace", "diff", str(trace), str(other)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "request 0 (chat): step 2: `drafted` differs first at node 1: 6 in A and 1 in B ([5, 6], [5, 1]); "
        "the texts are equal, 4 tokens",
        "1 requests differ, 0 are equal",
    ]
    assert main(["trace", "diff", str(trace), str(other), "--texts"]) == 0
    assert main(["trace", "diff", str(trace), str(other), "--ignore", "drafted"]) == 0
    capsys.readouterr()
    assert main(["trace", "diff", str(trace), str(other), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["equal"], found["differences"][0]["a"], found["differences"][0]["b"]) == (False, [5, 6], [5, 1])


def test_perfetto_writes_a_document(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.json"
    assert main(["trace", "perfetto", str(trace), "-o", str(out)]) == 0
    events = json.loads(out.read_text())["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == 1 + 2 * 3
    assert main(["trace", "perfetto", str(trace), "-o", str(tmp_path / "none" / "a.json")]) == 2


def test_names_reach_the_terminal_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(text_of([record | {"name": "\x1b[31mred"} for record in lines()]), encoding="utf-8")
    assert main(["trace", "summary", str(path)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\\x1b[31mred" in out


def test_traces_are_read_without_torch(trace: Path) -> None:
    """A trace is looked at on any machine, and at once."""
    program = (
        "import sys\nfrom specc.cli import main\n"
        f"assert main(['trace', 'summary', {str(trace)!r}]) == 0\nprint('TORCH', 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.rstrip().endswith("TORCH False")
