"""Builder of one step graph: placeholders bound to slots, weights and inputs; outputs bound to slots and results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from specc.ir.build import GraphBuilder, fake
from specc.ir.port import Port
from specc.program import Slot, Weight


class StepBuilder(GraphBuilder):
    """Creates each slot, weight or input placeholder once, in front of all other nodes."""

    def __init__(self, slots: Mapping[str, Slot], weights: Mapping[str, Weight], keys: Sequence[str] = ()) -> None:
        super().__init__(keys)
        self.slots = slots
        self.weights = weights
        self._bound: dict[Port, Node] = {}
        self._results: list[tuple[Port, Node]] = []

    def _bind(self, port: Port, value: Any, label: str) -> Node:
        if port not in self._bound:
            first = next((node for node in self.graph.nodes if node.op != "placeholder"), None)
            if first is None:
                self._bound[port] = self.placeholder(label, value, port)
            else:
                with self.graph.inserting_before(first):
                    self._bound[port] = self.placeholder(label, value, port)
        return self._bound[port]

    def slot(self, name: str) -> Node:
        """The slot's value at the start of the step."""
        slot = self.slots[name]
        return self._bind(Port("slot", name), fake(slot.shape, slot.dtype), name)

    def weight(self, name: str) -> Node:
        """A weight: a tensor, or a tuple of one tensor per layer."""
        weight = self.weights[name]
        one = fake(weight.shape, weight.dtype)
        value = one if weight.layers is None else tuple(one for _ in range(weight.layers))
        return self._bind(Port("weight", name), value, f"w_{name}")

    def input(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> Node:
        """An argument of the step."""
        return self._bind(Port("input", name), fake(shape, dtype), name)

    def update(self, name: str, node: Node) -> None:
        """The slot's value at the end of the step."""
        self._results.append((Port("slot", name), node))

    def result(self, name: str, node: Node) -> None:
        """A result of the step."""
        self._results.append((Port("result", name), node))

    def finish(self) -> GraphModule:
        """The step graph: updated slots in the order given, then results."""
        ordered = sorted(self._results, key=lambda entry: entry[0].kind != "slot")
        return self.output([node for _, node in ordered], [port for port, _ in ordered])
