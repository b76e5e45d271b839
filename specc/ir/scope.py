"""Values of loop bodies in their context: where a body's placeholder comes from, at any depth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.fx import GraphModule, Node

from specc.ir.build import fake_mode
from specc.ir.edit import LoopParts, is_loop, loop_parts
from specc.ir.loop import slice_operand

Role = Literal["index", "carried", "slice", "invariant"]


@dataclass(frozen=True, slots=True, eq=False)
class Scope:
    """A graph module with the loop it is the body of (None: a step graph) and that loop's own scope."""

    module: GraphModule
    loop: LoopParts | None = None
    parent: Scope | None = None

    def role(self, node: Node) -> tuple[Role, int] | None:
        """What a placeholder of this body is, and its number among its kind; None for any other node."""
        if self.loop is None or node.op != "placeholder" or node.graph is not self.module.graph:
            return None
        if node is self.loop.index:
            return "index", 0
        groups: tuple[tuple[Role, tuple[Node, ...]], ...] = (
            ("carried", self.loop.carried_inside),
            ("slice", self.loop.sliced_inside),
            ("invariant", self.loop.invariant_inside),
        )
        return next((role, group.index(node)) for role, group in groups if node in group)

    def inner(self, axis: str | None = None) -> Iterator[Scope]:
        """The scopes of the loops that stand directly in this module."""
        for node in self.module.graph.nodes:
            if is_loop(node) and (axis is None or node.args[0] == axis):
                parts = loop_parts(node)
                yield Scope(parts.body, parts, self)

    def walk(self) -> Iterator[Scope]:
        """This scope and all scopes inside it, outer ones first."""
        yield self
        for scope in self.inner():
            yield from scope.walk()


@dataclass(frozen=True, slots=True)
class Value:
    """A node and the scope that it stands in."""

    scope: Scope
    node: Node

    def at(self, argument: Any) -> Value:
        """Another node of the same scope, followed outward through invariants. Raises Miss for a constant."""
        if not isinstance(argument, Node):
            raise Miss(f"`{self.node.name}` has a constant where a tensor is expected")
        return Value(self.scope, argument).resolved()

    def resolved(self) -> Value:
        """The value that an invariant placeholder stands for, outside all loops it is handed into."""
        value = self
        while (role := value.scope.role(value.node)) is not None and role[0] == "invariant":
            loop, parent = value.scope.loop, value.scope.parent
            assert loop is not None
            assert parent is not None
            value = Value(parent, loop.invariant[role[1]])
        return value

    def same(self, other: Value) -> bool:
        """True where both are one node (a body belongs to one loop, so that a node has one scope)."""
        return self.node is other.node

    def calls(self, *targets: object) -> bool:
        """True for a call of one of these."""
        return self.node.op == "call_function" and self.node.target in targets


class Miss(Exception):
    """A pattern does not match; the message says why, in words for `specc why`."""


def named_arguments(node: Node) -> dict[str, Any]:
    """Arguments of an OpOverload call by schema name (absent: left to their default)."""
    target = node.target
    assert isinstance(target, torch._ops.OpOverload)
    names = [argument.name for argument in target._schema.arguments]
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def with_arguments(node: Node, **changed: Any) -> tuple[Any, ...]:
    """Positional arguments of an OpOverload call with some replaced by schema name."""
    target = node.target
    assert isinstance(target, torch._ops.OpOverload)
    given = {**named_arguments(node), **changed}
    names = [argument.name for argument in target._schema.arguments]
    return tuple(given[name] for name in names if name in given)


def add_operand(loop: Node, kind: str, operand: Node, name: str) -> Node:
    """Hands one more slice or invariant into a loop; returns the body's new placeholder."""
    parts = loop_parts(loop)
    groups = {"sliced": parts.carried_inside + parts.sliced_inside, "invariant": parts.inside}
    before = groups[kind][-1] if groups[kind] else parts.index
    with parts.body.graph.inserting_after(before):
        made = parts.body.graph.placeholder(name)
    value = operand.meta["val"]
    if kind == "sliced":
        with fake_mode():
            value = slice_operand(parts.axis, value, 0)
    made.meta.update(val=value, keys=operand.meta.get("keys", ()), passes=operand.meta.get("passes", ()))
    arguments = list(loop.args)
    place = 4 if kind == "sliced" else 5
    arguments[place] = [*arguments[place], operand]  # type: ignore[misc]
    loop.args = tuple(arguments)
    return made
