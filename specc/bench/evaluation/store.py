"""Finished cells, one JSON file each, written under another name and renamed: a kill leaves whole files only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specc.bench.evaluation.cells import SCHEMA, Cell
from specc.output import make_folder, write_text

DIGITS = 24
"""Of the key, in a file's name: 96 bits."""


@dataclass(frozen=True, slots=True)
class Store:
    """A folder of finished cells. Several processes may use one folder: what two of them finish is the same."""

    folder: Path

    def path(self, cell: Cell) -> Path:
        """Where the cell's result is kept."""
        return self.folder / f"{cell.key[:DIGITS]}.json"

    def get(self, cell: Cell) -> dict[str, Any] | None:
        """The result if the cell is finished. A file that is damaged or of another cell counts as none."""
        try:
            kept = json.loads(self.path(cell).read_text(encoding="utf-8"))
            whole = kept["schema"] == SCHEMA and kept["key"] == cell.key and isinstance(kept["result"], dict)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return kept["result"] if whole else None

    def put(self, cell: Cell, result: Mapping[str, Any]) -> Path:
        """Keep a result. Raises DiagnosticError (SPC460)."""
        make_folder(self.folder)
        value = {"schema": SCHEMA, "key": cell.key, "name": cell.name, "work": cell.work, "result": dict(result)}
        write_text(self.path(cell), json.dumps(value, sort_keys=True) + "\n")
        return self.path(cell)
