"""Plots of result files as PNG, by matplotlib (extra `bench`): heat maps, curves, acceptance by depth."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specc.diagnostics import DiagnosticError, error
from specc.report.markup import visible
from specc.report.results import ByDepth, Curves, HeatMap, Results, results_of
from specc.report.tables import number_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#2a78d6", "#1baf7a", "#eda100", "#4a3aa7", "#e34948", "#008300", "#e87ba4", "#eb6834")
DOTS_PER_INCH = 120


def save_plots(found: Results | Mapping[str, Any], folder: Path, stem: str = "") -> list[Path]:
    """Write `<stem>-<name>.png` for every heat map and set of curves, `<stem>-by-depth.png`; returns the paths.

    `found`: a result file, read or as its JSON object; `stem` is its name unless given. Raises DiagnosticError
    (SPC488) without matplotlib, ValidationError for an object that is no result.
    """
    results = found if isinstance(found, Results) else results_of(stem or "results", found)
    stem = stem or results.name
    jobs: list[tuple[str, Callable[[Axes], None]]] = []
    jobs += [(item.name, partial(_heat_map, found=item)) for item in results.heat_maps]
    jobs += [(item.name, partial(_curves, found=item)) for item in results.curves]
    jobs += [("by-depth", partial(_by_depth, found=results.by_depth))] if results.by_depth else []
    if jobs and importlib.util.find_spec("matplotlib") is None:
        raise DiagnosticError([error("SPC488", "plots need matplotlib", help="pip install 'specc[bench]'")])
    paths = []
    for name, draw in jobs:
        figure, axes = _figure(results)
        draw(axes)
        path = folder / f"{stem}-{_file_part(name)}.png"
        figure.savefig(path, metadata={"Software": None})  # the same bytes from the same numbers
        paths.append(path)
    return paths


def _file_part(name: str) -> str:
    """A name as part of a file's name."""
    return re.sub(r"[^A-Za-z0-9_]+", "-", name).strip("-") or "plot"


def _figure(results: Results) -> tuple[Figure, Axes]:
    """An empty plot that says below where its numbers come from; nothing of it is shared with other plots."""
    from matplotlib.figure import Figure  # optional, and slow to import

    figure = Figure(figsize=(7.2, 4.4), dpi=DOTS_PER_INCH, layout="constrained")
    axes = figure.add_subplot()
    where = ", ".join(part for part in (results.gpu or results.device, results.commit[:12]) if part)
    figure.supxlabel(_plain(where or "device not stated"), fontsize=7, color="#5f5e58")
    return figure, axes


def _plain(value: object) -> str:
    """Text that matplotlib shows as it is: `$` begins a formula."""
    return visible(str(value)).replace("$", r"\$")


def _heat_map(axes: Axes, found: HeatMap) -> None:
    rows = [[float("nan") if value is None else value for value in row] for row in found.values]
    axes.imshow(rows, cmap="Blues", aspect="auto", origin="lower")
    axes.set_xticks(range(len(found.x.values)), [_plain(value) for value in found.x.values])
    axes.set_yticks(range(len(found.y.values)), [_plain(value) for value in found.y.values])
    axes.set_xlabel(_plain(found.x.title))
    axes.set_ylabel(_plain(found.y.title))
    known = [value for row in found.values for value in row if value is not None]
    middle = (min(known) + max(known)) / 2 if known else 0.0
    for y, row in enumerate(found.values):
        for x, value in enumerate(row):
            if value is not None:
                weight = "bold" if (y, x) == found.peak() else "normal"
                colour = "white" if value > middle else "black"
                shown = number_text(value, found.digits)
                axes.text(x, y, shown, ha="center", va="center", fontsize=8, color=colour, fontweight=weight)
    unit = f" [{found.unit}]" if found.unit else ""
    axes.set_title(_plain(f"{found.title or found.name}{unit}{_label(found.kind)}"), fontsize=10)


def _label(kind: str) -> str:
    return "" if kind == "measured" else f" ({kind})"


def _curves(axes: Axes, found: Curves) -> None:
    for number, line in enumerate(found.series):
        values = [float("nan") if value is None else value for value in line.y]
        style = "--" if line.kind == "reported" else "-"
        label = _plain(line.label + _label(line.kind))
        axes.plot(line.x, values, style, marker="o", markersize=4, color=COLOURS[number % len(COLOURS)], label=label)
    for mark in found.marks:
        axes.axvline(mark.x, color="#5f5e58", linewidth=1, linestyle=":")
        shown = f"{mark.label} {number_text(mark.x, None)}"
        axes.annotate(_plain(shown), (mark.x, 0.97), xycoords=("data", "axes fraction"), fontsize=8, va="top")
    _finish(axes, found.title or found.name, found.x_title, found.y_title, legend=bool(found.series))


def _by_depth(axes: Axes, found: Sequence[ByDepth]) -> None:
    for number, item in enumerate(found):
        depths = range(1, len(item.shares) + 1)
        label = _plain(item.label + _label(item.kind))
        axes.plot(depths, item.shares, marker="o", markersize=4, color=COLOURS[number % len(COLOURS)], label=label)
    axes.set_ylim(0, 1)
    _finish(axes, "Acceptance by depth", "depth", "share of the steps", legend=True)


def _finish(axes: Axes, title: str, x_title: str, y_title: str, *, legend: bool) -> None:
    axes.set_title(_plain(title), fontsize=10)
    axes.set_xlabel(_plain(x_title))
    axes.set_ylabel(_plain(y_title))
    axes.grid(color="#dddbd4", linewidth=0.6)
    if legend:
        axes.legend(fontsize=8, frameon=False)
