"""Cells for the tests of sweeps, whose work is in this file's functions: it imports no torch, as workers should not."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specc.bench.evaluation.cells import Cell

SQUARE = "tests.unit.sweep_fixtures:square"
DIE_ONCE = "tests.unit.sweep_fixtures:die_once"
REFUSE = "tests.unit.sweep_fixtures:refuse"


def square(inputs: Mapping[str, Any], places: Mapping[str, str]) -> dict[str, Any]:
    """The square of `number`; leaves a mark in `marks` for each time that it was worked out."""
    time.sleep(float(inputs.get("seconds", 0.0)))
    _mark(inputs, places)
    return {"square": inputs["number"] ** 2, "process": os.getpid()}


def die_once(inputs: Mapping[str, Any], places: Mapping[str, str]) -> dict[str, Any]:
    """Kills its own process the first `deaths` times that it is begun."""
    if len(_mark(inputs, places)) <= int(inputs.get("deaths", 1)):
        os.kill(os.getpid(), signal.SIGKILL)
    return {"square": inputs["number"] ** 2}


def refuse(inputs: Mapping[str, Any], places: Mapping[str, str]) -> dict[str, Any]:
    """A cell that fails."""
    raise ValueError(f"no square of {inputs['number']}\nsecond line")


def _mark(inputs: Mapping[str, Any], places: Mapping[str, str]) -> list[Path]:
    folder = Path(places["marks"])
    (folder / f"{inputs['number']}-{os.getpid()}-{time.monotonic_ns()}").touch()
    return marks(folder, inputs["number"])


def marks(folder: Path, number: int) -> list[Path]:
    """One file for each time that a cell was begun."""
    return list(folder.glob(f"{number}-*"))


def squares(folder: Path, count: int, work: str = SQUARE, **more: Any) -> list[Cell]:
    """Cells 0 to count - 1."""
    folder.mkdir(exist_ok=True)
    return [
        Cell(f"square/{number}", work, {"number": number} | more, {"marks": str(folder)}) for number in range(count)
    ]
