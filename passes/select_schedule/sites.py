"""Where the delta rule stands in the step graphs, and which slot's state each occurrence works on."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch.fx import GraphModule, Node

from specc.ir import ops
from specc.ir.edit import is_loop, loop_parts
from specc.ir.port import Port
from specc.ir.scope import Scope, Value

VERIFY = (ops.delta_rule_verify, ops.delta_rule_verify_states, ops.delta_rule_verify_pending)
COMMIT = (ops.delta_rule_commit,)
CHAIN = (ops.delta_rule,)
STATE_FIRST = frozenset({*VERIFY, *COMMIT, *CHAIN, ops.delta_rule_chunk})
"""Ops whose first operand is a state, and that return what becomes of it."""


@dataclass(frozen=True, slots=True)
class Site:
    """One op of the delta rule: `slot` holds the committed state that it works on (None: it is no slot's)."""

    scope: Scope
    node: Node
    slot: str | None

    def argument(self, name: str) -> Any:
        """An operand by its schema name."""
        return self.node.args[argument_place(self.node, name)]


def argument_place(node: Node, name: str) -> int:
    """The position of an operand of an op of ours."""
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    return names.index(name)


def state_slot(value: Value) -> str | None:
    """The slot that a state comes from: through slices, folds of what is pending, and loops that did those."""
    value = value.resolved()
    node, scope = value.node, value.scope
    role = scope.role(node)
    if role is not None:
        if role[0] != "slice" or scope.loop is None or scope.parent is None:
            return None
        operand = scope.loop.sliced[role[1]]
        return state_slot(Value(scope.parent, operand)) if isinstance(operand, Node) else None
    if node.op == "placeholder":
        port = node.meta.get("port")
        return port.name if isinstance(port, Port) and port.kind == "slot" else None
    if node.target is operator.getitem and isinstance(node.args[0], Node):
        source: Node = node.args[0]
        if is_loop(source):
            return _from_loop(scope, source, int(node.args[1]))  # type: ignore[arg-type]
        return state_slot(Value(scope, source))
    first = node.args[0] if node.args else None
    return state_slot(Value(scope, first)) if node.target in STATE_FIRST and isinstance(first, Node) else None


def _from_loop(scope: Scope, node: Node, number: int) -> str | None:
    parts = loop_parts(node)
    made = (*parts.carried_out, *parts.stacked_out)[number]
    return state_slot(Value(Scope(parts.body, parts, scope), made)) if isinstance(made, Node) else None


def sites(module: GraphModule) -> Iterator[Site]:
    """Every op of the delta rule in a graph, loops included."""
    targets = frozenset({*VERIFY, *COMMIT, *CHAIN})
    for scope in Scope(module).walk():
        for node in scope.module.graph.nodes:
            if node.op == "call_function" and node.target in targets:
                first = node.args[0]
                yield Site(scope, node, state_slot(Value(scope, first)) if isinstance(first, Node) else None)


def state_is_read(node: Node) -> bool:
    """Whether anything reads the state after a `delta_rule`."""
    return any(
        user.target is not operator.getitem or (user.args[1] == 2 and len(user.users) > 0) for user in node.users
    )
