"""Rendering of diagnostics: layout, alignment, and nothing of a quoted file that could act on a terminal."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specc.diagnostics import (
    MAX_SHOWN,
    Diagnostic,
    DiagnosticError,
    Span,
    error,
    in_source_order,
    printable,
    render_json,
    render_text,
    warning,
)

LINE = "  num_speculative_token: 15"


def test_layout_is_that_of_the_language_guide() -> None:
    item = error(
        "SPC020",
        "unknown key `num_speculative_token`",
        Span("eagle.yaml", 11, 3, 24, LINE),
        label="not a key of `draft`",
        help="did you mean `num_speculative_tokens`?",
    )
    assert item.render() == (
        "error[SPC020]: unknown key `num_speculative_token`\n"
        "  --> eagle.yaml:11:3\n"
        "   |\n"
        "11 |   num_speculative_token: 15\n"
        "   |   ^^^^^^^^^^^^^^^^^^^^^ not a key of `draft`\n"
        "   = help: did you mean `num_speculative_tokens`?"
    )


def test_notes_of_several_lines_are_aligned_and_placeless_findings_print() -> None:
    text = warning("SPC390", "m", notes=["one\ntwo"], help="h").render()
    assert text == "warning[SPC390]: m\n  = help: h\n  = note: one\n          two"
    assert error("SPC390", "m", Span("f", 3, 1, 2), label="l").render() == "error[SPC390]: m\n --> f:3:1\n  = l"


@pytest.mark.parametrize(
    ("line", "column", "end", "shown", "carets"),
    [
        ("a\tb: 1", 3, 4, "a    b: 1", "     ^"),
        ("漢字: x", 5, 6, "漢字: x", "      ^"),
        ("漢字: x", 1, 3, "漢字: x", "^^^^"),
        ("e\u0301a: x", 3, 4, "e\u0301a: x", " ^"),
        ("\x1b[2Jk: v", 5, 6, "\\x1b[2Jk: v", "       ^"),
        ("k", 9, 12, "k", " ^"),
        ("", 1, 2, "", "^"),
    ],
)
def test_carets_stand_under_their_text(line: str, column: int, end: int, shown: str, carets: str) -> None:
    rows = error("SPC020", "m", Span("f", 1, column, end, line)).render().split("\n")
    assert rows[3] == f"1 | {shown}".rstrip()
    assert rows[4] == f"  | {carets}"


def test_long_lines_are_cut_around_the_span() -> None:
    line = "x" * 400 + "HERE" + "y" * 400
    rows = error("SPC020", "m", Span("f", 1, 401, 405, line)).render().split("\n")
    assert len(rows[3]) < 200
    start = rows[4].index("^")
    assert rows[3][start : start + 4] == "HERE"
    assert rows[4].count("^") == 4


@given(st.text(max_size=30), st.text(max_size=60), st.text(max_size=10), st.integers(1, 50), st.integers(0, 50))
def test_no_text_reaches_the_terminal_raw(message: str, line: str, file: str, column: int, width: int) -> None:
    span = Span(file, 1, column, column + width, line)
    text = error("SPC020", message, span, label=message, help=message, notes=[message]).render()
    assert all(char == "\n" or char.isprintable() for char in text)
    assert "\n" not in printable(message)


@given(st.text(), st.text())
def test_json_is_one_line_of_ascii_and_keeps_everything(message: str, line: str) -> None:
    item = Diagnostic("SPC020", "error", message, Span("f", 2, 3, 4, line), "l", "h", ("n",))
    text = render_json([item])
    assert text.isascii()
    assert "\n" not in text
    (read,) = json.loads(text)["diagnostics"]
    assert read["message"] == message
    assert read["span"] == {"file": "f", "line": 2, "column": 3, "end_column": 4}
    assert read["notes"] == ["n"]


def test_source_order_is_by_place_and_stable() -> None:
    items = [
        error("SPC020", str(i), span)
        for i, span in enumerate([None, Span("f", 2, 1, 2), Span("f", 1, 9, 10), Span("f", 1, 9, 11)])
    ]
    assert [item.message for item in in_source_order(items)] == ["2", "3", "1", "0"]


def test_an_error_holds_and_prints_its_findings() -> None:
    items = [error("SPC020", "one"), error("SPC021", "two")]
    problem = DiagnosticError(iter(items))
    assert problem.diagnostics == tuple(items)
    assert str(problem) == render_text(items)
    with pytest.raises(ValueError, match="at least one"):
        DiagnosticError([])


def test_spans_compare_by_place_only() -> None:
    assert Span("f", 1, 2, 3, "text") == Span("f", 1, 2, 3)
    assert str(Span("f.yaml", 1, 2, 3)) == "f.yaml:1:2"


def test_of_thousands_the_first_are_shown_and_the_rest_counted() -> None:
    items = [error("SPC024", f"number {place}", help="lower it") for place in range(MAX_SHOWN + 7)]
    text = render_text(items)
    assert f"number {MAX_SHOWN - 1}" in text
    assert f"number {MAX_SHOWN}" not in text
    assert text.endswith("\n\n… and 7 more")
    assert "more" not in render_text(items[:MAX_SHOWN])
    assert len(json.loads(render_json(items))["diagnostics"]) == len(items)
