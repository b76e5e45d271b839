"""Moving a slice of `commit`: recording what it would have read, and folding it at the head of another step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.fx import GraphModule, Node

from specc.ir.build import output_node
from specc.ir.clone import clone
from specc.ir.edit import Editor, is_loop
from specc.ir.port import Port, ValueRange
from specc.passes.fuse_deferred_state_update.common import (
    KEYS,
    NAME,
    Slice,
    drop_outputs,
    placeholder,
    ports_of,
    set_output,
)
from specc.program import DecodeProgram, Slot, output_ports


@dataclass(frozen=True, slots=True)
class Pending:
    """Slots that the deferral adds, and the ranges of those that hold integers."""

    slots: dict[str, Slot]
    ranges: dict[str, ValueRange]


def pending_name(port: Port) -> str:
    """`path` -> `pending_path`."""
    return f"pending_{port.name}"


def pending_slots(program: DecodeProgram, found: Slice) -> Pending:
    """One slot for everything recorded; it keeps its declared range."""
    made = Pending({}, {})
    for port, node in found.recorded.items():
        value, name = node.meta["val"], pending_name(port)
        doc = f"`{port.name}` of the commit that is pending" + (" (0: nothing is)" if port == found.count else "")
        made.slots[name] = Slot(name, tuple(value.shape), value.dtype, "pending", doc)
        declared = program.ranges.get(f"{port.kind}:{port.name}")
        if declared is not None:
            made.ranges[f"slot:{name}"] = declared
    return made


def insert_fold(module: GraphModule, commit: GraphModule, found: Slice) -> list[Node]:
    """Fold what is pending at the head of `module` (edited in place); returns the fold's loops.

    All other reads of the caches in the module see the folded ones, and nothing is pending afterwards.
    """
    editor = Editor(module, NAME)
    mapping: dict[Node, Node] = {}
    originals: dict[str, Node] = {}
    for port, node in ports_of(list(found.nodes)).items():
        target = Port("slot", pending_name(port)) if port in found.recorded else port
        mapping[node] = placeholder(module, editor, target, node.meta["val"])
        if port.name in found.caches:
            originals[port.name] = mapping[node]
    readers = {name: list(node.users) for name, node in originals.items()}
    first = next(node for node in module.graph.nodes if node.op != "placeholder")
    loops: list[Node] = []
    with editor.before(first, *found.results.values()):
        for node in found.nodes:
            if node.op == "placeholder":
                continue
            if node.op == "get_attr":
                mapping[node] = editor.body(clone(commit.get_submodule(str(node.target))), str(node.target))  # type: ignore[arg-type]
            else:
                mapping[node] = module.graph.node_copy(node, lambda item: mapping[item])
            mapping[node].meta["passes"] = (*node.meta["passes"], NAME)
            mapping[node].meta["keys"] = (*node.meta["keys"], *KEYS)
            if is_loop(node):
                loops.append(mapping[node])
        count = mapping[found.recorded[found.count]]
        cleared = editor.call(torch.ops.aten.zeros_like.default, count, name="nothing_pending")
    redirect(originals, readers, {name: mapping[node] for name, node in found.results.items()})
    for name, node in found.results.items():
        bind_unless_written(module, Port("slot", name), mapping[node])
    set_output(module, Port("slot", pending_name(found.count)), cleared)
    return loops


def redirect(originals: dict[str, Node], readers: dict[str, list[Node]], values: dict[str, Node]) -> None:
    """What read a slot before the fold reads the folded value."""
    for name, users in readers.items():
        for user in users:
            user.replace_input_with(originals[name], values[name])


def bind_unless_written(module: GraphModule, port: Port, value: Node) -> None:
    """The slot's new value is `value`, unless the step gives it another."""
    if port not in output_ports(module):
        set_output(module, port, value)


def record(commit: GraphModule, found: Slice) -> None:
    """`commit` (edited in place) without the moved part: it records what that part would have read."""
    drop_outputs(commit, set(found.caches))
    by_port = ports_of([node for node in commit.graph.nodes if node.op == "placeholder"])
    for port in found.recorded:
        set_output(commit, Port("slot", pending_name(port)), by_port[port])


def drop_dead(module: GraphModule) -> None:
    """Erase what the moved part has left behind."""
    module.graph.eliminate_dead_code(lambda node: node is output_node(module))
    module.delete_all_unused_submodules()
