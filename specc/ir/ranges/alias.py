"""Which nodes share storage that some node writes in place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from specc.ir.edit import is_impure, is_loop, loop_parts
from specc.ir.ranges.calls import Call, call_of
from specc.ir.ranges.rules import RULES

# Results of these never share storage with an operand. Every other op may return a view of its tensor operands.
_VIEW_NAMES = (
    "view reshape expand expand_as unsqueeze squeeze permute transpose t flatten unflatten select slice narrow movedim "
    "diagonal contiguous detach alias unfold ravel broadcast_to view_as reshape_as swapdims cpu cuda lift_fresh "
    "pin_memory positive split split_with_sizes chunk unbind tensor_split hsplit vsplit broadcast_tensors getitem to "
    "type long int short char byte bool type_as getattr"
)
_VIEWS = frozenset(_VIEW_NAMES.split())


def written_groups(module: GraphModule, salt: int) -> dict[Node, int]:
    """Nodes whose storage may be written in place -> a number per storage (unique with `salt` across modules).

    Empty for a graph with value semantics. A loop shares no storage unless its body writes; then the operands that
    it writes, and the results that are those operands, do.
    """
    if not any(_writes(node) for node in module.graph.nodes):
        return {}
    parent: dict[Node, Node] = {}

    def find(node: Node) -> Node:
        while parent.get(node, node) is not node:
            node = parent[node]
        return node

    written: list[Node] = []
    for node in module.graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        for one, other in _shared(node, salt):
            parent[find(one)] = find(other)
        written += _written(node, salt)
    order = {node: position for position, node in enumerate(module.graph.nodes)}
    roots = sorted({find(node) for node in written}, key=order.__getitem__)
    numbers = {root: salt * 1_000_000 + position for position, root in enumerate(roots)}
    return {node: numbers[find(node)] for node in module.graph.nodes if find(node) in numbers}


def _writes(node: Node) -> bool:
    if is_loop(node):
        return is_impure(node)
    call = call_of(node)
    return call is not None and call.in_place


def _shared(node: Node, salt: int) -> Iterator[tuple[Node, Node]]:
    """Pairs of nodes that may share storage because of `node`."""
    if is_loop(node):
        yield from _shared_by_loop(node, salt)
        return
    call = call_of(node)
    if call is not None and is_loop_result(node):
        return
    if call is not None and not call.in_place and call.name in RULES and call.name not in _VIEWS:
        return
    if _returns_no_operand(node.target):
        return
    written = call.written if call is not None else None
    operands = node.all_input_nodes if written is None else [written]
    for operand in operands:
        yield operand, node


def _returns_no_operand(target: object) -> bool:
    return isinstance(target, OpOverload) and not any(result.alias_info for result in target._schema.returns)


def hides_writes(call: Call) -> bool:
    """Whether a call writes operands of which no result is an alias: nothing else shows what it leaves there."""
    return call.in_place and _returns_no_operand(call.node.target)


def written_operands(call: Call) -> list[Node]:
    """The operands that a call writes in place, by its schema where it has one; the first is `call.written`, if any."""
    node = call.node
    if not call.in_place:
        return []
    if not isinstance(node.target, OpOverload):
        return [] if call.written is None else [call.written]
    given: list[Any] = []
    for position, argument in enumerate(node.target._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given.append(call.arg(position, argument.name))
    flat = [item for one in given for item in (one if isinstance(one, (list, tuple)) else (one,))]
    return [item for item in flat if isinstance(item, Node)]


def is_loop_result(node: Node) -> bool:
    """`getitem` of a loop."""
    source = node.args[0] if node.args else None
    return isinstance(source, Node) and is_loop(source)


def _written(node: Node, salt: int) -> list[Node]:
    if not _writes(node):
        return []
    if not is_loop(node):
        call = call_of(node)
        found = written_operands(call) if call is not None else []
        return found or node.all_input_nodes
    parts = loop_parts(node)
    groups = written_groups(parts.body, salt + 1)
    return [
        operand
        for inside, operand in zip(parts.inside, parts.operands, strict=True)
        if inside in groups and isinstance(operand, Node)
    ]


def _shared_by_loop(node: Node, salt: int) -> Iterator[tuple[Node, Node]]:
    if not is_impure(node):
        return
    parts = loop_parts(node)
    groups = written_groups(parts.body, salt + 1)
    first: dict[int, Node] = {}
    for inside, operand in zip(parts.inside, parts.operands, strict=True):
        if inside in groups and isinstance(operand, Node):
            yield operand, first.setdefault(groups[inside], operand)
    results = parts.results()
    for position, value in enumerate((*parts.carried_out, *parts.stacked_out)):
        if isinstance(value, Node) and value in groups and groups[value] in first:
            for result in results.get(position, []):
                yield result, first[groups[value]]
