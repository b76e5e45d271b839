"""Cells of the Ascend ladder as a file of results, and as a Markdown table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specc.bench.ascend_rungs import CONTRACTS, RUNGS, Cell, Place
from specc.bench.results import RESULTS

SHOWN = {"equal": "equal", "ok": "ok", "refused": "not run"}


def read(name: str, folder: Path = RESULTS) -> list[Cell]:
    """The cells of an earlier run; none where there is no such file."""
    try:
        stored = json.loads((folder / f"{name}.json").read_text("utf-8"))
    except (OSError, ValueError):
        return []
    return [cell_of(one) for one in stored.get("cells", ())]


def cell_of(values: Mapping[str, Any]) -> Cell:
    """The inverse of `Cell.as_json`."""
    own = {name: values[name] for name in ("spec", "rung", "dtype", "batch")}
    return Cell(Place(**own), **{name: value for name, value in values.items() if name not in own})


def shown(cell: Cell) -> str:
    """One cell's text: the largest error beside its bound, or why there is none."""
    if cell.outcome == "within" or (cell.outcome == "fails" and cell.error is not None):
        text = f"{cell.error:.1e} / {cell.bound:.1e}"
        return text if cell.ok else f"**fails** {text}"
    return SHOWN.get(cell.outcome, f"**fails** {cell.why}")


def markdown(cells: Sequence[Cell]) -> str:
    """A row per spec and rung, a column per type and batch; then every reason why a cell was not run, once."""
    columns = sorted({(cell.place.dtype, cell.place.batch) for cell in cells if cell.place.dtype}, key=_order)
    lines = [
        f"| spec | rung | {' | '.join(f'{dtype}, {batch}' for dtype, batch in columns)} |",
        f"| --- | --- |{' --- |' * len(columns)}",
    ]
    by_place = {cell.place: cell for cell in cells}
    specs = list(dict.fromkeys(cell.place.spec for cell in cells))
    have = {(cell.place.spec, cell.place.rung) for cell in cells}
    rows = sorted(have, key=lambda row: (specs.index(row[0]), RUNGS.index(row[1])))
    for spec, rung in rows:
        if rung == CONTRACTS:
            texts = [shown(by_place[Place(spec, rung)])] * len(columns)
        else:
            found = [by_place.get(Place(spec, rung, *column)) for column in columns]
            texts = ["" if cell is None else shown(cell) for cell in found]
        lines.append(f"| {spec} | {rung} | {' | '.join(texts)} |")
    return "\n".join([*lines, "", *reasons(cells)])


def reasons(cells: Sequence[Cell]) -> list[str]:
    """Why cells were not run: reason, then the cells."""
    why: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        if cell.outcome in ("refused", "fails"):
            place = cell.place
            why.setdefault((place.rung, cell.why), []).append(f"{place.spec} {place.dtype} {place.batch}")
    return [f"* {rung}: {text}: {len(places)} cells ({_some(places)})" for (rung, text), places in why.items()]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _order(column: tuple[str, int]) -> tuple[int, int]:
    return ("float32", "float16", "bfloat16").index(column[0]), column[1]
