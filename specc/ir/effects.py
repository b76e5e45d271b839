"""Which placeholder's memory a node may alias, what ops write, and reads of a slot that was already overwritten."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import torch
from torch.fx import GraphModule, Node

from specc.ir.edit import is_loop, loop_parts
from specc.ir.op import info

Roots = frozenset[str]
NONE: Roots = frozenset()


def written_arguments(node: Node) -> list[Any]:
    """The operands that the node's schema says it writes in place."""
    return [value for value, alias in _arguments(node) if alias is not None and alias.is_write]


def writes_an_argument(target: object) -> bool:
    """True where the schema of an FX target says that it writes an argument; `written_arguments` names the operands."""
    return isinstance(target, torch._ops.OpOverload) and _writes(target)


@cache
def _writes(target: torch._ops.OpOverload) -> bool:
    """Asked for every node of every step that is interpreted, while a schema never changes."""
    return any(
        argument.alias_info is not None and argument.alias_info.is_write for argument in target._schema.arguments
    )


def _arguments(node: Node) -> Iterator[tuple[Any, Any]]:
    """(operand, alias info of its schema argument) of a node that calls an OpOverload."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return
    arguments = node.target._schema.arguments
    for position, argument in enumerate(arguments):
        if position < len(node.args):
            yield node.args[position], argument.alias_info
        elif argument.name in node.kwargs:
            yield node.kwargs[argument.name], argument.alias_info


def is_view(node: Node) -> bool:
    """True where a result of the op shares memory with an operand (by its schema)."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    return any(result.alias_info is not None for result in node.target._schema.returns)


def flat_nodes(value: Any) -> Iterator[Node]:
    """The nodes in a (nested) argument."""
    if isinstance(value, Node):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from flat_nodes(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from flat_nodes(item)


def stale_reads(module: GraphModule) -> Iterator[tuple[Node, str]]:
    """(node, slot) for every read of a slot's memory after a write to it, in the order of execution.

    Ops whose declaration says `meta={"reads_written": True}` read rows that the same step wrote, on purpose; so do
    the writing ops themselves, and the output, which hands the slot on.
    """
    roots: dict[Node, Roots] = {}
    for node in module.graph.nodes:
        if node.op == "placeholder" and "port" in node.meta and node.meta["port"].kind == "slot":
            roots[node] = frozenset({node.meta["port"].name})
    written: set[str] = set()
    yield from _scan(module, roots, written)


def _scan(module: GraphModule, roots: dict[Node, Roots], written: set[str]) -> Iterator[tuple[Node, str]]:
    for node in module.graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        operands = [item for item in flat_nodes((node.args, node.kwargs)) if item in roots]
        touched = frozenset(name for item in operands for name in roots[item])
        if is_loop(node):
            yield from _scan_loop(node, roots, written)
            continue
        if is_view(node) or node.target is operator.getitem:
            roots[node] = touched
            if not written_arguments(node):
                continue
        writes = frozenset(name for item in flat_nodes(written_arguments(node)) for name in roots.get(item, NONE))
        declared = info(node.target)
        if declared is None or not declared.meta.get("reads_written"):
            for name in sorted((touched & written) - writes):
                yield node, name
        written |= writes


def _scan_loop(node: Node, roots: dict[Node, Roots], written: set[str]) -> Iterator[tuple[Node, str]]:
    """The body once as the first iteration and once as a later one, where only the sliced parts are new.

    A slice of slot `x` is called `x/slice`: other iterations write other parts of it.
    """
    parts = loop_parts(node)

    def of(value: Any, rename: Callable[[str], str] = str) -> Roots:
        return frozenset(rename(name) for item in flat_nodes(value) for name in roots.get(item, NONE))

    inside: dict[Node, Roots] = {}
    for placeholder, operand in zip(parts.carried_inside, parts.carried, strict=True):
        inside[placeholder] = of(operand)
    for placeholder, operand in zip(parts.invariant_inside, parts.invariant, strict=True):
        inside[placeholder] = of(operand)
    for placeholder, operand in zip(parts.sliced_inside, parts.sliced, strict=True):
        inside[placeholder] = of(operand, lambda name: f"{name}/slice")
    before = set(written)
    slices = {name for names in inside.values() for name in names if name.endswith("/slice")}
    found: dict[Node, str] = {}
    for _ in range(2):
        current = set(written) | {name for name in slices if name.removesuffix("/slice") in before}
        for item, name in _scan(parts.body, dict(inside), current):
            found[item] = name.removesuffix("/slice")
        written |= {name for name in current if name not in slices}
        wrote_slices = {name.removesuffix("/slice") for name in current & slices}
    written |= wrote_slices
    yield from found.items()
    for position, value in enumerate((*parts.carried_out, *parts.stacked_out)):
        names = inside.get(value, NONE) if isinstance(value, Node) and position < len(parts.carried) else NONE
        for result in parts.results().get(position, []):
            roots[result] = names
