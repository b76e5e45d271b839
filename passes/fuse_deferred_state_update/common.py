"""What the parts of the pass share: its name, the slice of commit that moves, ports and outputs of step graphs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.fx import GraphModule, Node

from specc.ir.build import output_node
from specc.ir.edit import Editor
from specc.ir.port import Port

NAME = "fuse-deferred-state-update"
KEYS = ("commit.update",)


@dataclass(frozen=True, slots=True)
class Slice:
    """The part of `commit` that is moved: result nodes by slot, all nodes in order, and the ports it reads.

    `caches`: the slots it computes; `recorded`: what it reads besides them and the candidates; `count`: the port among
    those that makes it the identity when it is 0.
    """

    results: dict[str, Node]
    nodes: tuple[Node, ...]
    caches: tuple[str, ...]
    candidates: tuple[str, ...]
    recorded: dict[Port, Node]
    count: Port


def backward(results: list[Node]) -> list[Node]:
    """All nodes that the results depend on, in graph order."""
    seen: set[Node] = set()
    stack = list(results)
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend(node.all_input_nodes)
    return [node for node in results[0].graph.nodes if node in seen]


def ports_of(nodes: list[Node]) -> dict[Port, Node]:
    """The placeholders among the nodes, by port."""
    return {node.meta["port"]: node for node in nodes if node.op == "placeholder"}


def placeholder(module: GraphModule, editor: Editor, port: Port, value: Any) -> Node:
    """The module's placeholder of a port, made in front where it has none."""
    for node in module.graph.nodes:
        if node.op == "placeholder" and node.meta["port"] == port:
            return node
    first = next(node for node in module.graph.nodes)
    with editor.before(first):
        made = editor.placeholder(port.name, value, port)
    made.meta["keys"] = KEYS
    return made


def set_output(module: GraphModule, port: Port, value: Node) -> None:
    """Bind the output of `port` (added in front of the results where the step had none)."""
    output = output_node(module)
    values: Any = output.args[0]
    entries = dict(zip(output.meta["ports"], values, strict=True))
    entries[port] = value
    rebind(output, dict(sorted(entries.items(), key=lambda entry: entry[0].kind != "slot")))


def drop_outputs(module: GraphModule, slots: set[str]) -> None:
    """Unbind the outputs of these slots."""
    output = output_node(module)
    values: Any = output.args[0]
    entries = zip(output.meta["ports"], values, strict=True)
    rebind(output, {port: value for port, value in entries if not (port.kind == "slot" and port.name in slots)})


def rebind(output: Node, entries: dict[Port, Node]) -> None:
    """What a graph returns."""
    output.args = (tuple(entries.values()),)
    output.meta["ports"] = tuple(entries)
    output.meta["val"] = tuple(item.meta["val"] for item in entries.values())
