"""Windowed deferral: factors of several steps stay pending, and the state is written when the window is full.

    commit:  S = delta_rule_commit(S, k, u, g, path, n)
    ->
    commit:  pending_k, pending_u, pending_g += rows path[:n] of k, u, g;  count += n
    verify:  reads delta_rule_commit(S, pending…, count);  S = delta_rule_commit(S, pending…, count >= W ? count : 0)
    flush:   S = delta_rule_commit(S, pending…, count);  count = 0

Legal where the op declares `composes`: applying some rows and then others is applying all of them one behind the other,
so that rows of several steps can wait in one list. At most W - 1 factors are left by a verify and a step adds one per
node of its path, so R = W - 1 + path rows is room enough (design 01, `commit.window`; the windows of several steps are
ReplaySSM's for chains, here with factors of tree paths).
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from specc.ir import ops
from specc.ir.build import BodyBuilder, fake, output_node
from specc.ir.edit import Editor, LoopParts, is_loop, loop_parts
from specc.ir.op import info
from specc.ir.port import Port, ValueRange
from specc.ir.scope import Scope, Value, named_arguments
from specc.passes.fuse_deferred_state_update.common import NAME, Slice, drop_outputs, placeholder, set_output
from specc.passes.fuse_deferred_state_update.find import Refused
from specc.passes.fuse_deferred_state_update.fold import Pending, bind_unless_written, redirect
from specc.passes.fuse_deferred_state_update.order import due_of, order_of
from specc.program import DecodeProgram, Slot

aten = torch.ops.aten
COUNT = "pending_factors"


@dataclass(frozen=True, slots=True)
class Factors:
    """One slot's update as a list of factors: candidate and pending slots by operand of `op`, both per layer."""

    slot: str
    op: Node
    trip: int
    candidates: Mapping[str, str]
    pending: Mapping[str, str]
    path: Port
    count: Port


def factors_of(program: DecodeProgram, found: Slice, slot: str) -> Factors:
    """The slot's commit as factors. Raises Refused with the reason where several steps' can't wait together."""
    parts, node = _single_op(program, found.results[slot])
    declared = info(node.target)
    names = declared.meta.get("composes") if declared is not None else None
    if names is None:
        raise Refused(f"`{node.name}` does not declare that factors of several steps compose")
    scope = Scope(parts.body, parts, Scope(program.graphs["commit"]))
    arguments = named_arguments(node)
    candidates = {}
    for name in names:
        port = _port(scope, arguments[name])
        if port is None or program.slots[port.name].role != "candidate" or arguments[name] not in parts.sliced_inside:
            raise Refused(f"`{name}` of `{node.name}` is not a layer's slice of a candidate slot")
        candidates[name] = port.name
    path, count = (_port(scope, arguments[name]) for name in ("path", "count"))
    if path is None or count is None or {path, count} - set(found.recorded):
        raise Refused(f"path and count of `{node.name}` are not operands of commit")
    prefix = slot.removesuffix("state") if slot.endswith("state") else f"{slot}_"
    pending = {name: f"{prefix}pending_{name}" for name in names}
    return Factors(slot, node, int(parts.trip or 0), candidates, pending, path, count)


def _single_op(program: DecodeProgram, value: Node) -> tuple[LoopParts, Node]:
    source = value.args[0] if value.target is operator.getitem else None
    if not isinstance(source, Node) or not is_loop(source):
        raise Refused("its commit is no loop over layers")
    parts = loop_parts(source)
    made = parts.stacked_out[int(value.args[1]) - len(parts.carried)]  # type: ignore[arg-type]
    if parts.axis != "layer" or parts.trip is None or not isinstance(made, Node) or made.op != "call_function":
        raise Refused("its commit is no single op per layer")
    if made.args[0] not in parts.sliced_inside:
        raise Refused(f"`{made.name}` does not start from the layer's own slice")
    return parts, made


def _port(scope: Scope, argument: Any) -> Port | None:
    """The port behind a slice or an invariant."""
    if not isinstance(argument, Node):
        return None
    value = Value(scope, argument).resolved()
    role = value.scope.role(value.node)
    if role is not None and role[0] == "slice" and value.scope.loop is not None and value.scope.parent is not None:
        value = Value(value.scope.parent, value.scope.loop.sliced[role[1]]).resolved()
    port = value.node.meta.get("port")
    return port if isinstance(port, Port) else None


def rows_of_window(program: DecodeProgram, factors: Factors, window: int) -> int:
    """R: factors that may be pending at most."""
    inputs = {node.meta["port"]: node for node in program.graphs["commit"].graph.nodes if node.op == "placeholder"}
    return window - 1 + int(inputs[factors.path].meta["val"].shape[1])


def window_slots(program: DecodeProgram, windowed: list[Factors], window: int) -> Pending:
    """The lists, per layer, and how long they are."""
    like = program.slots["length"].shape
    rows = rows_of_window(program, windowed[0], window)
    doc = f"factors that are pending in order; folded by a verify from {window} on (0: nothing is)"
    made = Pending({COUNT: Slot(COUNT, like, torch.int64, "pending", doc)}, {f"slot:{COUNT}": ValueRange(0, rows)})
    for factors in windowed:
        for name, source in factors.candidates.items():
            old, new = program.slots[source], factors.pending[name]
            shape = (*old.shape[:2], rows, *old.shape[3:])
            text = f"rows of `{source}` that are pending, in order, per layer"
            made.slots[new] = Slot(new, shape, old.dtype, "pending", text, batch_dim=old.batch_dim)
    return made


def _bind(module: GraphModule, editor: Editor, slots: Mapping[str, Slot], names: list[str]) -> dict[str, Node]:
    """The placeholders of these slots in a step graph, made where it has none."""
    return {
        name: placeholder(module, editor, Port("slot", name), fake(slots[name].shape, slots[name].dtype))
        for name in names
    }


def append_factors(module: GraphModule, slots: Mapping[str, Slot], windowed: list[Factors], window: int) -> None:
    """`commit` (edited in place): accepted rows go to the end of the lists instead of into the states.

    The clamp says what the verify before has made sure of: fewer than `window` factors are left.
    """
    editor = Editor(module, NAME)
    drop_outputs(module, {factors.slot for factors in windowed})
    end = output_node(module)
    with editor.before(end, *(factors.op for factors in windowed)):
        pending = _bind(module, editor, slots, [COUNT])[COUNT]
        start = editor.call(aten.clamp_max.default, pending, window - 1, name="pending_start")
        for factors in windowed:
            names = [*factors.pending.values(), *factors.candidates.values()]
            lists = _bind(module, editor, slots, names)
            path, count = (_input(module, port) for port in (factors.path, factors.count))
            shared = {"path": path, "start": start, "count": count}
            body = BodyBuilder("layer", carried={}, sliced=lists, invariant=shared, keys=editor.keys, origin=NAME)
            moved = [
                body.call(
                    ops.commit_path,
                    body[factors.pending[name]],
                    body[source],
                    body["path"],
                    body["start"],
                    body["count"],
                    False,
                    name=f"more_{name}",
                )
                for name, source in factors.candidates.items()
            ]
            made = body.close(editor, factors.trip, moved, f"{factors.slot}_pending_layers")
            for name, value in zip(factors.pending.values(), made, strict=True):
                set_output(module, Port("slot", name), value)
        count = _input(module, windowed[0].count)
        set_output(module, Port("slot", COUNT), editor.call(aten.add.Tensor, start, count, name="now_pending"))


def _input(module: GraphModule, port: Port) -> Node:
    return next(node for node in module.graph.nodes if node.op == "placeholder" and node.meta["port"] == port)


def fold_windows(
    module: GraphModule, slots: Mapping[str, Slot], windowed: list[Factors], window: int, *, verify: bool
) -> list[Node]:
    """Fold the lists at the head of `module` (edited in place); returns the loops that do.

    In `verify` every read of a state sees all its factors, but the state slot gets them only where the window is full;
    elsewhere (flush) it always does, and nothing stays pending.
    """
    editor = Editor(module, NAME)
    names = [name for factors in windowed for name in (factors.slot, *factors.pending.values())]
    first = next(node for node in module.graph.nodes if node.op != "placeholder")
    loops = []
    with editor.before(first, *(factors.op for factors in windowed)):
        bound = _bind(module, editor, slots, [COUNT, *names])
        readers = {factors.slot: list(bound[factors.slot].users) for factors in windowed}
        count = bound[COUNT]
        nothing = editor.call(aten.zeros_like.default, count, name="nothing_pending")
        rows = slots[next(iter(windowed[0].pending.values()))].shape[2]
        shared = {"order": order_of(editor, count, nothing, rows), "count": count}
        left = nothing
        if verify:
            shared["due"], left = due_of(editor, count, nothing, window)
        for factors in windowed:
            seen, kept, loop = _fold(editor, factors, bound, shared)
            loops.append(loop)
            redirect({factors.slot: bound[factors.slot]}, {factors.slot: readers[factors.slot]}, {factors.slot: seen})
            bind_unless_written(module, Port("slot", factors.slot), kept)
    set_output(module, Port("slot", COUNT), left)
    return loops


def _fold(
    editor: Editor, factors: Factors, bound: Mapping[str, Node], shared: Mapping[str, Node]
) -> tuple[Node, Node, Node]:
    """(the state with all factors, the state to keep, the loop that computes them)."""
    sliced = {name: bound[name] for name in (factors.slot, *factors.pending.values())}
    body = BodyBuilder("layer", carried={}, sliced=sliced, invariant=dict(shared), keys=editor.keys, origin=NAME)
    given = named_arguments(factors.op)

    def fold(count: str, name: str) -> Node:
        changed = {factor: body[pending] for factor, pending in factors.pending.items()}
        changed |= {"path": body["order"], "count": body[count]}
        arguments = [changed.get(key, value) for key, value in list(given.items())[1:]]
        return body.call(factors.op.target, body[factors.slot], *arguments, name=name)  # type: ignore[arg-type]

    values = [fold("count", "seen_state")] + ([fold("due", "kept_state")] if "due" in shared else [])
    made = body.close(editor, factors.trip, values, f"{factors.slot}_fold_layers")
    return made[0], made[-1], made[0].args[0]  # type: ignore[return-value]
