"""Which nodes share storage that some node writes in place."""

from __future__ import annotations

from torch.fx import GraphModule, Node

from specc.ir.edit import is_impure, is_loop
from specc.ir.ranges.calls import call_of
from specc.ir.ranges.rules import RULES

# Results of these never share storage with an operand. Every other op may return a view of its tensor operands.
_FRESH = frozenset(RULES) - frozenset(
    "view reshape expand expand_as unsqueeze squeeze permute transpose t flatten unflatten select slice narrow movedim "
    "diagonal contiguous detach alias unfold ravel broadcast_to view_as reshape_as swapdims cpu cuda lift_fresh "
    "pin_memory positive split split_with_sizes chunk unbind tensor_split hsplit vsplit broadcast_tensors getitem to "
    "type long int short char byte bool type_as getattr".split()
)


def written_groups(module: GraphModule, salt: int) -> dict[Node, int]:
    """Nodes whose storage may be written in place -> a number per storage (unique with `salt` across modules).

    Empty for a graph with value semantics.
    """
    writers = [node for node in module.graph.nodes if _writes(node)]
    if not writers:
        return {}
    parent: dict[Node, Node] = {}

    def find(node: Node) -> Node:
        while parent.get(node, node) is not node:
            node = parent[node]
        return node

    for node in module.graph.nodes:
        call = call_of(node)
        fresh = call is not None and not call.in_place and call.name in _FRESH
        if node.op in ("placeholder", "get_attr", "output") or fresh:
            continue
        operands = node.all_input_nodes[:1] if call is not None and call.in_place else node.all_input_nodes
        for operand in operands:
            parent[find(operand)] = find(node)
    roots = {find(operand) for node in writers for operand in _written(node)}
    numbers = {root: salt * 1_000_000 + position for position, root in enumerate(sorted(roots, key=str))}
    return {node: numbers[find(node)] for node in module.graph.nodes if find(node) in numbers}


def _writes(node: Node) -> bool:
    if is_loop(node):
        return is_impure(node)
    call = call_of(node)
    return call is not None and call.in_place


def _written(node: Node) -> list[Node]:
    """A loop whose body writes may write any of its operands."""
    return node.all_input_nodes if is_loop(node) else node.all_input_nodes[:1]
