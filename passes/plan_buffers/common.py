"""What the parts of plan-buffers share: reasons, notes, and what a value of a loop body is bound to outside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.fx import GraphModule, Node

from specc.ir import ops
from specc.ir.build import output_node
from specc.ir.edit import LoopParts
from specc.ir.port import Port
from specc.manager import Note
from specc.program import DecodeProgram

NAME = "plan-buffers"
CACHED = {ops.tree_attention: ops.tree_attention_cached, ops.causal_attention: ops.causal_attention_cached}


class Refused(Exception):
    """A condition does not hold; the message is the reason."""


@dataclass(slots=True)
class Plan:
    """What is known so far: candidate slot -> the cache slot whose tail it becomes, and notes."""

    program: DecodeProgram
    home: dict[str, str]
    notes: list[Note]

    def note(self, graph: str, message: str, fired: bool = True) -> None:
        """Record what was done, or why not."""
        self.notes.append(Note(NAME, graph, message, fired, ("commit", "verify")))


def slot_of(node: Any) -> str | None:
    """The slot a placeholder of a step graph is bound to."""
    if isinstance(node, Node) and node.op == "placeholder" and "port" in node.meta:
        port: Port = node.meta["port"]
        return port.name if port.kind == "slot" else None
    return None


def outside(parts: LoopParts, node: Any) -> Any:
    """The operand that a placeholder of the body stands for (a slice: the whole operand); other nodes themselves."""
    return dict(zip(parts.inside, parts.operands, strict=True)).get(node, node)


def sliced_slot(parts: LoopParts, node: Any) -> str | None:
    """The slot whose slice `node` is."""
    return slot_of(outside(parts, node)) if node in parts.sliced_inside else None


def bound_slots(module: GraphModule, value: Node) -> list[str]:
    """The slots that a value is the new value of; Refused if anything but the output reads it."""
    output = output_node(module)
    if any(user is not output for user in value.users):
        raise Refused(f"`{value.name}` is read by other nodes of the step")
    values: Any = output.args[0]
    ports = [port for port, item in zip(output.meta["ports"], values, strict=True) if item is value]
    if any(port.kind != "slot" for port in ports):
        raise Refused(f"`{value.name}` is a result of the step")
    return [port.name for port in ports]


def unbind(module: GraphModule, slots: set[str]) -> None:
    """Drop these slots from the step's outputs: they change in place, or are no longer stored."""
    output = output_node(module)
    values: Any = output.args[0]
    kept = [
        (port, value)
        for port, value in zip(output.meta["ports"], values, strict=True)
        if not (port.kind == "slot" and port.name in slots)
    ]
    output.args = (tuple(value for _, value in kept),)
    output.meta["ports"] = tuple(port for port, _ in kept)
    output.meta["val"] = tuple(value.meta["val"] for _, value in kept)


def stacked_result(parts: LoopParts, value: Node) -> list[Node]:
    """The getitem nodes of everything that the body stacks of `value`."""
    first = len(parts.carried)
    results = parts.results()
    found: list[Node] = []
    for place, item in enumerate(parts.stacked_out):
        if item is value:
            found += results.get(first + place, [])
    return found
