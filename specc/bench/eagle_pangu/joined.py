"""An earlier run's rows beside this one's: each names the commit that it was measured at."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specc.diagnostics import DiagnosticError, error

Row = Mapping[str, Any]
WHOLE_SETS = ("speed-up", "lossless", "bars")
"""The tables of the whole sets."""


def read_earlier(path: Path) -> dict[str, Any]:
    """The results of an earlier run of this command. Raises DiagnosticError (SPC293)."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        whole = isinstance(found, dict) and {"variants", "stages", "sets", "tables", "commit"} <= found.keys()
    except (OSError, ValueError):
        whole = False
    if not whole:
        message = f"{path} holds no results of `specc bench eagle-pangu`"
        raise DiagnosticError([error("SPC293", message, help="give the eagle-pangu.json of another run")])
    return dict(found)


def join_variants(rows: Sequence[Row], commit: str, earlier: Row) -> list[dict[str, Any]]:
    """This run's rows with their commit, then the earlier one's that were not measured again. The earlier run's own
    tree stays where any other row of it does: that is what they compare with."""
    mine: list[dict[str, Any]] = [dict(row) | {"commit": commit} for row in rows]
    if not earlier:
        return mine
    again = {row["name"] for row in rows}
    before = [dict(row) | {"commit": row.get("commit", earlier["commit"])} for row in earlier["variants"]]
    kept = [row for row in before if row["name"] not in again]
    commits = {row["commit"] for row in kept} - {commit}
    return [*mine, *(row for row in before if row["name"] == "own" and row["commit"] in commits and mine), *kept]


def join_stages(stages: Mapping[str, Row], commit: str, earlier: Row) -> dict[str, dict[str, Any]]:
    """The same for the stages of steps."""
    before = {name: dict(found) for name, found in (earlier["stages"] if earlier else {}).items()}
    dated = {name: {"commit": earlier["commit"], **found} for name, found in before.items()}
    return dated | {name: dict(found) | {"commit": commit} for name, found in stages.items()}


def sets_before(earlier: Row) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The tables of the whole sets as the earlier run wrote them, and the keys of its results behind them."""
    commit = earlier.get("sets_commit") or earlier["commit"]
    said = f" Measured at commit {commit}."
    found = [dict(table) for table in earlier["tables"] if table["name"] in WHOLE_SETS]
    for table in found:
        table["note"] = str(table.get("note", "")).removesuffix(said) + said
    keys = {name: earlier[name] for name in ("sets", "turns", "by_depth", "peak_memory") if name in earlier}
    return found, keys | {"sets_commit": commit}


def still_missing(
    not_reached: Sequence[str], rows: Sequence[Row], stages: Mapping[str, Row], earlier: Row
) -> list[str]:
    """What neither run has."""
    there = {f"variant/{row['name']}" for row in rows} | {f"stages/{name}" for name in stages}
    before = earlier.get("not_reached", ()) if earlier else ()
    return [name for name in dict.fromkeys([*not_reached, *before]) if name not in there]
