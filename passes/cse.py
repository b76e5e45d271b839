"""cse: equal computations happen once, and what a loop computes anew in every iteration moves in front of it.

    loop layer invariant=[%length] {             %r = aten.unsqueeze(%length, 1)
      %p = aten.unsqueeze(%length, 1)      ->    loop layer invariant=[%length, %r] { …
      …

Merges equal nodes, equal loops, a value passed into a loop twice, and a loop result returned twice. Nothing is merged
across a write, and no tensor that is itself written; two outputs of a step graph stay two tensors.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from specc.ir.clone import clone
from specc.ir.edit import (
    LoopParts,
    add_invariant,
    erase_dead,
    finish,
    inherit,
    is_impure,
    is_loop,
    loop_parts,
    replace,
)
from specc.ir.effects import flat_nodes, is_view, written_arguments
from specc.ir.printer import print_module
from specc.ir.text import ARITHMETIC
from specc.manager import ALL_PROPERTIES, Note, Pass, PassContext, PassResult
from specc.program import DecodeProgram

NAME = "cse"


def _key(argument: Any) -> Any:
    """Hashable form of an argument that keeps 1, 1.0 and True apart."""
    if isinstance(argument, Node):
        return argument
    if isinstance(argument, (list, tuple)):
        return (type(argument) is tuple, *(_key(item) for item in argument))
    if isinstance(argument, dict):
        return tuple((name, _key(item)) for name, item in sorted(argument.items()))
    if isinstance(argument, slice):
        return ("slice", _key(argument.start), _key(argument.stop), _key(argument.step))
    return (type(argument), repr(argument))


def _is_deterministic(node: Node) -> bool:
    """An op of torch or ours without effects and without a hidden generator, or integer arithmetic."""
    if node.op != "call_function" or is_impure(node):
        return False
    if isinstance(node.target, torch._ops.OpOverload):
        return torch.Tag.nondeterministic_seeded not in node.target.tags
    return node.target in ARITHMETIC.values() or is_loop(node)


def _written(module: GraphModule) -> set[Node]:
    """Nodes whose memory is written somewhere: operands of writing ops, and what those may be views of."""
    todo: list[Node] = []
    for node in module.graph.nodes:
        if node.op in ("placeholder", "output") or not is_impure(node):
            continue
        exact = list(flat_nodes(written_arguments(node)))
        todo += exact or list(flat_nodes((node.args, node.kwargs)))
    seen: set[Node] = set()
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            known = isinstance(node.target, torch._ops.OpOverload)
            if is_view(node) or (node.op.startswith("call") and not known):
                todo += node.all_input_nodes
    return seen


def _merge_nodes(module: GraphModule, counts: Counter[str], top: bool) -> None:
    written = _written(module)
    output = module.graph.output_node()
    first: dict[Any, Node] = {}
    epoch = 0
    for node in list(module.graph.nodes):
        if node.op not in ("placeholder", "output", "get_attr") and is_impure(node):
            epoch += 1
            continue
        if node in written or not _is_deterministic(node):
            continue
        arguments: Any = node.args
        if is_loop(node):
            arguments = (node.args[0], print_module(loop_parts(node).body, comments=False), *node.args[2:])
        key = (node.target, _key(arguments), _key(dict(node.kwargs)), epoch)
        known = first.setdefault(key, node)
        if known is node or (top and output in known.users and output in node.users):
            continue
        replace(node, known, NAME)
        counts["equal nodes"] += 1


def _merge_operands(parts: LoopParts, counts: Counter[str]) -> None:
    """One placeholder inside for an operand that is passed in twice in the same way."""
    for operands, inside in ((parts.sliced, parts.sliced_inside), (parts.invariant, parts.invariant_inside)):
        first: dict[Any, Node] = {}
        for operand, placeholder in zip(operands, inside, strict=True):
            known = first.setdefault(_key(operand), placeholder)
            if known is not placeholder and placeholder.users:
                inherit(known, placeholder, NAME)
                placeholder.replace_all_uses_with(known)
                counts["equal loop operands"] += 1


def _merge_results(parts: LoopParts, counts: Counter[str]) -> None:
    """Readers of a stacked result that equals an earlier one read that."""
    first: dict[Any, int] = {}
    results = parts.results()
    count = len(parts.carried)
    for place, value in enumerate(parts.stacked_out, count):
        known = first.setdefault(_key(value), place)
        if known == place or not results.get(place):
            continue
        for user in results[place]:
            user.args = (parts.node, known)
            user.meta["passes"] = (*user.meta.get("passes", ()), NAME)
        counts["equal loop results"] += 1


def _hoist(module: GraphModule, node: Node, counts: Counter[str]) -> None:
    """Move what depends on invariants only out of a loop without effects."""
    parts = loop_parts(node)
    outside: dict[Node, Any] = dict(zip(parts.invariant_inside, parts.invariant, strict=True))
    hoisted: list[Node] = []
    for item in parts.body.graph.nodes:
        inputs = item.all_input_nodes
        if not inputs or is_loop(item) or not _is_deterministic(item) or not all(one in outside for one in inputs):
            continue
        with module.graph.inserting_before(node):
            made = module.graph.create_node(
                "call_function",
                item.target,
                map_arg(item.args, lambda one: outside[one]),
                map_arg(item.kwargs, lambda one: outside[one]),
                item.name,
            )
        made.meta = dict(item.meta)
        made.meta["passes"] = tuple(dict.fromkeys((*item.meta.get("passes", ()), NAME)))
        outside[item] = made
        hoisted.append(item)
    for item in hoisted:
        readers = [user for user in item.users if user not in outside]
        if readers:
            inside = add_invariant(node, outside[item], item.name)
            item.replace_all_uses_with(inside, delete_user_cb=readers.__contains__)
            counts["loop-invariant nodes"] += 1


def cse_in_place(module: GraphModule) -> Counter[str]:
    """Merge and hoist in the module and its loop bodies; how often each kind of merge happened."""
    counts: Counter[str] = Counter()
    while True:
        before = counts.total()
        _visit(module, counts, True)
        erase_dead(module)
        if counts.total() == before:
            return counts


def _visit(module: GraphModule, counts: Counter[str], top: bool) -> None:
    for node in list(module.graph.nodes):
        if is_loop(node):
            _merge_operands(loop_parts(node), counts)
            _visit(loop_parts(node).body, counts, False)
            _merge_results(loop_parts(node), counts)
            if not is_impure(node):
                _hoist(module, node, counts)
    _merge_nodes(module, counts, top)


def eliminate_common_subexpressions(module: GraphModule) -> GraphModule:
    """A copy of any graph module with equal computations merged."""
    made = clone(module)
    cse_in_place(made)
    return finish(made)


@dataclass(frozen=True, slots=True)
class CommonSubexpressions(Pass):
    """Merging and hoisting on every step graph."""

    name: ClassVar[str] = NAME
    preserves: ClassVar[frozenset[str]] = ALL_PROPERTIES

    def run(self, program: DecodeProgram, ctx: PassContext) -> PassResult:
        """See Pass."""
        graphs: dict[str, GraphModule] = {}
        notes: list[Note] = []
        for name, module in program.graphs.items():
            made = clone(module)
            counts = cse_in_place(made)
            if counts:
                graphs[name] = finish(made)
                notes += [Note(NAME, name, f"merged or moved {count} {kind}") for kind, count in sorted(counts.items())]
        return PassResult(program.with_graphs(**graphs), bool(graphs), tuple(notes))
