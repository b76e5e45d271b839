"""Which rows of random numbers a draft draws: known when its module is made, since a drawn tree has a fixed shape."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node

from specc.ir.edit import is_loop, loop_parts
from specc.ir.op import info
from specc.program import input_ports

Value = Callable[[Node], Any]
DRAWS = "counter_uniform_rows"


def row_draws(module: GraphModule) -> tuple[list[int], list[int], int] | None:
    """The offset from `length` and the number of every row that a step draws, and the size of a row; None: no rows.

    Raises ValueError where a position is not `length` plus a constant, or rows differ in size.
    """
    ports = {node: name for name, node in input_ports(module).items()}

    def given(node: Node) -> Any:
        if ports[node] != "slot:length":
            raise ValueError(f"a drawn row depends on {ports[node]}")
        return torch.zeros(1, dtype=torch.int64)

    rows = [row for call in _calls(module, given) for row in call]
    if not rows:
        return None
    sizes = {size for _, _, size in rows}
    if len(sizes) > 1:
        raise ValueError(f"drawn rows of several sizes: {sorted(sizes)}")
    return [offset for offset, _, _ in rows], [draw for _, draw, _ in rows], sizes.pop()


def _calls(module: GraphModule, given: Value) -> Iterator[list[tuple[int, int, int]]]:
    """(offset, draw, size) of the rows of every draw, those of a loop's body once per pass."""
    known: dict[Node, Any] = {}
    for node in module.graph.nodes:
        declared = info(node.target)
        if is_loop(node):
            yield from _in_loop(node, lambda outer: _value(outer, given, known))
        elif declared is not None and declared.name == DRAWS:
            _, position, draw, size = node.args
            places, numbers = (_value(part, given, known).flatten().tolist() for part in (position, draw))
            yield [(place, number, size) for place, number in zip(places, numbers, strict=True)]


def _in_loop(node: Node, outer: Value) -> Iterator[list[tuple[int, int, int]]]:
    parts = loop_parts(node)
    if not _draws(parts.body):
        return
    if parts.trip is None:
        raise ValueError("a loop of unknown length draws rows")
    for index in range(parts.trip):
        inside: Mapping[Node, Any] = dict(zip(parts.invariant_inside, parts.invariant, strict=True))

        def given(place: Node, index: int = index, inside: Mapping[Node, Any] = inside) -> Any:
            if place is parts.index:
                return index
            if place not in inside:
                raise ValueError(f"a drawn row depends on {place.name}, which a loop changes")
            return outer(inside[place])

        yield from _calls(parts.body, given)


def _draws(module: GraphModule) -> bool:
    """Whether a loop's body, at any depth, draws rows."""
    for node in module.graph.nodes:
        declared = info(node.target)
        if (declared is not None and declared.name == DRAWS) or (is_loop(node) and _draws(loop_parts(node).body)):
            return True
    return False


def _value(item: Any, given: Value, known: dict[Node, Any]) -> Any:
    """A node's value for one sequence of length 0; literals and lists of nodes stand for themselves."""
    if isinstance(item, (list, tuple)):
        return [_value(part, given, known) for part in item]
    if not isinstance(item, Node):
        return item
    if item not in known:
        if item.op == "placeholder":
            known[item] = given(item)
        elif isinstance(item.target, torch._ops.OpOverload) or item.target in (operator.add, operator.getitem):
            arguments = [_value(part, given, known) for part in item.args]
            keywords = {name: _value(part, given, known) for name, part in item.kwargs.items()}
            known[item] = item.target(*arguments, **keywords)
        else:
            raise ValueError(f"a drawn row depends on {item.name}")
    return known[item]
