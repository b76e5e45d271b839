"""What of `commit` can be deferred: by data flow, slot for slot, each with the reason where it can't.

A slot is looked at if its new value depends on candidates. It can be deferred if
(1) nothing that its value depends on has a side effect;
(2) its value is the slot's old one behind ops that are the identity for a count of 0 (`identity_when_zero` of their
    declaration), with one count, an operand of the step: so an empty commit may be pending (the first step, finished
    rows, re-used slots);
(3) no step between commit and the next verify reads it, nor does another result of commit;
(4) only verify writes its candidates, so that they are still there.
"""

from __future__ import annotations

import operator
from typing import Any

from torch.fx import GraphModule, Node

from specc.ir.build import output_node
from specc.ir.edit import is_impure, is_loop, loop_parts
from specc.ir.op import info
from specc.ir.port import Port
from specc.ir.scope import Scope, Value, named_arguments
from specc.ir.text import target_text
from specc.passes.fuse_deferred_state_update.common import Slice, backward, ports_of
from specc.program import DecodeProgram, output_ports


class Refused(Exception):
    """A slot can't be deferred; the message is the reason."""


def candidate_results(program: DecodeProgram) -> dict[str, Node]:
    """The slots whose new value in commit depends on candidates, with that value."""
    commit = program.graphs["commit"]
    values: Any = output_node(commit).args[0]
    results: dict[str, Node] = {}
    for port, value in zip(output_ports(commit), values, strict=True):
        reads = {item.name for item in ports_of(backward([value])) if item.kind == "slot"}
        if port.kind == "slot" and any(program.slots[name].role == "candidate" for name in reads):
            results[port.name] = value
    return results


def find_slice(program: DecodeProgram) -> tuple[Slice | None, dict[str, str]]:
    """What is deferred (None: nothing), and the reason for each slot that is not."""
    commit = program.graphs["commit"]
    refused: dict[str, str] = {}
    chosen: dict[str, Node] = {}
    counts: dict[str, Port] = {}
    results = candidate_results(program)
    for slot, value in results.items():
        try:
            counts[slot] = _count_of(program, slot, value)
            if counts[slot] != next(iter(counts.values())):
                raise Refused(f"its count is `{counts[slot].name}`, others' is `{next(iter(counts.values())).name}`")
            chosen[slot] = value
        except Refused as reason:
            refused[slot] = str(reason)
            counts.pop(slot, None)
    for slot, reader in _read_elsewhere(commit, chosen).items():
        refused[slot] = f"commit reads it for `{reader}`, which is not deferred"
        del chosen[slot]
    return (slice_of(program, chosen, next(iter(counts.values()))) if chosen else None), refused


def slice_of(program: DecodeProgram, results: dict[str, Node], count: Port) -> Slice:
    """The part of commit that computes these slots."""
    nodes = backward(list(results.values()))
    ports = ports_of(nodes)
    caches = tuple(results)
    candidates = tuple(
        port.name for port in ports if port.kind == "slot" and program.slots[port.name].role == "candidate"
    )
    recorded = {
        port: node for port, node in ports.items() if port.name not in (*caches, *candidates) and port.kind != "weight"
    }
    return Slice(results, tuple(nodes), caches, candidates, recorded, count)


def _read_elsewhere(commit: GraphModule, chosen: dict[str, Node]) -> dict[str, str]:
    """Chosen slots whose old value another result of commit depends on, with that result's name."""
    found: dict[str, str] = {}
    values: Any = output_node(commit).args[0]
    for port, value in zip(output_ports(commit), values, strict=True):
        if port.kind == "slot" and port.name in chosen:
            continue
        for read in ports_of(backward([value])):
            if read.kind == "slot" and read.name in chosen:
                found.setdefault(read.name, port.name)
    return found


def _count_of(program: DecodeProgram, slot: str, value: Node) -> Port:
    """The count of a slot's commit. Raises Refused where the slot can't be deferred."""
    nodes = backward([value])
    impure = next((node for node in nodes if is_impure(node) and node.op != "placeholder"), None)
    if impure is not None:
        raise Refused(f"`{impure.name}` in commit has a side effect and can't be moved to the next step")
    count = _identity_count(Value(Scope(program.graphs["commit"]), value), slot)
    candidates = {
        port.name for port in ports_of(nodes) if port.kind == "slot" and program.slots[port.name].role == "candidate"
    }
    _check_steps(program, slot, candidates)
    return count


def _identity_count(value: Value, slot: str) -> Port:
    """The port that makes the slot's new value its old one when it is 0. Raises Refused where none does."""
    counts: list[Value] = []
    while True:
        value = value.resolved()
        node, scope = value.node, value.scope
        role = scope.role(node)
        if role is not None and role[0] == "slice" and scope.loop is not None and scope.parent is not None:
            value = Value(scope.parent, scope.loop.sliced[role[1]])
        elif node.op == "placeholder" and node.meta.get("port") == Port("slot", slot):
            break
        elif node.target is operator.getitem and isinstance(node.args[0], Node) and is_loop(node.args[0]):
            value = _inside(scope, node.args[0], int(node.args[1]))  # type: ignore[arg-type]
        else:
            value, count = _through(value)
            counts.append(count)
    ports = {count.node.meta.get("port") for count in counts}
    only = ports.pop() if len(ports) == 1 else None
    if not isinstance(only, Port):
        raise Refused("its ops have no count in common that is an operand of commit, so an empty one can't be pending")
    return only


def _inside(scope: Scope, loop: Node, number: int) -> Value:
    """The value of a loop's body that becomes result `number`."""
    parts = loop_parts(loop)
    if parts.axis != "layer" or number < len(parts.carried):
        raise Refused(f"`{loop.name}` carries it from one iteration to the next")
    return Value(Scope(parts.body, parts, scope), parts.stacked_out[number - len(parts.carried)])


def _through(value: Value) -> tuple[Value, Value]:
    """The operand that an op returns when its count is 0, and that count."""
    node: Node = value.node
    if node.target is operator.getitem and isinstance(node.args[0], Node):
        node = node.args[0]  # one of several results
    declared = info(node.target)
    name = declared.meta.get("identity_when_zero") if declared is not None else None
    if name is None:
        what = target_text(node.target) if node.op == "call_function" else node.op
        raise Refused(
            f"`{node.name}` ({what}) declares no operand that makes it the identity when it is 0, "
            "so an empty commit can't be pending"
        )
    operand, count = node.args[0], named_arguments(node).get(name)
    if not isinstance(operand, Node) or not isinstance(count, Node):
        raise Refused(f"`{node.name}` has a constant for a count")
    return Value(value.scope, operand), Value(value.scope, count).resolved()


def _check_steps(program: DecodeProgram, slot: str, candidates: set[str]) -> None:
    """(3) and (4) on the other graphs. Raises Refused."""
    for name, module in program.graphs.items():
        reads = {node.meta["port"].name for node in module.graph.nodes if node.op == "placeholder" and node.users}
        writes = {port.name for port in output_ports(module) if port.kind == "slot"}
        if name in ("draft", "accept") and slot in reads:
            raise Refused(f"{name} reads `{slot}` before the next verify could fold the commit")
        if name != "verify" and writes & candidates:
            raise Refused(f"{name} overwrites `{min(writes & candidates)}` while its commit may be pending")
