"""What an input or output of a step graph is bound to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PortKind = Literal["slot", "weight", "input", "result"]


@dataclass(frozen=True, slots=True)
class Port:
    """`slot` and `weight` name program declarations; `input` and `result` are the step's own arguments and results."""

    kind: PortKind
    name: str


Sentinel = Literal["committed", "pad", "wrap"]


@dataclass(frozen=True, slots=True)
class ValueRange:
    """Declared values of an integer tensor: low <= x <= high (high may be written with the symbolic sizes).

    `sentinel` says what the value -1 means where low is -1: the committed context, padding, or Python's wrap-around.
    """

    low: int
    high: int
    sentinel: Sentinel | None = None
