"""Row-wise parts as the device's operators: rms_norm, rotary embedding, silu(gate) * up."""

from __future__ import annotations

import operator
from typing import Any

from torch.fx import Node

from specc.ir import ops
from specc.ir.edit import Editor
from specc.ir.scope import named_arguments
from specc.passes.legalize_ascend.common import NAME, At, Place, Plan, aten, become

SPLITS = (aten.split_with_sizes.default, aten.split.Tensor, aten.chunk.default)


def dense_parts(place: Place, step: str, plan: Plan) -> None:
    """Rewrites what stands in this graph (not inside its loops)."""
    for node in list(place.module.graph.nodes):
        if node.target is aten.rms_norm.default:
            _norm(place, node, step, plan)
        elif node.target is ops.rope:
            _rotation(place, node, step, plan)
        elif node.target is aten.mul.Tensor:
            _gate(place, node, step, plan)


def _norm(place: Place, node: Node, step: str, plan: Plan) -> None:
    given = named_arguments(node)
    weight, x = given.get("weight"), given["input"]
    if len(given["normalized_shape"]) != 1 or weight is None or given.get("eps") is None:
        plan.note(step, f"`{node.name}` stays aten.rms_norm: no weight, no eps, or more than one dim", False)
        return
    if weight.meta["val"].dtype != x.meta["val"].dtype:
        plan.note(step, f"`{node.name}` stays aten.rms_norm: its weight has another dtype", False)
        return
    become(node, ops.npu_rms_norm, x, weight, float(given["eps"]))


def _rotation(place: Place, node: Node, step: str, plan: Plan) -> None:
    x, cos, sin = (node.args[number] for number in range(3))
    tables = [plan.inside(_whole(place, table, plan), place) for table in (cos, sin)]
    become(node, ops.npu_rotary_mul, x, *tables)
    plan.note(step, "rotary embedding with cos and sin of both halves, made once")


def _whole(place: Place, table: Any, plan: Plan) -> At:
    """[B,T,D/2] -> [B,T,1,D]: both halves the same."""

    def make(editor: Editor, half: Node) -> Node:
        both = editor.call(aten.cat.default, [half, half], -1)
        return editor.call(aten.unsqueeze.default, both, 2, name=f"{half.name}_full")

    return plan.outside("rotary_table", [At(place, table)], make)


def _gate(place: Place, node: Node, step: str, plan: Plan) -> None:
    """silu(gate) * up, where gate and up are the two halves of one value."""
    for silu, up in (node.args, node.args[::-1]):
        if not isinstance(silu, Node) or silu.target is not aten.silu.default or not isinstance(up, Node):
            continue
        gate = silu.args[0]
        assert isinstance(gate, Node)
        found = _halves(gate, up)
        if isinstance(found, str):
            plan.note(step, f"`{node.name}` stays silu and mul: {found}", False)
            continue
        whole, first, width = found
        if whole.meta["val"].shape[-1] != width:
            editor = Editor(place.module, NAME)
            with editor.before(node, node, silu):
                whole = editor.call(aten.narrow.default, whole, -1, first, width, name="gate_up_part")
        become(node, ops.npu_swiglu, whole)
        plan.note(step, "silu(gate) * up in one operator")
        return


def _halves(gate: Node, up: Node) -> tuple[Node, int, int] | str:
    """The value that gate and up are neighbouring parts of, and where: first column, width; or why there is none."""
    if gate.target is not operator.getitem or up.target is not operator.getitem or gate.args[0] is not up.args[0]:
        return "gate and up are not parts of one value"
    split: Any = gate.args[0]
    number: Any = gate.args[1]
    dim = named_arguments(split).get("dim", 0) if split.target in SPLITS else None
    whole = split.args[0]
    if dim not in (-1, whole.meta["val"].dim() - 1) or up.args[1] != number + 1:
        return f"`{gate.name}` and `{up.name}` are not neighbours in a split of the last dim"
    widths = [int(part.shape[-1]) for part in split.meta["val"]]
    if widths[number] != widths[number + 1]:
        return f"`{gate.name}` and `{up.name}` differ in size"
    return whole, sum(widths[:number]), 2 * widths[number]
