"""YAML 1.2 core values, spans, merges, aliases."""

from __future__ import annotations

import contextlib
import math
import time
from typing import Any

import pytest

from specc.codes import CODES
from specc.diagnostics import SpecError
from specc.spec.compose import compose
from specc.spec.nodes import Text
from specc.spec.source import SourceMap


def value_of(text: str) -> Any:
    composed = compose(Text(text, "t.yaml"))
    assert composed.diagnostics == ()
    return composed.value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1e-3", 0.001),
        ("1E+2", 100.0),
        (".5", 0.5),
        ("1.", 1.0),
        ("-.5e1", -5.0),
        ("0x1F", 31),
        ("0o17", 15),
        ("-0", 0),
        ("+12", 12),
        ("on", "on"),
        ("off", "off"),
        ("yes", "yes"),
        ("No", "No"),
        ("y", "y"),
        ("12:30", "12:30"),
        ("1_000", "1_000"),
        ("0b11", "0b11"),
        ("2001-12-14", "2001-12-14"),
        ("=", "="),
        ("~", None),
        ("Null", None),
        ("nULL", "nULL"),
        ("TRUE", True),
        ("tRUE", "tRUE"),
        ("'1'", "1"),
        ('"true"', "true"),
        ("!!str 1", "1"),
        ("!!float 1", 1.0),
        ("-.inf", -math.inf),
    ],
)
def test_scalar_follows_yaml_1_2_core(text: str, expected: object) -> None:
    value = value_of(f"k: {text}")["k"]
    assert value == expected
    assert type(value) is type(expected)


def test_nan_is_not_a_number() -> None:
    assert math.isnan(value_of("k: .NaN")["k"])


def test_merge_gives_way_to_own_keys_wherever_it_stands() -> None:
    text = "b: &b {x: 1, y: 2}\nc: &c {y: 3, z: 4}\none: {<<: *b, x: 9}\ntwo: {x: 9, <<: [*b, *c]}\n"
    value = value_of(text)
    assert value["one"] == {"x": 9, "y": 2}
    assert value["two"] == {"x": 9, "y": 2, "z": 4}


def test_merged_values_point_at_where_they_were_written() -> None:
    text = "b: &b {x: {p: 1, q: 2}, y: 2}\none:\n  x: {p: 3}\n  <<: *b\n"
    source = SourceMap("t.yaml", compose(Text(text, "t.yaml")).places)
    assert str(source.span("one", "x", "p")) == "t.yaml:3:10"
    assert str(source.span("one", "y")) == "t.yaml:1:28"
    assert not source.has("one", "x", "q"), "an overridden mapping leaves nothing behind"


def test_quoted_merge_sign_is_a_plain_key() -> None:
    assert value_of('"<<": {x: 1}') == {"<<": {"x": 1}}


@pytest.mark.parametrize("line_break", ["\n", "\r\n", "\r"])
def test_spans_count_every_kind_of_line_break(line_break: str) -> None:
    text = line_break.join(["a: 1", "b:", "  c: [10, é, 漢字]"])
    source = SourceMap("t.yaml", compose(Text(text, "t.yaml")).places)
    span = source.span("b", "c", 2)
    assert span is not None
    assert (span.line, span.column, span.end_column) == (3, 14, 16)
    assert span.source_line == "  c: [10, é, 漢字]"


def test_span_falls_back_to_the_nearest_parent() -> None:
    source = SourceMap("t.yaml", compose(Text("a:\n  b: {c: 1}\n", "t.yaml")).places)
    assert str(source.span("a", "b", "x", "y")) == "t.yaml:2:6"
    assert str(source.span("a", "x")) == "t.yaml:1:1", "an indented mapping is shown by its key"
    assert str(source.key_span("a", "b", "c")) == "t.yaml:2:7"
    assert SourceMap("none").span("a") is None


def test_later_findings_survive_an_earlier_one() -> None:
    composed = compose(Text("a: !x 1\nb: 010\nb: 3\n4: d\ne: 5\n", "t.yaml"))
    assert [item.code for item in composed.diagnostics] == ["SPC005", "SPC009", "SPC006", "SPC010"]
    assert composed.value == {"e": 5}


@pytest.mark.parametrize(
    "text",
    [
        CODES["SPC007"].example.replace("1, ", "&x 1, ", 1),
        "a: &a {k: 1}\n" + "".join(f"m{i}: {{<<: *a}}\n" for i in range(6000)),
        "a: &a [" + "1, " * 8000 + "]\nb: [" + "*a, " * 8000 + "]\n",
        "{" * 10_000,
        "- " * 10_000,
        "? " * 10_000,
        "a: " + "&x " * 10_000,
        "[" + "'" * 100_000,
        "k: " + "9" * 200_000,
        "a: |\n" + " x\n" * 60_000,
    ],
    ids=["laughs", "merges", "wide", "braces", "dashes", "questions", "anchors", "quotes", "digits", "lines"],
)
def test_hostile_text_is_answered_quickly(text: str) -> None:
    start = time.process_time()
    with contextlib.suppress(SpecError):
        compose(Text(text, "t.yaml"))
    assert time.process_time() - start < 20, "not a speed test: the point is that nothing explodes"
