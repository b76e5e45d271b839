"""Which values of a step graph are printed as one tensor per layer, and which share memory with a slot.

A layered slot is [L,B,...]: the layers come first, the rows of a batch second. A backend that writes slots in place,
one layer at a time, wants neither a stack of all layers nor a slot that is overwritten while another still reads it.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from specc.backends.printing.liveness import getitem_users, loop_body, output_node
from specc.ir.loop import loop
from specc.ir.port import Port
from specc.program import DecodeProgram

aten = torch.ops.aten
LAYER_AXIS = "layer"
# Overloads without an alias in their schema whose PyTorch form may return its operand.
MAY_RETURN_OPERAND = frozenset({aten._to_copy.default})


def layered_slots(program: DecodeProgram) -> frozenset[str]:
    """Names of the slots whose first dim is the layers."""
    return frozenset(name for name, slot in program.slots.items() if slot.batch_dim == 1)


def is_layer_of(node: Node, value: Node) -> bool:
    """Whether `node` is one fixed layer of the layered `value`."""
    return node.target is aten.select.int and node.args[0] is value and node.args[1:2] == (0,)


class LayerLists:
    """The nodes of a step graph, loop bodies included, that are one tensor per layer.

    They are layered slots and the stacked results of loops over layers, where all that reads them takes single layers:
    another such loop, a fixed layer, a slot.
    """

    def __init__(self, module: GraphModule, layered: frozenset[str]) -> None:
        self.nodes: set[Node] = set()
        for node in module.graph.nodes:
            port: Port | None = node.meta.get("port") if node.op == "placeholder" else None
            if port is not None and port.kind == "slot" and port.name in layered:
                self._try(module, [node], layered)
        self._results(module, layered)

    def _results(self, module: GraphModule, layered: frozenset[str]) -> None:
        for node in module.graph.nodes:
            if node.target is not loop:
                continue
            if node.args[0] == LAYER_AXIS:
                first = len(node.args[3])
                for position, items in (getitem_users(node) or {}).items():
                    if position >= first:
                        self._try(module, items, layered)
            self._results(loop_body(module, node), layered)

    def _try(self, module: GraphModule, values: Sequence[Node], layered: frozenset[str]) -> None:
        """Take all of `values`, which are printed alike, with the places of loop bodies that they reach, or none."""
        found: set[Node] = set()
        if all(self._by_layer(module, value, layered, found) for value in values):
            self.nodes |= found

    def _by_layer(self, module: GraphModule, value: Node, layered: frozenset[str], found: set[Node]) -> bool:
        found.add(value)
        return all(self._reads_layers(module, user, value, layered, found) for user in value.users)

    def _reads_layers(
        self, module: GraphModule, user: Node, value: Node, layered: frozenset[str], found: set[Node]
    ) -> bool:
        if user.op == "output":
            ports: Sequence[Port] = user.meta.get("ports", ())
            values: Any = user.args[0]
            taken = [port for port, item in zip(ports, values, strict=False) if item is value]
            return bool(taken) and all(port.kind == "slot" and port.name in layered for port in taken)
        if user.target is not loop:
            return is_layer_of(user, value)
        axis, _, _, carried, sliced, invariant = user.args
        assert isinstance(carried, (list, tuple))
        assert isinstance(sliced, (list, tuple))
        assert isinstance(invariant, (list, tuple))
        if any(item is value for item in carried):
            return False
        if any(item is value for item in sliced) and axis != LAYER_AXIS:
            return False
        body = loop_body(module, user)
        places = [node for node in body.graph.nodes if node.op == "placeholder"][1 + len(carried) + len(sliced) :]
        passed = [place for place, item in zip(places, invariant, strict=True) if item is value]
        return all(self._by_layer(body, place, layered, found) for place in passed)


def listed_results(module: GraphModule) -> frozenset[Node]:
    """Stacked results of loops over layers that only loops over layers read, layer by layer: they need no stack.

    None of them where one may be a part of a slot: a stack is a copy, and slots change in place.
    """
    found = LayerLists(module, frozenset()).nodes
    shared = slots_shared(module)
    own = [node for node in module.graph.nodes if node in found]
    apart = all(not shared.get(node) and all(user.target is loop for user in node.users) for node in own)
    return frozenset(found) if apart else frozenset()


def slots_shared(module: GraphModule) -> Mapping[Node, frozenset[str]]:
    """Node -> the slots whose memory its value may be, or be a view of; nodes of the top level only."""
    shared: dict[Node, frozenset[str]] = {}
    for node in module.graph.nodes:
        if node.op == "placeholder":
            port: Port = node.meta["port"]
            shared[node] = frozenset({port.name}) if port.kind == "slot" else frozenset()
    _spread(module, shared)
    return shared


def _spread(module: GraphModule, shared: dict[Node, frozenset[str]]) -> None:
    results: dict[Node, list[frozenset[str]]] = {}
    nothing = frozenset[str]()
    for node in module.graph.nodes:
        if node.op != "call_function":
            continue
        source = node.args[0] if node.args else None
        if node.target is loop:
            results[node] = _loop_results(module, node, shared)
        elif node.target is operator.getitem and isinstance(source, Node):
            position = node.args[1]
            known = results.get(source)
            shared[node] = shared.get(source, nothing) if known is None else known[int(str(position))]
        elif isinstance(node.target, torch._ops.OpOverload) and _may_share(node.target):
            operands: list[Node] = []
            torch.fx.node.map_arg((node.args, node.kwargs), operands.append)
            shared[node] = nothing.union(*(shared.get(item, nothing) for item in operands))
        else:
            shared[node] = nothing


def _may_share(target: torch._ops.OpOverload) -> bool:
    return target in MAY_RETURN_OPERAND or any(
        result.alias_info is not None and not result.alias_info.is_write for result in target._schema.returns
    )


def _loop_results(module: GraphModule, node: Node, shared: Mapping[Node, frozenset[str]]) -> list[frozenset[str]]:
    """What each of `(*carried', *stacked)` may share memory with."""
    body = loop_body(module, node)
    nothing = frozenset[str]()

    def of(operand: Any) -> frozenset[str]:
        found: list[Node] = []
        torch.fx.node.map_arg(operand, found.append)
        return nothing.union(*(shared.get(item, nothing) for item in found))

    carried, sliced, invariant = (list(part) for part in node.args[3:6])  # type: ignore[arg-type]
    places = [item for item in body.graph.nodes if item.op == "placeholder"]
    inner = dict(zip(places, [nothing, *(of(item) for item in (*carried, *sliced, *invariant))], strict=True))
    values: Any = output_node(body).args[0]
    while True:
        _spread(body, inner)
        found = [inner.get(value, nothing) if isinstance(value, Node) else nothing for value in values]
        # A later round of the loop carries what an earlier one gave.
        grown = False
        for position in range(len(carried)):
            place = places[1 + position]
            if not found[position] <= inner[place]:
                inner[place] |= found[position]
                grown = True
        if not grown:
            first = [shares | of(operand) for shares, operand in zip(found, carried, strict=False)]
            return [*first, *found[len(carried) :]]
