"""Charts as inline SVG and HTML: acceptance by depth, heat maps, curves. Colours are the style sheet's.

Every chart has its numbers as text too: in the cells, beside the marks, or in a table behind a click.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from specc.report.markup import Content, Html, details, element, joined, text
from specc.report.results import ByDepth, Column, Curves, HeatMap, Mark, Series, Table
from specc.report.tables import badge, cell_text, number_text, table

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 28, 44
MAX_SERIES = 8
LABEL_HEIGHT = 13
SHADES = 9
"""Steps of the sequential colour of heat maps; classes `shade-0` (least) to `shade-8`."""


def svg(width: float, height: float, label: str, *content: Content) -> Html:
    """A drawing that shrinks with the page; `label` is what a screen reader says."""
    box = f"0 0 {coordinate(width)} {coordinate(height)}"
    # SVG's own attribute is spelled with a capital letter, which `element` does not write.
    opened = f'<svg viewBox="{box}" role="img" aria-label="{text(label)}" class="chart">'
    return element("div", Html(f"{opened}{joined(content)}</svg>"), class_="wide")


def coordinate(value: float) -> str:
    """A coordinate to a hundredth."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def label_at(x: float, y: float, shown: object, kind: str = "", **attributes: str) -> Html:
    """Text in a drawing."""
    return element("text", text(shown), x=coordinate(x), y=coordinate(y), class_=kind or None, **attributes)


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round numbers from at most `low` to at least `high`, two or more; values closer than a millionth are as one."""
    size = max(abs(low), abs(high))
    span = max(high - low, size * 1e-6, 1e-290) if high > low else max(size, 1e-290) if size else 1.0
    step = 10.0 ** math.floor(math.log10(span / wanted))
    step = next(step * factor for factor in (1, 2, 5, 10, 20) if span / (step * factor) <= wanted)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{number * step:.12g}") for number in range(first, max(last, first + 1) + 1)]


class Frame:
    """Axes of a drawing: from values to coordinates, with grid lines and labels."""

    def __init__(self, xs: Sequence[float], ys: Sequence[float]) -> None:
        self.x_ticks, self.y_ticks = ticks(min(xs), max(xs), 8), ticks(min(ys), max(ys))

    def x(self, value: float) -> float:
        low, high = self.x_ticks[0], self.x_ticks[-1]
        return LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        low, high = self.y_ticks[0], self.y_ticks[-1]
        return HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    def drawn(self, x_title: str, y_title: str) -> Html:
        """Grid lines, marks and titles."""
        parts: list[Html] = []
        for value in self.y_ticks:
            y = coordinate(self.y(value))
            parts.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"))
            parts.append(label_at(LEFT - 6, self.y(value) + 4, number_text(value, None), "tick end"))
        for value in self.x_ticks:
            parts.append(label_at(self.x(value), HEIGHT - BOTTOM + 18, number_text(value, None), "tick middle"))
        parts.append(label_at((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, x_title, "axis middle"))
        parts.append(label_at(8, 12, y_title, "axis"))
        return joined(parts)


def curves(found: Curves) -> Html:
    """Lines with a legend, marks on the x axis, and the numbers as a table."""
    series = found.series[:MAX_SERIES]
    points = [(x, y) for line in series for x, y in zip(line.x, line.y, strict=True) if y is not None]
    title = element("figcaption", found.title or found.name.replace("_", " "))
    if not points:
        return element("figure", title, _legend(series), element("p", "There are no points.", class_="note"))
    frame = Frame([x for x, _ in points] + [mark.x for mark in found.marks], [y for _, y in points])
    marks = [_mark(mark, number, frame) for number, mark in enumerate(found.marks)]
    lines = [_line(line, number, frame) for number, line in enumerate(series)]
    picture = svg(WIDTH, HEIGHT, f"{found.title or found.name}: {found.y_title} over {found.x_title}",
                  frame.drawn(found.x_title, found.y_title), *marks, *lines)  # fmt: skip
    left = len(found.series) - len(series)
    note = " ".join([*([f"{left} more series are in the table."] if left > 0 else []), found.note]).strip()
    numbers = details("numbers", table(_numbers(found)))
    return element(
        "figure", title, _legend(series), picture, numbers, *([element("p", note, class_="note")] * bool(note))
    )


def _mark(mark: Mark, number: int, frame: Frame) -> Html:
    """A line at a place of the x axis; labels stand one below the other, on the side that has more room."""
    x, right = frame.x(mark.x), mark.x > (frame.x_ticks[0] + frame.x_ticks[-1]) / 2
    line = element("line", x1=coordinate(x), x2=coordinate(x), y1=TOP, y2=HEIGHT - BOTTOM, class_="mark")
    y = TOP + LABEL_HEIGHT * (1 + number % ((HEIGHT - TOP - BOTTOM) // LABEL_HEIGHT))
    shown = f"{mark.label} {number_text(mark.x, None)}"
    return joined([line, label_at(x + (-4 if right else 4), y, shown, "tick end" if right else "tick")])


def _legend(series: Sequence[Series]) -> Html:
    items = [
        element("li", element("span", class_=f"key series-{number}"), line.label, " ", badge(line.kind))
        for number, line in enumerate(series)
    ]
    return element("ul", *items, class_="legend")


def _line(line: Series, number: int, frame: Frame) -> Html:
    """A line, broken where a value is missing, with its points."""
    runs: list[list[tuple[float, float]]] = [[]]
    for x, y in zip(line.x, line.y, strict=True):
        if y is None:
            runs.append([])
        else:
            runs[-1].append((frame.x(x), frame.y(y)))
    kind = f"series-{number}" + (" dashed" if line.kind == "reported" else "")
    parts = []
    for run in runs:
        points = " ".join(f"{coordinate(x)},{coordinate(y)}" for x, y in run)
        parts.append(element("polyline", points=points, class_=f"line {kind}") if len(run) > 1 else Html(""))
        parts += [element("circle", cx=coordinate(x), cy=coordinate(y), r=4, class_=f"dot {kind}") for x, y in run]
    return joined(parts)


def _numbers(found: Curves) -> Table:
    """The points of all series."""
    rows = [
        {"series": line.label, "x": x, "y": y, "kind": line.kind}
        for line in found.series
        for x, y in zip(line.x, line.y, strict=True)
    ]
    columns = (Column(key="series"), Column(key="x", title=found.x_title), Column(key="y", title=found.y_title))
    return Table(name=found.name, title=found.title, columns=columns, rows=tuple(rows))


def heat_map(found: HeatMap) -> Html:
    """A table whose cells are shaded by their value; the best one is framed."""
    values = [value for row in found.values for value in row if value is not None]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    peak = found.peak()
    head = [element("th", f"{found.y.title} \\ {found.x.title}", scope="col")]
    head += [element("th", cell_text(value), scope="col", class_="number") for value in found.x.values]
    rows = []
    for y, (mark, row) in enumerate(zip(found.y.values, found.values, strict=True)):
        cells = [_shaded(value, low, high, found, (y, x) == peak) for x, value in enumerate(row)]
        rows.append(element("tr", element("th", cell_text(mark), scope="row"), *cells))
    body = element("table", element("thead", element("tr", *head)), element("tbody", *rows), class_="heat")
    unit = element("span", f" [{found.unit}]", class_="unit") if found.unit else ""
    title = element("figcaption", found.title or found.name.replace("_", " "), unit, " ", badge(found.kind))
    told = " ".join(filter(None, (_framed(found), found.note)))
    note = [element("p", told, class_="note")] if told else []
    return element("figure", title, element("div", body, class_="wide", tabindex="0"), *note)


def _framed(found: HeatMap) -> str:
    """Which value is framed, and where."""
    peak = found.peak()
    if peak is None:
        return ""
    y, x = peak
    value, unit = found.values[y][x], f" {found.unit}" if found.unit else ""
    said = "" if found.best is not None else "the best, "
    shown = "no value" if value is None else f"{said}{number_text(value, found.digits)}{unit}"
    place = f"{found.x.title} {cell_text(found.x.values[x])}, {found.y.title} {cell_text(found.y.values[y])}"
    return f"Framed: {shown} at {place}."


def _shaded(value: float | None, low: float, high: float, found: HeatMap, best: bool) -> Html:
    if value is None:
        return element("td", "\u2013", class_="number")
    shade = round((value - low) / (high - low) * (SHADES - 1)) if high > low else 0
    kind = f"number shade-{shade}" + (" best" if best else "")
    return element("td", number_text(value, found.digits), class_=kind, title="best" if best else None)


def by_depth(found: Sequence[ByDepth]) -> Html:
    """A bar for each depth, one group for each label."""
    groups = []
    for item in found:
        bars = [_bar(depth, share) for depth, share in enumerate(item.shares, 1)]
        groups.append(
            element("div", element("h4", item.label, " ", badge(item.kind)), element("ol", *bars, class_="bars"))
        )
    title = element(
        "figcaption", "Acceptance by depth: share of the steps that accepted at least so many drafted tokens"
    )
    return element("figure", title, element("div", *groups, class_="groups"))


def _bar(depth: int, share: float) -> Html:
    inner = element("rect", x=0, y=0, width=coordinate(share * 100), height=10, class_="bar")
    drawing = Html(f'<svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">{inner}</svg>')
    return element(
        "li", element("span", depth, class_="depth"), drawing, element("span", f"{share:.0%}", class_="share")
    )
