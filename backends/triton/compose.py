"""A whole decoding step as one graph, to be captured: step = commit . accept . verify . draft.

It writes the slots in place, and results in what the host wants to know of the step (the draft, the accepted path, the
new tokens). Kernels can be formed across the old borders: the acceptance walk, the bookkeeping of the commit and the
next masks touch the same few integers. It is made when code is generated, not by a pass: what the program promises of
a step's inputs (a parent's range, say) is checked where the steps meet, and the four graphs have been verified.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from specc.backends.triton.regions.saved import saved_reads
from specc.ir import ops
from specc.ir.build import output_values
from specc.ir.clone import clone, graph_module
from specc.ir.edit import finish
from specc.ir.effects import flat_nodes
from specc.ir.infer import infer
from specc.ir.port import Port
from specc.ir.prune import prune
from specc.program import output_ports

aten = torch.ops.aten
PARTS = ("draft", "verify", "accept", "commit")
SHOWN = ("tokens", "parent", "valid", "path", "accept_length", "bonus", "emitted_tokens", "emitted", "stopped")
"""Results that the host reads of a whole step; logits, laws and features stay on the device."""
PLAIN = ("emitted",)
BETWEEN = ("accept", "commit", "draft")
"""What stands between two verifications: a part of two steps that can be run and timed alone."""


@dataclass(slots=True)
class _Composition:
    """The graph under construction: what a slot, a weight or an earlier result is by now."""

    shown: tuple[str, ...]
    open_inputs: bool = False
    graph: Graph = field(default_factory=Graph)
    root: torch.nn.Module = field(default_factory=torch.nn.Module)
    values: dict[Port, Node] = field(default_factory=dict)
    places: dict[Port, Node] = field(default_factory=dict)
    written: dict[Port, Node] = field(default_factory=dict)
    settled: dict[Port, Node] = field(default_factory=dict)
    results: dict[Port, Node] = field(default_factory=dict)

    def add(self, step: str, module: GraphModule) -> None:
        """Append one step graph."""
        inside: dict[Node, Node] = {}
        for node in module.graph.nodes:
            if node.op == "placeholder":
                inside[node] = self._input(node)
            elif node.op != "output":
                inside[node] = self.graph.node_copy(node, lambda item: inside[item])
                if node.op == "get_attr":
                    self._body(step, module, node, inside[node])
        for port, value in zip(output_ports(module), output_values(module), strict=True):
            if port.kind == "slot":
                self.values[port] = self.written[port] = inside[value]
            else:
                self.values[Port("input", port.name)] = inside[value]
                if port.name in self.shown:
                    self.results[port] = inside[value]

    def _input(self, node: Node) -> Node:
        port: Port = node.meta["port"]
        if port not in self.values:
            if port.kind == "input" and not self.open_inputs:
                raise ValueError(f"no earlier step results in `{port.name}`")
            made = self.graph.node_copy(node, lambda item: item)
            made.target = made.name
            self.values[port] = self.places[port] = made
        return self.values[port]

    def _body(self, step: str, module: GraphModule, node: Node, copied: Node) -> None:
        """Loop bodies are submodules: each gets a name of its own in the new root."""
        name = f"{step}_{node.target}"
        body = module.get_submodule(str(node.target))
        assert isinstance(body, GraphModule)
        if not hasattr(self.root, name):
            self.root.add_module(name, clone(body))
        copied.target = name

    def settle(self) -> None:
        """Write the slots as they are by now; steps after this one read them from memory, as after a whole step."""
        self._store()
        self.values |= self.places
        self.settled |= self.written
        self.written = {}

    def _store(self) -> None:
        """Write the slots' new values into their own memory, each as soon as nothing reads the old one any more.

        So early, that they stand among the integers that they are made from and share a kernel with them.
        """
        order = {node: number for number, node in enumerate(self.graph.nodes)}
        ready = {port: value for port, value in self.written.items() if value is not self.places.get(port)}
        old = set(self.places.values())
        for port, value in ready.items():
            if value in old:
                # A slot's old value: it may be overwritten first.
                with self.graph.inserting_after(value):
                    ready[port] = self._call(aten.clone.default, value)
        for port, value in ready.items():
            if port not in self.places:
                place = self.graph.placeholder(f"slot_{port.name}")
                place.meta |= {"val": value.meta["val"], "keys": (), "passes": (), "port": port}
                self.places[port] = place
            place = self.places[port]
            known = [node for node in (value, *place.users) if node in order]
            last = max(known, key=lambda node: order[node], default=value)
            with self.graph.inserting_after(last):
                self._write(place, value)

    def _write(self, place: Node, value: Node) -> None:
        """place = value; where that is the old value with some rows appended, only those are written."""
        if value.target is ops.append_rows and value.args[0] is place and not value.users:
            self._call(ops.append_rows_, place, *value.args[1:])
        else:
            self._call(aten.copy_.default, place, value)

    def record(self) -> None:
        """One more result: all that the host reads, int64 [B,W], so that it is one copy.

        Its columns are the slots `finished` and `root_token`, then the other results.
        """
        known = self.settled | self.written
        columns = [known[Port("slot", name)] for name in ("finished", "root_token")]
        made = []
        for value in (*columns, *self.results.values()):
            if value.meta["val"].dtype != torch.int64:
                value = self._call(aten._to_copy.default, value, dtype=torch.int64)
            made.append(value if value.meta["val"].dim() == 2 else self._call(aten.unsqueeze.default, value, 1))
        self.results = {Port("result", "record"): self._call(aten.cat.default, made, 1), **self.results}

    def _call(self, target: torch._ops.OpOverload, *arguments: Any, **keywords: Any) -> Node:
        made = self.graph.call_function(target, arguments, keywords)
        origin = next(item for item in reversed(list(flat_nodes(arguments))))
        made.meta |= {"keys": origin.meta["keys"], "passes": origin.meta["passes"]}
        made.meta["val"] = infer(target, arguments, keywords)
        return made

    def close(self) -> GraphModule:
        """The module, placeholders first."""
        self._store()
        first = next(iter(self.graph.nodes))
        for node in [node for node in self.graph.nodes if node.op == "placeholder"]:
            if node is not first:
                first.prepend(node)
        outputs = self.results
        node = self.graph.output(tuple(outputs.values()))
        node.meta |= {"val": tuple(value.meta["val"] for value in outputs.values()), "keys": (), "passes": ()}
        node.meta["ports"] = tuple(outputs)
        return graph_module(self.root, self.graph)


def whole_steps(graphs: Mapping[str, GraphModule]) -> dict[str, GraphModule]:
    """The steps that the Decoder runs: a speculative one, and one without drafts."""
    return {"step": composed(graphs, PARTS, SHOWN), "plain_step": composed(graphs, ("decode",), PLAIN)}


def between_steps(graphs: Mapping[str, GraphModule]) -> dict[str, GraphModule]:
    """`whole_steps`, and what stands between two verifications: from logits and the tree that they are of to the next
    tree."""
    return whole_steps(graphs) | {"between": composed(graphs, BETWEEN, SHOWN, open_inputs=True)}


def composed(
    graphs: Mapping[str, GraphModule], parts: Sequence[str], shown: tuple[str, ...], *, open_inputs: bool = False
) -> GraphModule:
    """One graph of the steps `parts`; a draft that is not the first starts from what the steps before it have written.

    A step's input that is no earlier step's result is an input of the graph with `open_inputs`, else ValueError is
    raised.
    """
    made = _Composition(shown, open_inputs)
    for place, step in enumerate(parts):
        if step == PARTS[0] and place:
            made.settle()
        made.add(step, graphs[step])
    made.record()
    module = made.close()
    prune(module)
    dead = [node for node in module.graph.nodes if node.op == "placeholder" and not node.users]
    for node in dead:
        module.graph.erase_node(node)
    return saved_reads(finish(module))
