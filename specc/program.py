"""DecodeProgram: declarations of state and weights, and the named step graphs over them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch.fx import GraphModule, Node

from specc.ir.port import Port, ValueRange

Role = Literal["committed", "candidate", "pending", "rng", "control"]
STEPS = ("prefill", "decode", "draft", "verify", "accept", "commit", "flush")

# Properties that passes require and establish.
INDEX_SAFE = "INDEX_SAFE"
TREE_MASKED = "TREE_MASKED"
LAYER_MAJOR = "LAYER_MAJOR"
DEFERRED = "DEFERRED"
BUFFERED = "BUFFERED"
NPU_LEGAL = "NPU_LEGAL"


@dataclass(frozen=True, slots=True)
class Slot:
    """One field of the decoding state.

    `shape` uses `dims.BATCH` for the batch size. `fill` is the initial value. `batch_dim` says which dim the
    rows of a batch lie along; -1: all of them share the slot. `alias` (set by plan-buffers) says where the slot
    lives when it is not stored.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    role: Role
    doc: str
    fill: int | float | bool = 0
    batch_dim: int = 0
    alias: str | None = None


@dataclass(frozen=True, slots=True)
class Weight:
    """One weight of the program.

    `sources` are checkpoint tensor names, concatenated along dim 0 in that order. Where `layers` is not None there are
    that many tensors, and `{layer}` stands for decoder layer first_layer + i * layer_step in tensor i (a stack whose
    layers repeat with a period has one weight per position). With `experts` > 0 every tensor is the concatenation over
    all experts, `{expert}` in the names: expert 0's sources, then expert 1's. `model` says which folder. `form` is what
    the loader makes of the stored tensor in `dtype` (`prepared` in backends/printing/runtime/prepared.py; "": nothing);
    `shape` is that of the result.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    sources: tuple[str, ...]
    layers: int | None = None
    model: Literal["target", "draft"] = "target"
    first_layer: int = 0
    layer_step: int = 1
    experts: int = 0
    form: str = ""

    def tensor_names(self, index: int = 0) -> tuple[str, ...]:
        """The checkpoint tensors that tensor `index` of the weight is made of, in order."""
        layer = str(self.first_layer + index * self.layer_step)
        return tuple(
            source.replace("{layer}", layer).replace("{expert}", str(expert))
            for expert in range(max(self.experts, 1))
            for source in self.sources
        )


@dataclass(frozen=True, slots=True)
class DecodeProgram:
    """The unit that passes transform (functionally: `with_graphs`, `dataclasses.replace`).

    `ranges` declares integer inputs, keyed `slot:length`, `input:parent`: what range analysis may assume and what
    the generated module checks at its public edge. `attributes` holds the spec's resolved numbers (plain data).
    """

    name: str
    slots: Mapping[str, Slot]
    weights: Mapping[str, Weight]
    graphs: Mapping[str, GraphModule]
    properties: frozenset[str] = frozenset()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    ranges: Mapping[str, ValueRange] = field(default_factory=dict)

    def with_graphs(self, **graphs: GraphModule) -> DecodeProgram:
        """The same program with these step graphs replaced or added."""
        return replace(self, graphs={**self.graphs, **graphs})

    def with_properties(self, *added: str, removed: frozenset[str] = frozenset()) -> DecodeProgram:
        """The same program with properties added and removed."""
        return replace(self, properties=(self.properties - removed) | set(added))


def input_ports(module: GraphModule) -> dict[str, Node]:
    """Placeholder nodes of a step graph, keyed `kind:name`."""
    found: dict[str, Node] = {}
    for node in module.graph.nodes:
        if node.op == "placeholder":
            port: Port = node.meta["port"]
            found[f"{port.kind}:{port.name}"] = node
    return found


def output_ports(module: GraphModule) -> tuple[Port, ...]:
    """What each output of a step graph is bound to, in order."""
    output = next(node for node in reversed(module.graph.nodes) if node.op == "output")
    ports: tuple[Port, ...] = output.meta["ports"]
    return ports
