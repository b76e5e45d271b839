"""Integer interval analysis: `analyse(module, ranges)`, and the index operands of a graph with their proof obligations."""

from __future__ import annotations

from specc.ir.ranges.analysis import Declared, Ranges, analyse
from specc.ir.ranges.interval import Interval

__all__ = ["Declared", "Interval", "Ranges", "analyse"]
