"""Attention over the scatter's result with one mask for all layers, or over the cache and a table beside it."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from specc.ir import ops
from specc.ir.dims import is_symbolic
from specc.ir.edit import Editor
from specc.ir.ops.npu_attention import HEAD_DIM_MULTIPLE, MAX_HEAD_DIM
from specc.ir.scope import named_arguments
from specc.passes.legalize_ascend.chains import ATTENTION
from specc.passes.legalize_ascend.common import At, Place, Plan, Refused, aten, become

FUSED_DTYPES = (torch.float16, torch.bfloat16)
MAX_ROWS = 16
DEFAULTS = {"fused": True}


def attend(place: Place, node: Node, k: Node, v: Node, step: str, plan: Plan) -> None:
    """Attention whose new rows lie in the caches k and v already, behind the rows below its `length`."""
    given = {**DEFAULTS, **named_arguments(node)}
    rows, capacity = int(given["k_new"].meta["val"].shape[1]), plan.capacity
    mask = _tree_mask(place, given)
    if mask is None and (given["offset"] != 0 or rows != int(given["q"].meta["val"].shape[1])):
        raise Refused(f"`{node.name}` is one row of a chain")
    length, positions = (At(place, given[name]) for name in ("length", "positions"))
    hidden = _mask(plan, length, mask, positions, (capacity, given["window"], False))
    reason = _eager_reason(node, given, step)
    if reason:
        plan.note(step, f"attention from matmuls: {reason}", False, node.meta.get("keys", ()))
        become(node, ops.masked_attention, given["q"], k, v, plan.inside(hidden, place), given["scale"])
        return
    ends = _ends(plan, length, positions, rows)
    operands = plan.inside(hidden, place), plan.inside(ends, place)
    heads = tuple(int(given[name].meta["val"].shape[2]) for name in ("q", "k_new"))
    one_row = int(given["q"].meta["val"].shape[1]) == 1  # which takes no inner_precise of 2
    form = "BSND", 1, 0 if one_row or _sees_itself(mask) else 2
    become(node, ops.npu_fused_infer_attention_score, given["q"], k, v, *operands, *heads, given["scale"], *form)
    plan.note(step, "fused attention with a mask made once", True, node.meta.get("keys", ()))


def attend_apart(place: Place, node: Node, step: str, plan: Plan) -> None:
    """Attention over a cache and a table of nodes that stays beside it: no rows are written for it."""
    given = {**DEFAULTS, **named_arguments(node)}
    mask = _tree_mask(place, given) or _chain_mask(place, given, plan)
    length, positions = (At(place, given[name]) for name in ("length", "positions"))
    hidden = _mask(plan, length, mask, positions, (plan.capacity, given["window"], True))
    both = given["q"], given["k_cache"], given["v_cache"], plan.inside(hidden, place), given["scale"]
    become(node, ops.masked_attention, *both, given["k_new"], given["v_new"])
    keys = node.meta.get("keys", ())
    message = "attention from matmuls: the drafter's nodes are in tables beside the cache"
    plan.note(step, message, False, keys)


def left_over(place: Place) -> list[tuple[Place, Node]]:
    """Attention of the value form at this place and inside it."""
    found = []
    for inner in place.walk():
        found += [(inner, node) for node in inner.module.graph.nodes if node.target in ATTENTION]
    return found


def _tree_mask(place: Place, given: dict[str, Any]) -> At | None:
    return At(place, given["mask"]) if "mask" in given else None


def _mask(plan: Plan, length: At, mask: At | None, positions: At, constants: tuple[int, int, bool]) -> At:
    def make(editor: Editor, *found: Any) -> Node:
        capacity, window, apart = found[-3:]
        tree = found[2] if mask is not None else None
        more = (True,) if apart else ()
        return editor.call(
            ops.attention_mask, found[0], tree, found[1], capacity, window, *more, name="hidden_from_rows"
        )

    operands = [length, positions, *([mask] if mask is not None else [])]
    return plan.outside("attention_mask", operands, make, *constants)


def _chain_mask(place: Place, given: dict[str, Any], plan: Plan) -> At:
    """bool [B,M,R] for `causal_attention`: row m sees the new rows up to offset + m (and within the window)."""
    queries, rows = (int(given[name].meta["val"].shape[1]) for name in ("q", "k_new"))
    if is_symbolic(queries) or is_symbolic(rows):
        raise Refused("the number of rows of a chain beside the cache is not fixed")

    def make(editor: Editor, positions: Node, offset: Any, window: int) -> Node:
        column = editor.call(ops.iota, positions, rows)
        number = editor.call(aten.unsqueeze.default, editor.call(ops.iota, positions, queries), 1)
        row = editor.call(aten.add.Tensor, number, offset)
        seen = editor.call(aten.le.Tensor, column, row)
        if window > 0:
            late = editor.call(aten.gt.Tensor, column, editor.call(aten.sub.Tensor, row, window))
            seen = editor.call(aten.logical_and.default, seen, late)
        nothing = editor.call(ops.full_rows, positions, [-1, queries, rows], False, torch.bool)
        return editor.call(aten.logical_or.default, nothing, seen, name="chain_mask")

    operands = [At(place, given["positions"]), At(place, given["offset"])]
    if not isinstance(given["offset"], Node):
        fixed = given["offset"]
        return plan.outside(
            "chain_mask",
            operands[:1],
            lambda edit, positions, window, _: make(edit, positions, fixed, window),
            given["window"],
            fixed,
        )
    return plan.outside("chain_mask", operands, make, given["window"])


def _ends(plan: Plan, length: At, positions: At, rows: int) -> At:
    """int64 [B]: length + rows, up to where keys are read."""

    def make(editor: Editor, length: Node, positions: Node) -> Node:
        number: Any = rows
        if is_symbolic(rows):
            number = editor.call(aten.sym_size.int, positions, 1)
        return editor.call(aten.add.Tensor, length, number, name="rows_in_cache")

    return plan.outside("rows_in_cache", [length, positions], make)


def _sees_itself(mask: At | None) -> bool:
    """True where every query surely sees a row: a chain, or the closure of a tree."""
    if mask is None:
        return True
    node = mask.resolved().node
    return isinstance(node, Node) and node.target is ops.ancestor_mask


def _eager_reason(node: Node, given: dict[str, Any], step: str) -> str:
    """Why this attention can't be the fused operator, or ''."""
    q = given["q"].meta["val"]
    if not given["fused"]:
        return "the spec asks for `verify.attention: eager`"
    if q.dtype not in FUSED_DTYPES:
        return f"the fused operator takes float16 and bfloat16, not {str(q.dtype).removeprefix('torch.')}"
    if q.shape[3] % HEAD_DIM_MULTIPLE or q.shape[3] > MAX_HEAD_DIM:
        return f"a head dim of {q.shape[3]} is not a multiple of 16 up to 512"
    if q.shape[1] > MAX_ROWS and step != "prefill":
        return f"{q.shape[1]} query rows are more than {MAX_ROWS} of one decode round"
    return ""
