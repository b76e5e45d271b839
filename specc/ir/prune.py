"""Removal of what nobody reads from loop signatures: carried values, slices, invariants and stacked results."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.fx import GraphModule, Node

from specc.ir.build import output_node, output_values
from specc.ir.edit import LoopParts, erase_dead, is_impure, is_loop, loop_parts


def prune(module: GraphModule) -> bool:
    """Erase dead nodes and, at any depth, loop operands and results that nothing needs; True where any was.

    A carried value is needed if its result is, or if a needed result of the body depends on it (a fixpoint: a table
    that only feeds itself goes). In place; types stay right.
    """
    changed = False
    while _prune_once(module):
        changed = True
    return changed


def _prune_once(module: GraphModule) -> bool:
    """Bodies before their loops: an operand that only a dead part of an inner loop read frees what feeds it."""
    changed = erase_dead(module)
    for node in reversed(module.graph.nodes):
        if is_loop(node):
            changed |= _prune_once(loop_parts(node).body)
            changed |= _prune_loop(loop_parts(node))
    return erase_dead(module) or changed


def _needed(body: GraphModule, outputs: Iterable[Any]) -> set[Node]:
    """All nodes of the body that these outputs, or effects, depend on."""
    todo = [item for item in outputs if isinstance(item, Node)]
    todo += [node for node in body.graph.nodes if node.op not in ("placeholder", "output") and is_impure(node)]
    seen: set[Node] = set()
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo.extend(node.all_input_nodes)
    return seen


def _live_carried(parts: LoopParts, read: set[int]) -> tuple[list[int], set[Node]]:
    count = len(parts.carried)
    stacked = [value for place, value in enumerate(parts.stacked_out) if place + count in read]
    live = {place for place in range(count) if place in read}
    while True:
        needed = _needed(parts.body, [*stacked, *(parts.carried_out[place] for place in live)])
        grown = live | {place for place, node in enumerate(parts.carried_inside) if node in needed}
        if grown == live:
            return sorted(live), needed
        live = grown


def _trip_source(parts: LoopParts) -> set[int]:
    """The slice that gives the number of iterations stays where nothing else does."""
    return {0} if parts.trip is None else set()


def _prune_loop(parts: LoopParts) -> bool:
    results = parts.results()
    carried, needed = _live_carried(parts, set(results))
    first = len(parts.carried)
    stacked = [place for place in range(len(parts.stacked_out)) if place + first in results]
    keep = _trip_source(parts)
    sliced = [i for i, node in enumerate(parts.sliced_inside) if node in needed or i in keep]
    invariant = [i for i, node in enumerate(parts.invariant_inside) if node in needed]
    counts = (len(carried), len(stacked), len(sliced), len(invariant))
    if counts == (first, len(parts.stacked_out), len(parts.sliced), len(parts.invariant)):
        return False
    kept = [*carried, *(place + first for place in stacked)]
    _shrink_body(parts, kept)
    _drop(parts.carried_inside, carried)
    _drop(parts.sliced_inside, sliced)
    _drop(parts.invariant_inside, invariant)
    parts.node.args = (
        parts.axis,
        parts.attribute,
        parts.trip,
        [parts.carried[place] for place in carried],
        [parts.sliced[place] for place in sliced],
        [parts.invariant[place] for place in invariant],
    )
    types = parts.node.meta["val"]
    parts.node.meta["val"] = tuple(types[place] for place in kept)
    for old, users in results.items():
        for user in users:
            user.args = (parts.node, kept.index(old))
    return True


def _shrink_body(parts: LoopParts, kept: list[int]) -> None:
    output = output_node(parts.body)
    values = output_values(parts.body)
    output.args = (tuple(values[place] for place in kept),)
    output.meta["val"] = tuple(output.meta["val"][place] for place in kept)
    erase_dead(parts.body)


def _drop(inside: tuple[Node, ...], kept: list[int]) -> None:
    for place, node in enumerate(inside):
        if place not in kept:
            node.graph.erase_node(node)
