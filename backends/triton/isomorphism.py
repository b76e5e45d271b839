"""Whether a part of a graph computes what a pattern graph computes: the same ops on the same operands, loops included.

Placeholders of the pattern stand for any node of their type. Loop operands and results may come in another order.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Node

from specc.ir.edit import LoopParts, is_loop, loop_parts


class Match:
    """Pairs of pattern nodes and graph nodes. A failed attempt may leave pairs: use a new object for the next one."""

    def __init__(self) -> None:
        self.pairs: dict[Node, Node] = {}
        self._loops: dict[Node, tuple[LoopParts, LoopParts]] = {}

    def same(self, pattern: Any, value: Any) -> bool:
        """Whether an argument, or the node `value`, is what the pattern says."""
        if isinstance(pattern, (list, tuple)):
            if not isinstance(value, (list, tuple)) or len(pattern) != len(value):
                return False
            return all(self.same(one, other) for one, other in zip(pattern, value, strict=True))
        if not isinstance(pattern, Node):
            return type(pattern) is type(value) and bool(pattern == value)
        if not isinstance(value, Node):
            return False
        if pattern in self.pairs:
            return self.pairs[pattern] is value
        return self._node(pattern, value)

    def _node(self, pattern: Node, value: Node) -> bool:
        if pattern.op == "placeholder":
            return self._placeholder(pattern, value)
        if (pattern.op, pattern.target) != (value.op, value.target):
            return False
        source, other = (node.args[0] if node.target is operator.getitem else None for node in (pattern, value))
        if isinstance(source, Node) and is_loop(source):
            if not isinstance(other, Node) or not is_loop(other) or not self._loop(source, other):
                return False
            self.pairs[pattern] = value
            return self.carried(source, int(str(pattern.args[1])), int(str(value.args[1])))
        if set(pattern.kwargs) != set(value.kwargs):
            return False
        self.pairs[pattern] = value
        named = [(pattern.kwargs[name], value.kwargs[name]) for name in pattern.kwargs]
        return self.same(pattern.args, value.args) and all(self.same(one, other) for one, other in named)

    def _placeholder(self, pattern: Node, value: Node) -> bool:
        """An input of the pattern, or a placeholder of a body, with the operand that it stands for."""
        for mine, others in self._loops.values():
            if pattern in (mine.index, *mine.inside):
                return self._inside(mine, others, pattern, value)
        if not _same_type(pattern, value):
            return False
        self.pairs[pattern] = value
        return True

    def _inside(self, mine: LoopParts, others: LoopParts, pattern: Node, value: Node) -> bool:
        if pattern is mine.index:
            self.pairs[pattern] = value
            return value is others.index
        for kind in ("carried", "sliced", "invariant"):
            own, other = getattr(mine, f"{kind}_inside"), getattr(others, f"{kind}_inside")
            if pattern in own:
                if value not in other:
                    return False
                place, found = own.index(pattern), other.index(value)
                if kind == "carried":
                    return self.carried(mine.node, place, found)
                self.pairs[pattern] = value
                return self.same(getattr(mine, kind)[place], getattr(others, kind)[found])
        return False

    def _loop(self, pattern: Node, value: Node) -> bool:
        if pattern in self._loops:
            return self._loops[pattern][1].node is value
        mine, others = loop_parts(pattern), loop_parts(value)
        self._loops[pattern] = mine, others
        return (mine.axis, mine.trip) == (others.axis, others.trip)

    def carried(self, loop: Node, place: int, found: int) -> bool:
        """Whether carried value `place` of a paired pattern loop is number `found` of the graph's."""
        mine, others = self._loops[loop]
        if place >= len(mine.carried) or found >= len(others.carried):
            return False
        inside = mine.carried_inside[place]
        if inside in self.pairs:
            return self.pairs[inside] is others.carried_inside[found]
        self.pairs[inside] = others.carried_inside[found]
        return self.same(mine.carried[place], others.carried[found]) and self.same(
            mine.carried_out[place], others.carried_out[found]
        )

    def partner(self, loop: Node) -> LoopParts:
        """The graph's loop that a pattern loop was paired with."""
        return self._loops[loop][1]


def _same_type(pattern: Node, value: Node) -> bool:
    one, other = pattern.meta.get("val"), value.meta.get("val")
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    return one.dtype == other.dtype and one.shape == other.shape
