"""How many cells of a large matrix a run takes: a spread of them by default, all of them when asked to look harder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

Cell = TypeVar("Cell")
ALL = os.environ.get("HYPOTHESIS_PROFILE", "quick") != "quick"


def spread(cells: Sequence[Cell], most: int) -> list[Cell]:
    """At most `most` cells, evenly spread, always the same; all with HYPOTHESIS_PROFILE=ci or thorough."""
    if ALL or len(cells) <= most:
        return list(cells)
    return [cells[number * len(cells) // most] for number in range(most)]
