"""Integer interval analysis (`analyse`), and the index operands of a graph with what must be proved of them."""

from __future__ import annotations

from specc.ir.ranges.analysis import Declared, Ranges, analyse
from specc.ir.ranges.interval import Interval

__all__ = ["Declared", "Interval", "Ranges", "analyse"]
