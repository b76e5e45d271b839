"""Greedy acceptance as one op, which merges the parts that a vocabulary was divided into for its argmax.

    choice = argmax(logits), the walk of `specc.lower.accept`, choice[current]
        ->    greedy_tree(argmax_parts(logits), tokens, parent, valid)

The programs of the argmax then need not wait for the last of them. A walk is recognised by comparing the graph with
what lowering makes of the rule; a graph that differs in anything keeps its loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from specc.backends.triton.isomorphism import Match
from specc.backends.triton.ops.vocab import ARGMAX_SPAN, part_size
from specc.backends.triton.vocabulary import KERNEL_TYPES, walk_pattern
from specc.ir import ops
from specc.ir.build import output_values
from specc.ir.clone import clone
from specc.ir.edit import Editor, finish, is_loop, loop_parts
from specc.ir.prune import prune
from specc.lower.config import AcceptConfig
from specc.passes.canonicalize import canonicalize
from specc.passes.cse import eliminate_common_subexpressions

ORIGIN = "written-walk"
MOST_NODES = 64
aten = torch.ops.aten


def greedy_walks(module: GraphModule) -> GraphModule:
    """A copy of a step graph with one op for a greedy walk."""
    made = clone(module)
    for node in [item for item in made.graph.nodes if is_loop(item)]:
        _walk(made, node)
    prune(made)
    return finish(made)


def _walk(module: GraphModule, loop: Node) -> None:
    parts = loop_parts(loop)
    found = [item for item in parts.invariant if isinstance(item, Node) and item.target is aten.argmax.default]
    carried = [item.meta["val"] for item in parts.carried if isinstance(item, Node)]
    longest = [item.shape[1] for item in carried if item.dim() == 2 and item.dtype == torch.int64]
    if parts.axis != "token" or len(found) != 1 or len(longest) != 1 or tuple(found[0].args[1:]) != (-1,):
        return
    logits: Any = found[0].args[0]
    value = logits.meta["val"]
    if value.dtype not in KERNEL_TYPES or value.dim() != 3 or value.shape[1] > MOST_NODES:
        return
    for pattern in _patterns(value, longest[0]):
        if _replaced(module, loop, logits, pattern, longest[0]):
            return


def _patterns(value: torch.Tensor, longest: int) -> Iterator[GraphModule]:
    """Walks of trees and chains, as lowering makes them and as passes leave them."""
    for chain in (False, True):
        made = walk_pattern(AcceptConfig(method="greedy"), value, longest, chain)
        yield made
        yield eliminate_common_subexpressions(canonicalize(made))


def _replaced(module: GraphModule, loop: Node, logits: Node, pattern: GraphModule, longest: int) -> bool:
    """Puts one op in the place of a walk that equals the pattern."""
    current, path, count, bonus = output_values(pattern)
    last = bonus.args[0] if bonus.target is aten.squeeze.dim else bonus
    for end in [item for item in module.graph.nodes if item.target is last.target]:
        match = Match()
        if not match.same(last, end) or match.partner(current.args[0]).node is not loop:
            continue
        places = {number: _place(match, loop, node) for number, node in enumerate((path, count))}
        if None in places.values():
            continue
        inputs = {str(item.name): match.pairs[item] for item in pattern.graph.nodes if item in match.pairs}
        names = (inputs["tokens"], inputs.get("parent"), inputs["valid"])
        span = part_size(logits.meta["val"].shape[-1], ARGMAX_SPAN)
        editor = Editor(module, ORIGIN)
        with editor.before(loop, loop, end):
            walked = editor.call(ops.greedy_tree, editor.call(ops.argmax_parts, logits, span), *names, longest)
            items = [editor.item(walked, number) for number in range(4)]
            after = editor.call(aten.unsqueeze.default, items[3], 1) if end.meta["val"].dim() == 2 else items[3]
        results = loop_parts(loop).results()
        own: dict[Any, Node] = {places[0]: items[0], places[1]: items[1], match.pairs[current].args[1]: items[2]}
        for place, item in own.items():
            for user in results.get(place, ()):
                editor.replace(user, item)
        editor.replace(end, after)
        return True
    return False


def _place(match: Match, loop: Node, node: Node) -> int | None:
    """The number of the graph's result that is the pattern's result `node`."""
    own, number = node.args[0], int(str(node.args[1]))
    assert isinstance(own, Node)
    inside = loop_parts(own).carried_inside[number]
    others = loop_parts(loop).carried_inside
    if inside in match.pairs:
        return others.index(match.pairs[inside])
    taken = {match.pairs[item] for item in loop_parts(own).carried_inside if item in match.pairs}
    left = [at for at, item in enumerate(others) if item not in taken and _shape(item) == _shape(inside)]
    return left[0] if len(left) == 1 and match.carried(own, number, left[0]) else None


def _shape(node: Node) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)
