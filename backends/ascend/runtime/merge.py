"""Equal computations of a traced step become one: torchair does not look for them.

What depends on the tree alone, say, is written by each layer's operators for themselves.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node


def frozen(value: Any) -> Any:
    """A hashable stand-in for an argument; numbers of different types differ."""
    if isinstance(value, (list, tuple)):
        return tuple(frozen(item) for item in value)
    if isinstance(value, slice):
        return (slice, frozen(value.start), frozen(value.stop), frozen(value.step))
    if isinstance(value, dict):
        return tuple((name, frozen(item)) for name, item in value.items())
    return value if isinstance(value, Node) else (type(value), value)


def is_pure(node: Node) -> bool:
    """Whether a call gives the same for the same arguments and changes nothing."""
    if node.target is operator.getitem:
        return True
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    random = torch.Tag.nondeterministic_seeded in target.tags
    return not target._schema.is_mutable and not random


def is_mutating(node: Node) -> bool:
    """Whether a call changes an operand."""
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable


def merge_duplicates(graph_module: GraphModule, *_: Any) -> None:
    """Let equal pure calls be one, up to the first that changes something."""
    seen: dict[Any, Node] = {}
    for node in list(graph_module.graph.nodes):
        if node.op != "call_function":
            continue
        if not is_pure(node):
            if is_mutating(node):
                break
            continue
        key = (node.target, frozen(node.args), frozen(node.kwargs))
        first = seen.setdefault(key, node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph_module.graph.erase_node(node)
    graph_module.recompile()
