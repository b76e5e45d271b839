"""What a condition says about the integers it compares: `where(i < 0, i + n, i)` knows i < 0 in its first branch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.fx import Node

from specc.ir.ranges import interval as iv
from specc.ir.ranges.bounds import integer
from specc.ir.ranges.calls import Call, call_of, dtype_of, is_integral
from specc.ir.ranges.interval import EVERYTHING, Interval, exactly

Known = dict[Node, Interval]
_FLIPPED = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}
_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}
# Elementwise ops keep the alignment of trailing dims, so what holds for an element of a condition holds for the
# elements of other operands that broadcast with it. Views do not, and end the search.
_ELEMENTWISE_NAMES = (
    "add sub rsub mul neg abs clamp clamp_min clamp_max minimum maximum where masked_fill floor_divide remainder div "
    "to long int type_as"
)
ELEMENTWISE = frozenset(_ELEMENTWISE_NAMES.split())
MAX_DEPTH = 6


def constraints(condition: object, holds: bool, of: Callable[[object], Interval], depth: int = MAX_DEPTH) -> Known:
    """Narrowed intervals of the integer nodes that `condition` compares, where it is `holds`."""
    if not isinstance(condition, Node) or depth == 0:
        return {}
    # A number that counts as true may be any but 0; only a bool is then 1.
    known: Known = {condition: exactly(int(holds))} if not holds or dtype_of(condition) == torch.bool else {}
    call = call_of(condition)
    if call is None or call.in_place:
        return known
    if call.name in _FLIPPED:
        return known | _compared(call, holds, of)
    if call.name in ("logical_not", "bitwise_not"):
        return known | constraints(call.first, not holds, of, depth - 1)
    conjunction = call.name in ("logical_and", "bitwise_and")
    if (conjunction or call.name in ("logical_or", "bitwise_or")) and conjunction == holds:
        if dtype_of(condition) not in (torch.bool, None):
            return known
        for side in (call.first, call.arg(1, "other")):
            for node, interval in constraints(side, holds, of, depth - 1).items():
                known[node] = iv.meet(known[node], interval) if node in known else interval
    return known


def _compared(call: Call, holds: bool, of: Callable[[object], Interval]) -> Known:
    name = call.name if holds else _FLIPPED[call.name]
    left, right = call.first, call.arg(1, "other")
    if not (is_integral(left) and is_integral(right)):
        return {}
    found: Known = {}
    for one, other, relation in ((left, right, name), (right, left, _MIRRORED[name])):
        if isinstance(one, Node):
            narrowed = _narrow(of(one), relation, of(other))
            found[one] = iv.meet(found[one], narrowed) if one in found else narrowed
    return found


def _narrow(value: Interval, relation: str, other: Interval) -> Interval:
    one = integer(1)
    if relation == "lt":
        return iv.meet(value, Interval(EVERYTHING.low, other.high - one))
    if relation == "le":
        return iv.meet(value, Interval(EVERYTHING.low, other.high))
    if relation == "gt":
        return iv.meet(value, Interval(other.low + one, EVERYTHING.high))
    if relation == "ge":
        return iv.meet(value, Interval(other.low, EVERYTHING.high))
    if relation == "eq":
        return iv.meet(value, other)
    excluded = other.constant
    if excluded is None:
        return value
    low = value.low + one if value.low.constant == excluded else value.low
    high = value.high - one if value.high.constant == excluded else value.high
    narrowed = Interval(low, high, value.sentinels)
    return narrowed.plain() if excluded == -1 else narrowed
