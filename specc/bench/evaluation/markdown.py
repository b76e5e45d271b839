"""Results as files: JSON (as `specc report` reads it), Markdown tables, and PNG plots where matplotlib is installed."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specc.output import make_folder, write_text

Result = Mapping[str, Any]
FIGURES = 4


def write_results(folder: Path, stem: str, result: Result) -> list[Path]:
    """`stem`.json, `stem`.md and the plots. Raises DiagnosticError (SPC460)."""
    make_folder(folder)
    paths = [folder / f"{stem}.json", folder / f"{stem}.md"]
    write_text(paths[0], json.dumps(result, indent=1, sort_keys=True) + "\n")
    write_text(paths[1], markdown(result))
    drawn = any(result.get(name) for name in ("heat_maps", "curves", "by_depth"))
    if drawn and importlib.util.find_spec("matplotlib") is not None:
        from specc.report.plots import save_plots  # matplotlib is optional

        paths += save_plots(result, folder, stem)
    return paths


def markdown(result: Result) -> str:
    """A heading, what made the results, and all tables. Rows that were not measured say what they are."""
    lines = [f"# {result.get('title', 'Results')}", "", source(result)]
    if result.get("note"):
        lines += ["", str(result["note"])]
    for table in result.get("tables", ()):
        lines += ["", f"## {table['title']}", "", *table_lines(table)]
        if table.get("note"):
            lines += ["", str(table["note"])]
    for heat in result.get("heat_maps", ()):
        lines += ["", f"## {heat['title']}", "", *heat_lines(heat)]
        if heat.get("note"):
            lines += ["", str(heat["note"])]
    return "\n".join(lines) + "\n"


def source(result: Result) -> str:
    """Where the numbers come from."""
    gpu = result.get("gpu") or {}
    device = gpu.get("gpu") or result.get("device", "device not stated")
    packages = ", ".join(f"{name} {gpu[name]}" for name in ("torch", "triton") if name in gpu)
    made = f"{device} ({packages})" if packages else device
    return f"{made}, commit {result.get('commit') or '?'}: `{result.get('command', '')}`"


def table_lines(table: Mapping[str, Any]) -> list[str]:
    """A Markdown table; without `columns` they are the rows' keys."""
    rows = table["rows"]
    columns = table.get("columns") or [{"key": key} for key in dict.fromkeys(key for row in rows for key in row)]
    columns = [column for column in columns if column["key"] != "kind"]
    labelled = any(row.get("kind", "measured") != "measured" for row in rows)
    heads = [_heading(column) for column in columns] + ([""] if labelled else [])
    lines = [f"| {' | '.join(heads)} |", f"| {' | '.join('---' for _ in heads)} |"]
    for row in rows:
        cells = [shown(row.get(column["key"]), column.get("digits")) for column in columns]
        if labelled:
            cells.append("" if row.get("kind", "measured") == "measured" else str(row["kind"]))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def heat_lines(heat: Mapping[str, Any]) -> list[str]:
    """A heat map as a table, y down and x across."""
    heads = [f"{heat['y']['title']} \\ {heat['x']['title']}", *map(str, heat["x"]["values"])]
    lines = [f"| {' | '.join(heads)} |", f"| {' | '.join('---' for _ in heads)} |"]
    for name, row in zip(heat["y"]["values"], heat["values"], strict=True):
        lines.append(f"| {' | '.join([str(name), *(shown(value, heat.get('digits')) for value in row)])} |")
    return lines


def shown(value: Any, digits: int | None = None) -> str:
    """A cell."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.{digits}f}" if digits is not None else f"{value:.{FIGURES}g}"
    return str(value).replace("|", "\\|")


def _heading(column: Mapping[str, Any]) -> str:
    unit = f" ({column['unit']})" if column.get("unit") else ""
    return f"{column.get('title') or column['key']}{unit}"


def columns(*named: Sequence[Any]) -> list[dict[str, Any]]:
    """Columns from (key, title), (key, title, digits) or (key, title, digits, unit)."""
    names = ("key", "title", "digits", "unit")
    return [dict(zip(names, item, strict=False)) for item in named]
