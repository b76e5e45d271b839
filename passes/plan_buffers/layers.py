"""Values that a loop over layers computes for a slot are written into the slot, in the layer's own iteration.

    value level                                        buffer level
    o, u, S' = delta_rule(S, …)                        o, u = delta_rule_(S, …)
    S' = delta_rule_commit(S, …)                       delta_rule_commit_(S, …)
    S', o, u = delta_rule_verify_pending(S, …)         o, u = delta_rule_verify_pending_(S, …)   (only where due)
    L' = commit_path(L, rows, path, start, count)      append_rows_(L, rows[path], start, count)
    x' (a window, candidate rows) stacked over layers  copy_(x, x')

where S, L and x are one layer's slices of the slots that get S', L' and x'. Conditions: the stacked result is the
slot's new value and nothing else's, its place is not read afterwards, neither in the iteration nor by a later op of the
step, and the value does not lie in that very memory. What fails one keeps its value form, and a note says why.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from specc.ir import ops
from specc.ir.build import fake, output_node
from specc.ir.edit import Editor, LoopParts, inherit, is_loop, loop_parts
from specc.ir.effects import is_view
from specc.ir.port import Port
from specc.ir.scope import add_operand, named_arguments
from specc.passes.plan_buffers.common import (
    NAME,
    Plan,
    Refused,
    bound_slots,
    outside,
    slot_of,
    stacked_result,
    unbind,
)
from specc.program import output_ports

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class InPlace:
    """The form of an op that writes its first operand: `arguments` of the value form it takes, `result`: which of the
    value form's results (None: its only one) takes the operand's place."""

    target: Any
    arguments: int
    result: int | None


FORMS: Mapping[Any, InPlace] = {
    ops.delta_rule: InPlace(ops.delta_rule_, 6, 2),
    ops.delta_rule_chunk: InPlace(ops.delta_rule_chunk_, 7, 2),
    ops.delta_rule_commit: InPlace(ops.delta_rule_commit_, 7, None),
    ops.delta_rule_verify_pending: InPlace(ops.delta_rule_verify_pending_, 16, 0),
}


def layers_in_place(module: GraphModule, step: str, plan: Plan) -> None:
    """Every layer's part of a slot that a loop over layers computes is written where it lies."""
    for node in list(module.graph.nodes):
        if is_loop(node) and node.args[0] == "layer":
            for value in dict.fromkeys(loop_parts(node).stacked_out):
                if isinstance(value, Node):
                    _store(module, node, value, step, plan)


def _store(module: GraphModule, loop: Node, value: Node, step: str, plan: Plan) -> None:
    parts = loop_parts(loop)
    results = stacked_result(parts, value)
    slots = {
        port.name
        for result in results
        for port, item in zip(output_ports(module), output_node(module).args[0], strict=True)  # type: ignore[arg-type]
        if item is result and port.kind == "slot"
    }
    if len(slots) != 1:
        return
    slot = slots.pop()
    try:
        for result in results:
            if bound_slots(module, result) != [slot]:
                raise Refused(f"`{result.name}` is the new value of several slots")
        what = _write(module, loop, value, slot, plan)
    except Refused as reason:
        plan.note(step, f"`{slot}` gets a new tensor: {reason}", fired=False)
        return
    if what is not None:
        unbind(module, {slot})
        plan.note(step, f"`{slot}`: {what}")


def _write(module: GraphModule, loop: Node, value: Node, slot: str, plan: Plan) -> str | None:
    """Insert the write; says what was done, None where this is not the place to do it. Raises Refused."""
    if value.target is ops.append_rows or (
        value.target is ops.commit_path and plan.program.slots[slot].role != "pending"
    ):
        return None  # KV rows: the other rules'
    parts = loop_parts(loop)
    operand = next((item for item in module.graph.nodes if slot_of(item) == slot), None)
    if operand is not None:
        _check_later_readers(module, operand, loop)
    places = [inside for inside in parts.sliced_inside if outside(parts, inside) is operand]
    op, result = _source(value)
    form = FORMS.get(op.target)
    if form is not None and form.result == result and op.args[0] in places:
        _check_last(parts, op.args[0], op)
        _in_place(parts, op, value, form)
        return "its layer is updated where it lies"
    if value.target is ops.commit_path and value.args[0] in places:
        _check_last(parts, value.args[0], value)
        _append(parts, value)
        return "accepted rows are appended where it lies"
    if operand is None:
        operand = _placeholder(module, plan, slot)
    place = places[0] if places else add_operand(loop, "sliced", operand, slot)
    _copy(loop_parts(loop), value, place)
    return "each layer's part is written into it"


def _source(value: Node) -> tuple[Node, int | None]:
    """The op that computes a value, and which of its results it is."""
    if value.target is operator.getitem and isinstance(value.args[0], Node):
        return value.args[0], int(value.args[1])  # type: ignore[arg-type]
    return value, None


def _check_later_readers(module: GraphModule, operand: Node, loop: Node) -> None:
    order = {node: place for place, node in enumerate(module.graph.nodes)}
    for user in operand.users:
        if order[user] > order[loop]:
            raise Refused(f"`{user.name}` reads its old value later in the step")


def _check_last(parts: LoopParts, place: Any, op: Node) -> None:
    """Nothing reads the slice after the op."""
    order = {node: number for number, node in enumerate(parts.body.graph.nodes)}
    for user in place.users:
        if order[user] > order[op]:
            raise Refused(f"`{user.name}` reads the layer's old value later in the iteration")


def _in_place(parts: LoopParts, op: Node, value: Node, form: InPlace) -> None:
    """The op by its form in place; who reads the value reads the slice, which holds it from there on."""
    editor = Editor(parts.body, NAME)
    with editor.before(op):
        made = editor.call(form.target, *op.args[: form.arguments], name=op.name)
    place: Any = op.args[0]
    if form.result is None:
        value.replace_all_uses_with(place)
    else:
        kept = [number for number in range(len(op.meta["val"])) if number != form.result]
        for user in list(op.users):
            number: Any = user.args[1]
            if number == form.result:
                user.replace_all_uses_with(place)
            else:
                with editor.before(user):
                    item = editor.item(made, kept.index(number), user.name)
                inherit(item, user, NAME)
                user.replace_all_uses_with(item)
            parts.body.graph.erase_node(user)
    inherit(made, op, NAME)
    parts.body.graph.erase_node(op)


def _append(parts: LoopParts, value: Node) -> None:
    """commit_path into a list that is no home of the candidates: gather the path's rows, append them."""
    arguments = named_arguments(value)
    editor = Editor(parts.body, NAME)
    with editor.before(value):
        batch = _batch(parts, arguments["path"], editor)
        rows = editor.call(aten.index.Tensor, arguments["candidate"], [batch, arguments["path"]], name="path_rows")
        editor.call(ops.append_rows_, arguments["cache"], rows, arguments["start"], arguments["count"])
    value.replace_all_uses_with(arguments["cache"])
    parts.body.graph.erase_node(value)


def _batch(parts: LoopParts, path: Node, editor: Editor) -> Node:
    """batch_index(path), one for all lists of the body."""
    for node in parts.body.graph.nodes:
        if node.target is ops.batch_index and node.args[0] is path:
            return node
    return editor.call(ops.batch_index, path, name="batch_rows")


def _placeholder(module: GraphModule, plan: Plan, slot: str) -> Node:
    """The slot as an operand of a step that did not read it before."""
    declared = plan.program.slots[slot]
    editor = Editor(module, NAME)
    with editor.before(next(iter(module.graph.nodes))):
        from_slot = editor.placeholder(slot, fake(declared.shape, declared.dtype), Port("slot", slot))
    from_slot.meta["keys"] = ("commit", "verify")
    return from_slot


def _copy(parts: LoopParts, value: Node, place: Node) -> None:
    """copy_(place, value) behind the value and the last reader of the place."""
    source: Any = value
    while isinstance(source, Node) and (is_view(source) or source.target is operator.getitem):
        source = source.args[0]
    if source is place:
        raise Refused(f"`{value.name}` lies in the memory that it would overwrite")
    order = {node: number for number, node in enumerate(parts.body.graph.nodes)}
    readers = [user for user in place.users if user.op != "output"]
    last = max([value, *readers], key=order.__getitem__)
    if value.op == "placeholder":
        last = max([*readers, parts.inside[-1]], key=order.__getitem__)
    editor = Editor(parts.body, NAME)
    with editor.after(last, value):
        editor.call(aten.copy_.default, place, value)
