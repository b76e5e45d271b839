"""Comparisons of key positions with a query's position, a length or the start of a window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from specc.backends.ascend.contracts.context import Context, Meaning, static, words
from specc.ir.ranges.bounds import ZERO, integer
from specc.ir.ranges.calls import Call, call_of, shape_of
from specc.ir.ranges.interval import Interval, negate

_VIEWS = words(
    "unsqueeze squeeze view reshape expand expand_as to contiguous clone long int slice narrow repeat "
    "broadcast_to lift_fresh_copy detach alias"
)
_COUNTING = frozenset({"arange", "specc::iota"})
_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


@dataclass(frozen=True, slots=True)
class Comparison:
    """`first`: every row sees key 0. `region`: key >= a length, which hides keys, or selects those that another mask
    is for."""

    meaning: Meaning
    first: bool = False
    region: bool = False


def compared(call: Call, ctx: Context) -> Comparison | None:
    """The reading of a comparison's ones; None where it proves nothing.

    key <= query, key < length show a key, key > query hides it; against a bound that lies below the query by 2 or more
    (a window), key > query - w shows it. The same by differences: query - key >= 0, key - query < 0. A bound is thus
    the end of what may be seen; where it is a start (padding on the left) the caller declares the node's meaning.
    """
    left, right, name = call.first, call.arg(1, "other"), call.name
    if name not in _MIRRORED:
        return None
    if isinstance(right, (int, float)) and isinstance(left, Node):
        found = _difference(left, name, right, ctx)
        if found is not None:
            return Comparison(found)
    if counts_keys(left, ctx) and _is_per_row(right):
        return _against(left, name, right, ctx)
    if counts_keys(right, ctx) and _is_per_row(left):
        return _against(right, _MIRRORED[name], left, ctx)
    return None


def is_own_place(call: Call, ctx: Context) -> bool:
    """`key == number`, with a number per row: where the row's own key stands."""
    left, right = call.first, call.arg(1, "other")
    return any(counts_keys(one, ctx) and isinstance(other, Node) and _is_per_row(other) for one, other in
               ((left, right), (right, left)))  # fmt: skip


def is_causal(rows: Sequence[Sequence[int]], shown: int) -> bool:
    """Whether rows of bits, read with `shown` for a key that is seen, can be nodes in order: row m is the node at some
    place first + m, sees itself, and nothing behind itself."""
    width = len(rows[0])
    return any(
        all(
            row[first + number] == shown and all(bit != shown for bit in row[first + number + 1 :])
            for number, row in enumerate(rows)
        )
        for first in range(width - len(rows) + 1)
    )


def _against(keys: Any, name: str, bound: Any, ctx: Context) -> Comparison | None:
    """`key name bound`."""
    upper = name in ("lt", "le")
    taken = _taken_off(bound, ctx)
    if taken is not None and taken.low >= integer(2):
        return Comparison("hidden" if upper else "visible")
    if taken is not None and not upper:
        return None  # key > x - 1 hides what is behind a length, or is a window of one key
    low = ctx.ranges.of(bound).low
    inclusive = name in ("le", "gt")
    call = call_of(_through_views(keys, ctx))
    from_zero = call is not None and call.name in _COUNTING
    first = from_zero and low >= (ZERO if inclusive else integer(1))
    return Comparison("visible" if upper else "hidden", first, not upper and _is_per_sequence(bound, ctx))


def _is_per_sequence(bound: Any, ctx: Context) -> bool:
    """A number, or one per sequence: a length. Positions of queries have two dims, or count along one."""
    if not isinstance(bound, Node):
        return True
    node = _through_views(bound, ctx)
    call, shape = call_of(node), shape_of(node)
    return shape is not None and len(shape) <= 1 and (call is None or call.name not in _COUNTING)


def _difference(node: Node, name: str, number: float, ctx: Context) -> Meaning | None:
    """`(a - b) name number` where one of a, b holds key positions and the other is per row."""
    call = call_of(_through_views(node, ctx))
    if call is None or call.name != "sub":
        return None
    one, other = call.first, call.arg(1, "other")
    if counts_keys(one, ctx) and _is_per_row(other):  # key - query: turn it round
        name, number = _MIRRORED[name], -number
    elif not (counts_keys(other, ctx) and _is_per_row(one)):
        return None
    if name in ("gt", "ge"):  # query - key >= edge: at most 1 is causal or before a length, more is outside of a window
        edge = number + 1 if name == "gt" else number
        return "visible" if edge <= 1 else "hidden"
    edge = number if name == "lt" else number + 1  # query - key < edge
    if edge == 1:
        return None  # behind a length, or a window of one key
    return "hidden" if edge <= 0 else "visible"


def counts_keys(item: Any, ctx: Context) -> bool:
    """A count along the last dim: an arange behind views, with something per row added or taken off."""
    if not isinstance(item, Node):
        return False
    node = _through_views(item, ctx)
    shape = shape_of(item)
    if not shape or static(shape[-1]) == 1:
        return False
    if node.op == "get_attr":
        return _is_counting_constant(node)
    call = call_of(node)
    if call is None:
        return False
    if call.name in _COUNTING:
        return all(static(size) == 1 for size in shape[:-1]) or _expanded(item, ctx)
    if call.name in ("add", "sub"):
        first, other = call.first, call.arg(1, "other")
        turned = call.name == "add" and _is_per_row(first) and counts_keys(other, ctx)
        return turned or (counts_keys(first, ctx) and _is_per_row(other))
    return False


def _is_counting_constant(node: Node) -> bool:
    """An arange that tracing made a tensor of the module."""
    held: Any = node.graph.owning_module
    for name in str(node.target).split("."):
        held = getattr(held, name, None)
    if not isinstance(held, torch.Tensor) or held.dim() == 0 or held.is_floating_point() or held.numel() < 2:
        return False
    steps = held.reshape(-1).diff()
    return held.numel() == held.shape[-1] and bool((steps == 1).all())


def _expanded(item: Node, ctx: Context) -> bool:
    """The count ran along the last dim before it was expanded: right-aligned broadcasting keeps it there."""
    while True:
        call = call_of(item)
        if call is None or call.name not in _VIEWS or not isinstance(call.first, Node):
            return call is not None and call.name in _COUNTING
        before, after = shape_of(call.first), shape_of(item)
        if not before or not after or before[-1] != after[-1]:
            return False
        item = call.first


def _is_per_row(item: Any) -> bool:
    """The same for all keys: a number, or a tensor whose last dim is 1."""
    if isinstance(item, (int, float)):
        return True
    shape = shape_of(item) if isinstance(item, Node) else None
    return shape is not None and (not shape or static(shape[-1]) == 1)


def _taken_off(bound: Any, ctx: Context) -> Interval | None:
    """How much is taken off a query's position: w of `query - w`, None for other bounds."""
    call = call_of(_through_views(bound, ctx)) if isinstance(bound, Node) else None
    if call is None or call.name not in ("add", "sub"):
        return None
    amount = ctx.ranges.of(call.arg(1, "other"))
    taken = amount if call.name == "sub" else negate(amount)
    return taken if taken.low >= integer(1) else None


def _through_views(node: Node, ctx: Context) -> Node:
    """The node behind views, casts and loop placeholders."""
    while True:
        node = ctx.outer(node)
        call = call_of(node)
        if call is None or call.name not in _VIEWS or not isinstance(call.first, Node):
            return node
        node = call.first
