"""The report: result files are checked; whatever they hold, the page is well formed, shows it, and loads nothing."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.cli import main
from specc.diagnostics import DiagnosticError
from specc.report.charts import ticks
from specc.report.markup import anchor, element, text, visible
from specc.report.page import page
from specc.report.plots import save_plots
from specc.report.results import HeatMap, Results, Table, read_results, results_of
from specc.report.timeline import first_steps
from specc.runtime.trace import RunIdentity, StepTrace, prefill_trace, write_trace
from specc.trace.read import read_trace
from tests.unit.report_reading import Reading

RESULT: dict[str, Any] = {
    "title": "EAGLE-Pangu",
    "device": "a processor",
    "gpu": {"gpu": "NVIDIA H200", "torch": "2.11", "memory": 1},
    "commit": "abc123",
    "command": "specc bench eagle-pangu",
    "tables": [
        {
            "name": "speed-up",
            "columns": [{"key": "set"}, {"key": "ratio", "title": "Speed-up", "unit": "x", "digits": 2}],
            "rows": [{"set": "chat", "ratio": 1.712}, {"set": "chat", "ratio": 1.27, "kind": "reported"}],
        }
    ],
    "heat_maps": [
        {
            "name": "budget",
            "x": {"title": "depth", "values": [2, 4]},
            "y": {"title": "nodes", "values": [8, 16]},
            "values": [[1.1, 1.25], [None, 1.5]],
        }
    ],
    "curves": [
        {
            "name": "sensitivity",
            "x_title": "p",
            "y_title": "speed-up",
            "series": [{"label": "tree", "kind": "simulated", "x": [0, 0.5, 1], "y": [0.7, None, 2.4]}],
            "marks": [{"label": "break-even", "x": 0.4}],
        }
    ],
    "by_depth": [{"label": "gsm8k", "shares": [0.8, 0.25]}],
}
HOSTILE = "<script>alert(1)</script>\"'>&amp;<!-- \u202e\x1b[31m"

texts = st.one_of(st.text(max_size=6), st.just(HOSTILE))
cells = st.one_of(texts, st.integers(), st.floats(), st.booleans(), st.none(), st.lists(st.integers(), max_size=2))
table_rows = st.dictionaries(texts, cells, max_size=3)
numbers = st.floats(-1e9, 1e9)


@st.composite
def result_files(draw: st.DrawFn) -> dict[str, Any]:
    """A result file with any text and numbers in it."""
    width, height = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    points = draw(st.integers(0, 3))
    maybe = st.one_of(st.none(), numbers)
    axes = {key: {"title": draw(texts), "values": draw(st.lists(texts, min_size=size, max_size=size))}
            for key, size in (("x", width), ("y", height))}  # fmt: skip
    rows = st.lists(maybe, min_size=width, max_size=width)
    series = {"label": draw(texts), "x": draw(st.lists(numbers, min_size=points, max_size=points)),
              "y": draw(st.lists(maybe, min_size=points, max_size=points))}  # fmt: skip
    curve = {"name": draw(texts), "x_title": draw(texts), "y_title": draw(texts), "series": [series]}
    curve["marks"] = [{"label": draw(texts), "x": draw(numbers)}]
    return {
        **{key: draw(texts) for key in ("title", "note", "device", "commit", "command")},
        "tables": [
            {"name": draw(texts), "rows": draw(st.lists(st.dictionaries(texts, cells, max_size=3), max_size=3))}
        ],
        "heat_maps": [{"name": draw(texts), **axes, "values": draw(st.lists(rows, min_size=height, max_size=height))}],
        "curves": [curve],
        "by_depth": [{"label": draw(texts), "shares": draw(st.lists(st.floats(0, 1), max_size=3))}],
    }


@settings(max_examples=25, deadline=None)
@given(result_files(), texts)
def test_a_page_of_anything_is_well_formed(found: dict[str, Any], title: str) -> None:
    for row in found["tables"][0]["rows"]:
        row.pop("kind", None)
    reading = Reading(page([results_of("a", found), results_of("b", found)], title=title))
    assert reading.problems == []
    for shown in (title, found["note"], found["curves"][0]["series"][0]["label"], found["by_depth"][0]["label"]):
        assert visible(shown) in reading.text


@given(st.text(), st.text())
def test_text_is_escaped_once(one: str, other: str) -> None:
    made = element("p", one, element("code", other), title=one)
    reading = Reading(f"<html>{made}</html>")
    assert reading.text == visible(one) + visible(other)
    assert [item for item in reading.problems if "policy" not in item] == []
    assert text(made) == made


@given(st.lists(st.text(max_size=3), min_size=2, max_size=2), st.lists(st.text(max_size=3), min_size=2, max_size=2))
def test_anchors_differ_where_their_parts_do(one: list[str], other: list[str]) -> None:
    assert (anchor(*one) == anchor(*other)) == (one == other)


@given(numbers, numbers)
def test_marks_of_an_axis_enclose_its_values(one: float, other: float) -> None:
    low, high = sorted((one, other))
    marks = ticks(low, high)
    assert 2 <= len(marks) <= 8
    assert marks == sorted(set(marks))
    grain = (marks[1] - marks[0]) * 1e-6
    assert marks[0] - grain <= low <= high <= marks[-1] + grain


def test_a_result_is_shown_with_its_source() -> None:
    reading = Reading(page([results_of("eagle-pangu", RESULT)]))
    for shown in (
        "NVIDIA H200, torch 2.11",
        "abc123",
        "specc bench eagle-pangu",
        "reported",
        "1.71",
        "simulated",
        "80%",
    ):
        assert shown in reading.text
    assert reading.page.count('class="number shade-8 best"') == 1
    assert "Framed: the best, 1.50 at depth 4, nodes 16." in reading.text
    other = page([results_of("a", changed("heat_maps", best=[0, 1]))])
    assert re.findall(r'best" title="best">([^<]*)<', other) == ["1.25"]
    assert "Framed: 1.25 at depth 4, nodes 8." in Reading(other).text


def test_labels_of_marks_that_lie_close_do_not_cover_each_other() -> None:
    marks = [{"label": f"place {number}", "x": 0.4 + number / 1000} for number in range(3)]
    shown = page([results_of("a", changed("curves", marks=marks))])
    heights = [re.search(rf'y="([0-9.]+)"[^>]*>place {number} ', shown) for number in range(3)]
    found = [float(height.group(1)) for height in heights if height is not None]
    assert len(found) == 3
    assert all(later - one >= 12 for one, later in pairwise(found))


def test_the_repositorys_own_results_can_be_shown() -> None:
    folder = Path(__file__).resolve().parents[2] / "specc" / "bench" / "results"
    found = read_results(folder)
    assert len(found) == len(list(folder.glob("*.json")))
    assert Reading(page(found)).problems == []


def test_the_peak_is_the_largest_value_unless_stated() -> None:
    shape = RESULT["heat_maps"][0]
    assert HeatMap.model_validate(shape).peak() == (1, 1)
    assert HeatMap.model_validate(shape | {"best": [0, 1]}).peak() == (0, 1)
    assert HeatMap.model_validate(shape | {"values": [[None, None]] * 2}).peak() is None


def test_long_tables_are_cut_and_say_so() -> None:
    long = Table(name="a", rows=tuple({"n": number} for number in range(203)))
    reading = Reading(page([Results(name="a", title="t", tables=(long,))]))
    assert "3 more rows are in the file." in reading.text
    assert [f">{number}</td>" in reading.page for number in (199, 200)] == [True, False]


def changed(part: str, **changes: Any) -> dict[str, Any]:
    """The result with keys of the first entry of one part changed."""
    first, *others = RESULT[part]
    return RESULT | {part: [first | changes, *others]}


BROKEN: dict[str, tuple[str, str, str]] = {
    "not JSON": ("{", "SPC486", "is not JSON"),
    "a list": ("[]", "SPC486", "is not a JSON object"),
    "few rows": (json.dumps(changed("heat_maps", values=[[1.0, 2.0]])), "SPC486", "is not 2 rows of 2 numbers"),
    "best outside": (json.dumps(changed("heat_maps", best=[2, 0])), "SPC486", "`best` lies outside"),
    "not a number": (json.dumps(changed("heat_maps", values=[[1, 2], [3, float("nan")]])), "SPC486", "heat_maps.0"),
    "an unknown kind": (json.dumps(changed("tables", rows=[{"kind": "guessed"}])), "SPC486", "`kind` is 'guessed'"),
    "fewer y": (
        json.dumps(changed("curves", series=[{"label": "a", "x": [1, 2], "y": [1]}])),
        "SPC486",
        "curves.0.series.0`: 2 x for 1 y",
    ),
    "a share of more": (json.dumps(changed("by_depth", shares=[1.5])), "SPC486", "by_depth.0.shares.0"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_result_is_refused(name: str, tmp_path: Path) -> None:
    content, code, message = BROKEN[name]
    (tmp_path / "a.json").write_text(content, encoding="utf-8")
    (tmp_path / "b.json").write_text(json.dumps(RESULT), encoding="utf-8")
    with pytest.raises(DiagnosticError) as caught:
        read_results(tmp_path)
    assert [item.code for item in caught.value.diagnostics] == [code]
    assert message in caught.value.diagnostics[0].message


def test_missing_results_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "report.html")
    assert main(["report", str(tmp_path), "-o", out]) == 2
    assert main(["report", str(tmp_path / "none.json"), "-o", out]) == 2
    assert main(["report", "-o", out]) == 2
    said = capsys.readouterr().err
    assert [said.count(code) for code in ("SPC485", "SPC487")] == [2, 1]


IDENTITY = RunIdentity(seed=3, spec="s" * 64, pipeline="p" * 64)


def traced(folder: Path, timing: dict[str, float], name: str = "chat") -> Path:
    """A trace of two batches; the first has two requests, of which one takes 20 steps."""
    lines = [prefill_trace(0, 7, 1.0), prefill_trace(1, 4, 1.0)]
    lines += [StepTrace(0, n, (7, 7, 8), (-1, 0, 0), (0, 1), 1, 7, (7, 7), timing) for n in range(1, 21)]
    lines += [prefill_trace(2, 7, 2.0), StepTrace(2, 1, (7,), (-1,), (0,), 0, 1, (1,), timing)]
    path = folder / "trace.jsonl"
    write_trace(path, lines, {0: name, 1: "b", 2: "c"}, IDENTITY)
    return path


def test_the_command_writes_a_page_of_results_and_a_trace(tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    (results / "a.json").write_text(json.dumps(RESULT), encoding="utf-8")
    trace = traced(tmp_path, {"draft": 0.01, "verify": 0.02}, HOSTILE)
    out, plots = tmp_path / "report.html", tmp_path / "plots"
    words = ["report", str(results), "--trace", str(trace), "-o", str(out), "--plots", str(plots)]
    assert main(words) == 0
    reading = Reading(out.read_text(encoding="utf-8"))
    assert reading.problems == []
    assert "3 requests, 44 tokens in 21 steps" in reading.text
    assert "seed 3" in reading.text
    assert visible(HOSTILE) in reading.text
    assert sorted(path.name for path in plots.iterdir()) == ["a-budget.png", "a-by-depth.png", "a-sensitivity.png"]


def test_the_timeline_shows_the_first_steps_of_the_first_batch(tmp_path: Path) -> None:
    trace = read_trace(traced(tmp_path, {"draft": 0.01, "verify": 0.02}))
    groups = first_steps(trace)
    assert [group[0].step for group in groups] == list(range(1, 17))
    split = page([], trace)
    assert split.count('class="stage-1"') == split.count('class="stage-3"') == 16
    whole = page([], read_trace(traced(tmp_path, {"step": 0.03})))
    assert whole.count('class="stage-6"') == 16


def test_plots_are_drawn_of_any_numbers(tmp_path: Path) -> None:
    found = changed("heat_maps", values=[[None, None], [None, None]], name="a $b$/../c")
    paths = save_plots(found | {"title": "$x_{"}, tmp_path, "eval")
    assert [path.name for path in paths] == ["eval-a-b-c.png", "eval-sensitivity.png", "eval-by-depth.png"]
    again = [path.read_bytes() for path in paths]
    save_plots(found | {"title": "$x_{"}, tmp_path, "eval")
    assert [path.read_bytes() for path in paths] == again
    assert all(content.startswith(b"\x89PNG") for content in again)
