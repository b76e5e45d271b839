"""profile.json as a table: a line per case and kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from specc.bench.gpu_timing import Row
from specc.bench.tables import source

SHOWN_PIPES = ("tensor", "fma", "alu", "xu", "lsu")
FEW = 3


def plain(key: str) -> Callable[[Row], str]:
    """A cell of one value."""
    return lambda row: "-" if row.get(key) is None else f"{row[key]:g}" if key != "grid" else str(row[key])


def moved(row: Row) -> str:
    """Megabytes read and written."""
    return "-" if row.get("read_mb") is None else f"{row['read_mb']:.1f} + {row['written_mb']:.1f}"


def part(group: str, key: str) -> Callable[[Row], str]:
    """A cell of one percentage of a group."""
    return lambda row: f"{row[group][key]:.0f}" if key in row.get(group, {}) else "-"


def pipes(row: Row) -> str:
    """The pipes, of the whole device's peak."""
    busy = row.get("busy", {})
    return " ".join(f"{name} {busy[name]:.0f}" for name in SHOWN_PIPES if name in busy) or "-"


def stalls(row: Row) -> str:
    """What warps wait for most."""
    return ", ".join(f"{name} {value:.1f}" for name, value in list(row.get("stalls", {}).items())[:FEW]) or "-"


COLUMNS: Mapping[str, Callable[[Row], str]] = {
    "us": plain("us"),
    "grid": lambda row: str(row.get("grid", "-")).replace(" ", ""),
    "warps": plain("warps"),
    "regs": plain("registers"),
    "shared B": plain("shared_bytes"),
    "waves": plain("waves"),
    "occ %": plain("occupancy_percent"),
    "SM active %": plain("active_percent"),
    "DRAM %": part("busy", "memory"),
    "MB read + written": moved,
    "L2 %": part("busy", "L2"),
    "L2 hit %": plain("l2_hit_percent"),
    "issue %": part("busy", "issue"),
    "issue % in active": part("busy_when_active", "issue"),
    "pipes %": pipes,
    "warp instr.": plain("warp_instructions"),
    "stalls (warps per issue)": stalls,
    "limit": lambda row: str(row.get("limit", "-")),
}


def line(row: Row) -> str:
    """One row of the table."""
    first = [str(row["case"]), f"`{row['kernel']}`" if "kernel" in row else row.get("failed", "-")]
    return f"| {' | '.join(first + [cell(row) for cell in COLUMNS.values()])} |"


def markdown(result: Mapping[str, Any]) -> str:
    """The table, why each kernel is limited as it is, and what made the numbers."""
    head = ["case", "kernel", *COLUMNS]
    text = [f"| {' | '.join(head)} |", f"| {' | '.join('---' for _ in head)} |"]
    text += [line(row) for row in result["rows"]]
    why = [
        f"- {row['case']}, `{row['kernel']}`: {row['limit']} ({row['why']})" for row in result["rows"] if "why" in row
    ]
    return "\n".join([*text, "", *why, "", source(result)])
