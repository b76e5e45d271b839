"""The check of DEFERRED: what may have something unfolded is read by nothing but the ops that fold it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from specc.ir import ops
from specc.ir.build import output_node
from specc.ir.edit import is_loop, loop_parts
from specc.ir.op import info
from specc.ir.scope import Scope, Value, named_arguments
from specc.manager import predicate
from specc.passes.fuse_deferred_state_update.order import due_window
from specc.program import DEFERRED, DecodeProgram, output_ports

TAKES_PENDING = (ops.delta_rule_verify_pending, ops.delta_rule_verify_pending_)


def pending_counts(program: DecodeProgram) -> tuple[str, ...]:
    """The slots that say how much is pending."""
    counts = program.attributes.get("pending_count", ())
    return (counts,) if isinstance(counts, str) else tuple(counts)


def slots_read(module: GraphModule) -> dict[str, Node]:
    """The slots that a step graph has placeholders of."""
    found = {}
    for node in module.graph.nodes:
        if node.op == "placeholder" and node.meta["port"].kind == "slot":
            found[node.meta["port"].name] = node
    return found


@predicate(DEFERRED)
def unfolded_reads(program: DecodeProgram) -> list[str]:
    """Why the program is not DEFERRED: steps that read a slot with something pending, or keep it pending for ever.

    What flush folds is what may be pending: its committed slots, and the candidates that it reads.
    """
    counts = pending_counts(program)
    if not counts:
        return ["no commit is recorded as pending"]
    folded = slots_read(program.graphs["flush"])
    roles = {name: program.slots[name].role for name in folded}
    caches = {name for name, role in roles.items() if role == "committed"}
    candidates = {name for name, role in roles.items() if role == "candidate"}
    reasons = []
    for step in ("verify", "flush"):
        written = {port.name for port in output_ports(program.graphs[step]) if port.kind == "slot"}
        reasons += [f"{step} does not clear `{count}`" for count in counts if count not in written]
        for name, node in slots_read(program.graphs[step]).items():
            if name in caches:
                found = _raw_reads(Value(Scope(program.graphs[step]), node), counts)
                reasons += [f"{step}: `{reader}` reads `{name}` before what is pending is folded" for reader in found]
    for step, module in program.graphs.items():
        if step in ("verify", "flush") or step in program.attributes["flush_first"]:
            continue
        reads = set(slots_read(module))
        if reads & candidates:
            reasons.append(f"{step} reads candidate rows although their commit is deferred")
        reasons += [f"{step} reads `{name}`, which may have something pending" for name in sorted(reads & caches)]
    return reasons


def _raw_reads(value: Value, counts: tuple[str, ...]) -> Iterator[str]:
    """Ops that read a slot's old value, in execution order, until something has folded it in place."""
    order = {node: place for place, node in enumerate(value.node.graph.nodes)}
    for user in sorted(value.node.users, key=order.__getitem__):
        if user.op == "output":
            continue  # handed on as it is
        if is_loop(user):
            parts = loop_parts(user)
            inside = Scope(parts.body, parts, value.scope)
            for operand, place in zip(parts.operands, parts.inside, strict=True):
                if operand is value.node:
                    yield from _raw_reads(Value(inside, place), counts)
            continue
        if not _folds(value, user, counts):
            yield user.name
        elif _in_place(user):
            return


def _in_place(node: Node) -> bool:
    declared = info(node.target)
    return declared is not None and bool(declared.mutates) and not _windowed(node)


def _windowed(node: Node) -> bool:
    return node.target in TAKES_PENDING and int(named_arguments(node)["window"]) > 1


def _folds(value: Value, user: Node, counts: tuple[str, ...]) -> bool:
    """Whether the op folds what is pending on `value`, its first operand, or verifies from both."""
    declared = info(user.target)
    if declared is None or user.args[0] is not value.node or value.node in user.args[1:]:
        return False
    name = "count" if user.target in TAKES_PENDING else declared.meta.get("identity_when_zero")
    count: Any = named_arguments(user).get(name) if name else None
    if not isinstance(count, Node):
        return False
    amount = Value(value.scope, count).resolved()
    port = amount.node.meta.get("port")
    if port is not None:
        return port.name in counts
    return _is_due(amount, counts) and _only_kept(Value(value.scope, user))


def _is_due(amount: Value, counts: tuple[str, ...]) -> bool:
    """where(pending >= W, pending, 0)."""
    if not amount.calls(torch.ops.aten.where.self):
        return False
    pending = amount.at(amount.node.args[1])
    port = pending.node.meta.get("port")
    return port is not None and port.name in counts and due_window(amount, pending) is not None


def _only_kept(value: Value) -> bool:
    """Whether a state that is folded only where its window is full goes nowhere but into its slot."""
    if any(user.op != "output" for user in value.node.users):
        return False
    loop = value.scope.loop
    if loop is None:
        return True
    places = [place for place, made in enumerate((*loop.carried_out, *loop.stacked_out)) if made is value.node]
    end = output_node(value.scope.parent.module) if value.scope.parent is not None else None
    return all(user is end for place in places for item in loop.results().get(place, []) for user in item.users)
