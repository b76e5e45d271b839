"""Orders that data flow does not show: which nodes of a graph touch memory that another writes."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch.fx import Node

from specc.ir.edit import is_impure, is_loop, loop_parts
from specc.ir.effects import flat_nodes, is_view, written_arguments


@dataclass(frozen=True, slots=True)
class Touched:
    """Roots (nodes that own memory) that a node reads and writes."""

    reads: frozenset[Node]
    writes: frozenset[Node]


def root(node: Node) -> Node:
    """The node whose memory a view lies in."""
    while node.op == "call_function" and is_view(node) and isinstance(node.args[0], Node):
        node = node.args[0]
    return node


def launches_nothing(node: Node) -> bool:
    """Whether a node is no kernel: no call, a view, a piece of a result. An op in place gives its operand back and is
    a kernel."""
    shares = node.target is operator.getitem or is_view(node)
    return node.op != "call_function" or (shares and not is_impure(node))


def touched(node: Node) -> Touched:
    """What a call reads and writes; a loop is taken as a whole."""
    reads = frozenset(root(item) for item in flat_nodes((node.args, node.kwargs)))
    return Touched(reads, frozenset(_written(node)))


def _written(node: Node) -> Iterator[Node]:
    if is_loop(node):
        if is_impure(node):
            yield from _written_by_loop(node)
        return
    for item in flat_nodes(written_arguments(node)):
        yield root(item)


def _written_by_loop(node: Node) -> Iterator[Node]:
    parts = loop_parts(node)
    outside = dict(zip(parts.inside, parts.operands, strict=True))
    for inner in parts.body.graph.nodes:
        if inner.op == "call_function":
            for item in _written(inner):
                yield from (root(found) for found in flat_nodes(outside.get(item, ())))


def orders(effects: Mapping[Node, Touched]) -> Mapping[Node, set[Node]]:
    """Node -> the nodes before it that it must stay behind, because one of the two writes what the other touches;
    `effects`: what each node touches, in the graph's order."""
    written = frozenset(item for effect in effects.values() for item in effect.writes)
    readers: dict[Node, list[Node]] = {}
    writer: dict[Node, Node] = {}
    found: dict[Node, set[Node]] = {node: set() for node in effects}
    for node in effects:
        for item in (effects[node].reads | effects[node].writes) & written:
            if item in writer:
                found[node].add(writer[item])
            if item in effects[node].writes:
                found[node].update(readers.pop(item, ()))
                writer[item] = node
            else:
                readers.setdefault(item, []).append(node)
        found[node].discard(node)
    return found
