"""The loop over layers around a body that computes all tokens at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from specc.ir.build import GraphBuilder
from specc.ir.edit import LoopParts, inherit
from specc.ir.loop import Operand, trip_count
from specc.passes.layer_major.batch import NAME, Batcher
from specc.passes.layer_major.values import (
    Batched,
    Carried,
    Dropped,
    Index,
    Refused,
    Rows,
    StateAfter,
    Uniform,
    Written,
    describe,
)


class _LayerBody:
    """Operands and placeholders of the new loop over layers while it is put together."""

    def __init__(self, outer: Batcher, parts: LoopParts) -> None:
        self.outer, self.parts = outer, parts
        keys = tuple(parts.node.meta.get("keys", ()))
        self.builder = GraphBuilder(keys, NAME)
        inside = next(
            scope for scope in outer.scope.inner() if scope.loop is not None and scope.loop.node is parts.node
        )
        self.inner = replace(outer, builder=self.builder, scope=inside, env={})
        self.operands: dict[str, list[Node]] = {"carried": [], "sliced": [], "invariant": []}
        self._place(parts.index, parts.index.meta["val"])

    def _place(self, old: Node, value: Any, name: str | None = None) -> Node:
        made = self.builder.placeholder(name or old.name, value)
        inherit(made, old, NAME)
        self.inner.env[old] = Uniform(made)
        return made

    def _hand_in(self, group: str, operand: Node, old: Node, name: str | None = None) -> Node:
        self.operands[group].append(operand)
        return self._place(old, _inside_type(operand, group), name)

    def add(self, group: str, operand: Any, old: Node) -> None:
        """One operand of the old loop: what it is inside the new one. Raises Refused."""
        value = self.outer.env[operand]
        if isinstance(value, Index):
            self.inner.env[old] = value
            return
        if isinstance(value, Carried) and not value.sliced and group != "carried":
            committed = (
                None if value.committed is None else self._hand_in(group, value.committed, old, value.committed.name)
            )
            self.inner.env[old] = Carried(value.place, group == "sliced", committed)
            return
        tokens_sliced = group == "sliced" and isinstance(value, Rows) and value.axis == 0
        if tokens_sliced or not isinstance(value, (Uniform, Rows)):
            raise Refused(f"`{operand.name}` ({describe(value)}) goes into the loop over layers as {group}")
        made = self._hand_in(group, value.node, old)
        if isinstance(value, Rows):
            self.inner.env[old] = Rows(made, value.axis - (group == "sliced"), value.ancestors)

    def outputs(self, results: Sequence[Any]) -> tuple[list[Node], list[Batched]]:
        """(nodes that the body returns, what the results are outside without their nodes yet). Tables of states that
        only the recurrence reads have none."""
        nodes: list[Node] = []
        kinds: list[Batched] = []
        first = len(self.parts.carried)
        for place, result in enumerate(results):
            stacked = place >= first
            kinds.append(result)
            if isinstance(result, Written) and stacked and result.rows is None:
                continue
            source = result.rows if isinstance(result, Written) and stacked else result
            if isinstance(result, StateAfter) and stacked and result.last is not None:
                source = Uniform(result.last)
            if not isinstance(source, (Uniform, Rows, Dropped)):
                raise Refused(f"result {place} of the loop over layers is {describe(result)}")
            if not stacked:
                before = self.inner.env[self.parts.carried_inside[place]]
                if type(before) is not type(result) or getattr(before, "axis", 0) != getattr(result, "axis", 0):
                    raise Refused(f"`{self.parts.carried_inside[place].name}` changes its kind from layer to layer")
            nodes.append(source.node)
        return nodes, kinds


def _inside_type(node: Node, group: str) -> Any:
    value: Operand = node.meta["val"]
    if group != "sliced":
        return value
    return value.select(0, 0) if isinstance(value, torch.Tensor) else value[0]


def _outside(kind: Batched, made: Iterator[Node], stacked: bool) -> Batched:
    """A result of the layer loop in the scope around it, by its node there; stacking adds dim 0."""
    if isinstance(kind, Written) and kind.rows is None:
        return kind
    node = next(made)
    if isinstance(kind, Uniform):
        return Uniform(node)
    if isinstance(kind, StateAfter):
        return StateAfter(kind.place, kind.sliced, node, None)
    if isinstance(kind, Written):
        assert kind.rows is not None
        return Written(kind.place, kind.sliced, Rows(node, kind.rows.axis + 1), kind.shift, kind.size)
    assert isinstance(kind, (Rows, Dropped))
    return type(kind)(node, kind.axis + stacked)


def batch_layers(outer: Batcher, parts: LoopParts) -> tuple[Batched, ...]:
    """The loop over layers with its body over all tokens. Raises Refused."""
    body = _LayerBody(outer, parts)
    groups = (
        ("carried", parts.carried, parts.carried_inside),
        ("sliced", parts.sliced, parts.sliced_inside),
        ("invariant", parts.invariant, parts.invariant_inside),
    )
    for group, operands, inside in groups:
        for operand, old in zip(operands, inside, strict=True):
            body.add(group, operand, old)
    nodes, kinds = body.outputs(body.inner.run())
    trip = trip_count(parts.axis, parts.trip, [operand.meta["val"] for operand in parts.sliced])
    made = outer.builder.loop(
        "layer",
        body.builder.output(nodes),
        trip=trip,
        carried=body.operands["carried"],
        sliced=body.operands["sliced"],
        invariant=body.operands["invariant"],
        name=str(parts.attribute.target).removesuffix("_body"),
    )
    for node in (*made, *(user for item in made[:1] for user in item.all_input_nodes)):
        inherit(node, parts.node, NAME)
    first = len(parts.carried)
    rest = iter(made)
    return tuple(_outside(kind, rest, place >= first) for place, kind in enumerate(kinds))
