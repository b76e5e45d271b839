"""Why an interval is what it is: the chain of nodes from an index operand back to where its range comes from."""

from __future__ import annotations

import operator
from typing import Any

from torch.fx import Node

from specc.ir.edit import is_loop, loop_parts
from specc.ir.ranges.analysis import Ranges
from specc.ir.ranges.calls import call_of, is_integral
from specc.ir.ranges.interval import Interval

MAX_STEPS = 8


def origin(argument: Any, ranges: Ranges, legal: Interval) -> tuple[str, ...]:
    """Lines such as ``` `parent_row` in [-1, 3] (-1: committed) from where ```, nearest first.

    Follows, at each node, the first operand that may be illegal too: through loop placeholders to the operands
    outside, and through loop results to what the body returns.
    """
    lines: list[str] = []
    seen: set[Node] = set()
    node = argument
    while isinstance(node, Node) and node not in seen and len(lines) < MAX_STEPS:
        seen.add(node)
        lines.append(f"`{node.name}` in {ranges.of(node)}{_how(node, ranges)}")
        node = _source(node, ranges, legal)
    return tuple(lines)


def _how(node: Node, ranges: Ranges) -> str:
    if node.op == "placeholder":
        return "" if node in ranges.outer else f", {'declared' if node in ranges.declared else 'an undeclared'} input"
    if node.op == "get_attr":
        return ", a constant of the module"
    call = call_of(node)
    return f", by {call.name}" if call is not None else ""


def _source(node: Node, ranges: Ranges, legal: Interval) -> Node | None:
    if node.op == "placeholder":
        return ranges.outer.get(node)
    source = node.args[0] if node.args else None
    if node.target is operator.getitem and isinstance(source, Node) and is_loop(source):
        parts = loop_parts(source)
        position = node.args[1]
        results = (*parts.carried_out, *parts.stacked_out)
        found = results[position] if isinstance(position, int) else None
        return found if isinstance(found, Node) else None
    candidates = [item for item in node.all_input_nodes if is_integral(item) and not is_loop(item)]
    bad = [item for item in candidates if not ranges.of(item).within(legal)]
    below = [item for item in bad if not ranges.of(item).low >= legal.low]
    return next(iter(below or bad), None)
