"""Which nodes of a step graph must be printed: what its outputs need, what mutates, and how often each is used."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node

from specc.backends.printing.dialect import Dialect
from specc.backends.printing.regions import Plan, RegionCall, planned
from specc.ir.loop import loop
from specc.ir.op import info
from specc.ir.scope import named_arguments


def loop_body(module: GraphModule, node: Node) -> GraphModule:
    """The body of a loop node of `module`."""
    attribute = node.args[1]
    assert isinstance(attribute, Node)
    assert isinstance(attribute.target, str)
    body = module.get_submodule(attribute.target)
    assert isinstance(body, GraphModule)
    return body


def output_node(module: GraphModule) -> Node:
    """The output node of a graph."""
    return next(node for node in reversed(module.graph.nodes) if node.op == "output")


def is_impure(module: GraphModule, node: Node) -> bool:
    """True for a mutating op, and for a loop whose body has one."""
    if node.op != "call_function":
        return False
    if node.target is loop:
        body = loop_body(module, node)
        return any(is_impure(body, inner) for inner in body.graph.nodes)
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def getitem_users(node: Node) -> dict[int, list[Node]] | None:
    """Users of a tuple result by index; None if anything but `getitem` uses it."""
    found: dict[int, list[Node]] = {}
    for user in node.users:
        if user.target is not operator.getitem or user.args[0] is not node or not isinstance(user.args[1], int):
            return None
        found.setdefault(user.args[1], []).append(user)
    return found


@dataclass(slots=True)
class Liveness:
    """`nodes` must be printed; `uses` counts how often printed code reads a node; `results` holds, per loop, the
    positions of `(*carried', *stacked)` that are wanted; `outputs` the wanted positions of the graph itself."""

    outputs: frozenset[int]
    nodes: set[Node] = field(default_factory=set)
    uses: dict[Node, int] = field(default_factory=dict)
    loop_operands: set[Node] = field(default_factory=set)
    results: dict[Node, frozenset[int]] = field(default_factory=dict)
    bodies: dict[Node, Liveness] = field(default_factory=dict)
    plan: Plan = field(default_factory=lambda: planned(()))

    def count(self, nodes: Iterable[Node]) -> None:
        """Mark as needed, with one more use each."""
        for node in nodes:
            self.nodes.add(node)
            self.uses[node] = self.uses.get(node, 0) + 1


def analyse(module: GraphModule, dialect: Dialect, outputs: Iterable[int] | None = None) -> Liveness:
    """Liveness of `module` for the given output positions (None: all); operands count as `dialect` prints them."""
    values = output_node(module).args[0]
    assert isinstance(values, (tuple, list))
    wanted = frozenset(range(len(values)) if outputs is None else outputs)
    live = Liveness(wanted, plan=plan_of(module, dialect))
    live.count(value for position, value in enumerate(values) if position in wanted and isinstance(value, Node))
    for node in reversed(live.plan.order):
        if isinstance(node, RegionCall):
            if node.impure or any(item in live.nodes for item in node.outputs):
                live.count(node.inputs)
            continue
        if node not in live.nodes and not is_impure(module, node):
            continue
        live.nodes.add(node)
        if node.target is loop:
            _analyse_loop(module, node, live, dialect)
        else:
            operands: list[Node] = []
            torch.fx.node.map_arg(read_arguments(node, dialect), operands.append)
            live.count(operands)
    return live


def plan_of(module: GraphModule, dialect: Dialect) -> Plan:
    """The order of the graph's statements: its own, unless the dialect forms regions."""
    if dialect.regions is not None:
        return dialect.regions(module)
    return planned([node for node in module.graph.nodes if node.op == "call_function"])


def read_arguments(node: Node, dialect: Dialect) -> Any:
    """The arguments that the printed call has: those of an op's schedule, or of what stands for an aten node."""
    declared = info(node.target)
    chosen = None if declared is None else dialect.variant(declared.name, named_arguments(node))
    if chosen is None:
        special = dialect.special(node)
        return (node.args, node.kwargs) if special is None else special[1]
    given = named_arguments(node)
    return [given[name] for name in chosen.operands]


def _analyse_loop(module: GraphModule, node: Node, live: Liveness, dialect: Dialect) -> None:
    body = loop_body(module, node)
    _, _, trip, carried, sliced, invariant = node.args
    assert isinstance(carried, (list, tuple))
    assert isinstance(sliced, (list, tuple))
    assert isinstance(invariant, (list, tuple))
    users = getitem_users(node)
    values = output_node(body).args[0]
    assert isinstance(values, (list, tuple))
    if users is None:
        wanted = set(range(len(values)))
    else:
        wanted = {position for position, items in users.items() if any(item in live.nodes for item in items)}
    placeholders = [item for item in body.graph.nodes if item.op == "placeholder"]
    inner = analyse(body, dialect, wanted)
    while True:
        more = {position for position in range(len(carried)) if placeholders[1 + position] in inner.nodes} - wanted
        if not more:
            break
        wanted |= more
        inner = analyse(body, dialect, wanted)
    live.results[node], live.bodies[node] = frozenset(wanted), inner
    for position, operand in enumerate(carried):
        if position in wanted:
            _operand(live, operand, is_loop=False)
    for position, operand in enumerate([*sliced, *invariant]):
        first = trip is None and position == 0
        if first or placeholders[1 + len(carried) + position] in inner.nodes:
            _operand(live, operand, is_loop=True)


def _operand(live: Liveness, operand: Any, *, is_loop: bool) -> None:
    found: list[Node] = []
    torch.fx.node.map_arg(operand, found.append)
    live.count(found)
    if is_loop:
        live.loop_operands.update(found)
