"""Builds typed FX graphs: every node gets a fake value (`meta["val"]`), the spec keys and the passes it comes from."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from specc.ir.clone import graph_module
from specc.ir.infer import fake, fake_mode, infer
from specc.ir.loop import Operand, fake_loop, loop, slice_operand
from specc.ir.port import Port

__all__ = [
    "BodyBuilder",
    "GraphBuilder",
    "body_types",
    "fake",
    "fake_mode",
    "output_node",
    "output_values",
    "value_of",
]


def value_of(argument: Any) -> Any:
    """The fake value of a node; lists and tuples recursively; anything else is itself."""
    if isinstance(argument, Node):
        return argument.meta["val"]
    if isinstance(argument, (list, tuple)):
        return type(argument)(value_of(item) for item in argument)
    return argument


def output_node(module: GraphModule) -> Node:
    """The node that ends the graph."""
    return next(node for node in reversed(module.graph.nodes) if node.op == "output")


def output_values(module: GraphModule) -> tuple[Any, ...]:
    """What a graph of ours returns: nodes, or constants."""
    values: Any = output_node(module).args[0]
    return tuple(values)


class GraphBuilder:
    """Appends typed nodes to one graph. `spec(...)` sets the YAML keys that the following nodes come from."""

    def __init__(self, keys: Sequence[str] = (), origin: str = "lower", module: GraphModule | None = None) -> None:
        """A builder of a new graph, or of more nodes in `module` (see `edit.Editor`)."""
        self.graph = Graph() if module is None else module.graph
        self.root = torch.nn.Module() if module is None else module
        self.keys: tuple[str, ...] = tuple(keys)
        self.origin = origin
        self._bodies = 0

    @contextmanager
    def spec(self, *keys: str) -> Iterator[None]:
        """Nodes made inside carry these dotted spec keys, e.g. `verify.attention`."""
        before, self.keys = self.keys, keys
        try:
            yield
        finally:
            self.keys = before

    def _finish(self, node: Node, value: Any) -> Node:
        node.meta["val"] = value
        node.meta["keys"] = self.keys
        node.meta["passes"] = (self.origin,)
        return node

    def placeholder(self, name: str, value: Any, port: Port | None = None) -> Node:
        """An input; `value` is a fake tensor, a tuple of them, or an int (loop index)."""
        node = self._finish(self.graph.placeholder(name), value)
        node.target = node.name  # FX renames a node whose name is taken, but not the argument it stands for
        if port is not None:
            node.meta["port"] = port
        return node

    def call(self, target: Callable[..., Any], *args: Any, name: str | None = None, **kwargs: Any) -> Node:
        """A call of an OpOverload (or `operator` function on ints), typed by running it on fakes."""
        node = self.graph.create_node("call_function", target, args, kwargs, name)
        return self._finish(node, infer(target, args, kwargs))

    def item(self, node: Node, index: int, name: str | None = None) -> Node:
        """`node[index]` of a tuple result."""
        made = self.graph.create_node("call_function", operator.getitem, (node, index), {}, name)
        return self._finish(made, node.meta["val"][index])

    def body(self, module: GraphModule, name: str | None = None) -> Node:
        """A loop body as an operand: registers the submodule and returns its `get_attr` node."""
        label = name or f"body_{self._bodies}"
        while hasattr(self.root, label):
            self._bodies += 1
            label = f"body_{self._bodies}"
        self.root.add_module(label, module)
        node = self.graph.create_node("get_attr", label)
        return self._finish(node, None)

    def loop(
        self,
        axis: str,
        module: GraphModule,
        *,
        trip: int | None,
        carried: Sequence[Node] = (),
        sliced: Sequence[Node] = (),
        invariant: Sequence[Node] = (),
        name: str | None = None,
    ) -> list[Node]:
        """A loop over `module`; returns one node per carried and per stacked result."""
        attribute = self.body(module, f"{name or axis}_body")
        arguments = (axis, attribute, trip, list(carried), list(sliced), list(invariant))
        node = self.graph.create_node("call_function", loop, arguments, {}, name)
        with fake_mode():
            results = fake_loop(
                axis,
                body_types(module),
                trip,
                value_of(list(carried)),
                value_of(list(sliced)),
                value_of(list(invariant)),
            )
        self._finish(node, results)
        return [self.item(node, index) for index in range(len(results))]

    def output(self, values: Sequence[Node], ports: Sequence[Port] = ()) -> GraphModule:
        """Ends the graph and returns the module; `ports` name the outputs of a step graph."""
        node = self.graph.output(tuple(values))
        node.meta["val"] = tuple(value.meta["val"] for value in values)
        node.meta["keys"] = ()
        node.meta["passes"] = (self.origin,)
        node.meta["ports"] = tuple(ports)
        return graph_module(self.root, self.graph)


def body_types(module: GraphModule) -> Callable[..., tuple[Any, ...]]:
    """The body as a function on types only: its recorded output types, whatever the arguments."""
    values = output_values(module)

    def results(*_: Any) -> tuple[Any, ...]:
        return tuple(value_of(item) for item in values)

    return results


class BodyBuilder(GraphBuilder):
    """A builder for a loop body: placeholders follow the loop's operands."""

    def __init__(
        self,
        axis: str,
        *,
        carried: dict[str, Node],
        sliced: dict[str, Node],
        invariant: dict[str, Node],
        keys: Sequence[str] = (),
        origin: str = "lower",
    ) -> None:
        super().__init__(keys, origin)
        self.axis = axis
        self.outer = (list(carried.values()), list(sliced.values()), list(invariant.values()))
        self.index = self.placeholder("index", 0)
        self.inside: dict[str, Node] = {}
        for name, node in carried.items():
            self.inside[name] = self.placeholder(name, node.meta["val"])
        for name, node in sliced.items():
            value: Operand = node.meta["val"]
            with fake_mode():
                self.inside[name] = self.placeholder(name, slice_operand(axis, value, 0))
        for name, node in invariant.items():
            self.inside[name] = self.placeholder(name, node.meta["val"])

    def __getitem__(self, name: str) -> Node:
        return self.inside[name]

    def close(
        self, outer: GraphBuilder, trip: int | None, values: Sequence[Node], name: str | None = None
    ) -> list[Node]:
        """Ends the body with `(*carried', *stacked)` and places the loop into `outer`."""
        carried, sliced, invariant = self.outer
        module = self.output(values)
        return outer.loop(self.axis, module, trip=trip, carried=carried, sliced=sliced, invariant=invariant, name=name)
