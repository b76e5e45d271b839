"""Tables of result files as HTML: numbers right, units in the heading, how a number came about beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from specc.report.markup import Content, Html, details, element, joined
from specc.report.results import Column, Results, Table

MAX_ROWS = 200
MAX_CELL = 160
EXPLAINED = {
    "measured": "measured by the command below on the device below",
    "simulated": "simulated: the acceptance was planted, not a drafter's",
    "modelled": "modelled, not measured",
    "reported": "the paper's figure, as reported there",
}


def badge(kind: str) -> Html:
    """`reported` and so on; what was measured needs no label."""
    return Html("") if kind == "measured" else element("span", kind, class_=f"kind {kind}", title=EXPLAINED[kind])


def number_text(value: float, digits: int | None) -> str:
    """A number with `digits` after the point, else with four significant ones."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if digits is not None:
        return f"{value:.{digits}f}"
    if isinstance(value, int) or (value == int(value) and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:.4g}"


def cell_text(value: Any, digits: int | None = None) -> str:
    """What a cell shows; nested values as JSON."""
    if value is None:
        return "\u2013"
    if isinstance(value, float) and value - value != 0:  # NaN and infinities
        return str(value)
    if isinstance(value, (bool, int, float)):
        return number_text(value, digits)
    shown = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return shown if len(shown) <= MAX_CELL else shown[:MAX_CELL] + "\u2026"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_numeric(column: Column, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the cells of a column are numbers, as far as it has any."""
    values = [row[column.key] for row in rows if row.get(column.key) is not None]
    return bool(values) and all(_is_number(value) for value in values)


def table(found: Table, limit: int = MAX_ROWS) -> Html:
    """One table with its note; rows past the limit are counted."""
    columns = found.shown_columns()
    labelled = any(row.get("kind", "measured") != "measured" for row in found.rows)
    kinds = ["number" if _is_numeric(column, found.rows) else None for column in columns]
    heads = [_heading(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    heads += [element("th", "", scope="col")] if labelled else []
    rows = []
    for row in found.rows[:limit]:
        kind = str(row.get("kind", "measured"))
        cells = [
            element("td", cell_text(row.get(column.key), column.digits), class_=shown)
            for column, shown in zip(columns, kinds, strict=True)
        ]
        cells += [element("td", badge(kind))] if labelled else []
        rows.append(element("tr", *cells, class_=kind if kind == "reported" else None))
    left = len(found.rows) - limit
    more = [element("p", f"{left} more rows are in the file.", class_="note")] if left > 0 else []
    body = element(
        "div",
        element("table", element("thead", element("tr", *heads)), element("tbody", *rows)),
        class_="wide",
        tabindex="0",
    )
    note = [element("p", found.note, class_="note")] if found.note else []
    title = found.title or found.name.replace("_", " ")
    return element("figure", element("figcaption", title), body, *more, *note)


def _heading(column: Column, kind: str | None) -> Html:
    title = column.title or column.key.replace("_", " ")
    unit: list[Content] = [element("span", f" [{column.unit}]", class_="unit")] if column.unit else []
    return element("th", title, *unit, scope="col", class_=kind)


def sources(results: Results) -> Html:
    """What made the numbers of a file."""
    pairs = [
        joined([element("dt", label), element("dd", element("code", value) if label != "device" else value)])
        for label, value in results.source
    ]
    return element("dl", *pairs, class_="source")


def raw_table(results: Results) -> Html:
    """The rows of a file that says nothing of how to show them, behind a click."""
    return joined(details(f"{len(item.rows)} rows", table(item)) for item in results.tables)
