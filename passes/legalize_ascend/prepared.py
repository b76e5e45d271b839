"""Weights that every step would prepare anew are prepared by the loader, once: `Weight.form`.

    a.to(float32)                         "wide"            the same numbers in float32
    -exp(a.to(float32))                   "negative_exp"    the rate of a delta rule's decay
    w + 1.0                               "plus_one"        norms whose weights are stored around 0
    tree_conv(…, w), short_conv(…, w)     "taps_first"      [C,1,W] as [W,1,C] in float32, transposed back for the op:
                                                            the backend's function transposes again, which cancels

A weight is prepared only if all graphs read it in the same way: a program has one set of weights. The checkpoint's
names stay; so does the name of the weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from specc.ir import ops
from specc.ir.build import fake
from specc.ir.edit import Editor, erase_dead, is_loop
from specc.ir.scope import Scope, Value
from specc.passes.fuse_projections import weight_name
from specc.passes.legalize_ascend.common import NAME, Plan, aten
from specc.program import DecodeProgram, Weight

CONVOLUTIONS = (ops.short_conv, ops.tree_conv)
TAPS = "taps_first"
WORDS: Mapping[str, str] = {
    "wide": "in float32",
    "negative_exp": "as -exp(x) in float32",
    "plus_one": "as x + 1",
    TAPS: "in float32, with the taps first",
}


@dataclass(frozen=True, slots=True)
class Read:
    """A node that reads a weight: what it wants of it, in which type, and the node whose value is that."""

    body: GraphModule
    reader: Node
    form: str
    dtype: torch.dtype
    made: Node


def prepare(program: DecodeProgram, plan: Plan) -> DecodeProgram:
    """The program with prepared weights; its graphs are edited in place (types are left to `retype`)."""
    reads: dict[str, list[Read | None]] = {}
    for module in program.graphs.values():
        for scope in Scope(module).walk():
            for name, found in _reads(scope):
                reads.setdefault(name, []).append(found)
    weights = dict(program.weights)
    for name, every in reads.items():
        known = [found for found in every if found is not None]
        forms = {(found.form, found.dtype) for found in known}
        if len(forms) != 1 or len(known) != len(every):
            if known:
                plan.note("", f"`{name}` is not prepared at load: graphs read it in different ways", False)
            continue
        ((form, dtype),) = forms
        weights[name] = _formed(weights[name], form, dtype)
        _declare(program, weights[name])
        for found in known:
            _use(found)
        plan.note("", f"`{name}` is prepared at load, {WORDS[form]}")
    for module in program.graphs.values():
        erase_dead(module)
    return replace(program, weights=weights)


def _reads(scope: Scope) -> Iterator[tuple[str, Read | None]]:
    """The weights that nodes of a body read, and how (None: in no way that is prepared)."""
    for node in scope.module.graph.nodes:
        if is_loop(node) or node.op in ("placeholder", "get_attr", "output"):
            continue
        for place, argument in enumerate(_operands(node)):
            name = weight_name(Value(scope, argument)) if isinstance(argument, Node) else None
            if name is not None:
                yield name, _read(scope.module, node, place)


def _operands(node: Node) -> list[Any]:
    """Positional operands, and those inside of lists."""
    given: list[Any] = list(node.args)
    return given + [item for value in given if isinstance(value, (list, tuple)) for item in value]


def _read(body: GraphModule, node: Node, place: int) -> Read | None:
    weight = node.args[place] if place < len(node.args) else None
    if not isinstance(weight, Node) or not isinstance(weight.meta["val"], torch.Tensor):
        return None
    dtype = weight.meta["val"].dtype
    if node.target in CONVOLUTIONS and place == 2:
        return Read(body, node, TAPS, torch.promote_types(dtype, torch.float32), node)
    if node.target is aten.add.Tensor and node.args[1:] == (1.0,) and not node.kwargs:
        return Read(body, node, "plus_one", dtype, node)
    last = node
    if node.target is aten._to_copy.default:
        if set(node.kwargs) != {"dtype"}:
            return None
        only = _only_user(node)
        if only is None or only.target is not aten.exp.default:
            return Read(body, node, "wide", node.meta["val"].dtype, node)
        last = only
    negative = _only_user(last) if last.target is aten.exp.default else None
    if negative is None or negative.target is not aten.neg.default:
        return None
    return Read(body, node, "negative_exp", negative.meta["val"].dtype, negative)


def _only_user(node: Node) -> Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _formed(weight: Weight, form: str, dtype: torch.dtype) -> Weight:
    shape = weight.shape[::-1] if form == TAPS else weight.shape
    return replace(weight, form=form, dtype=dtype, shape=shape)


def _declare(program: DecodeProgram, weight: Weight) -> None:
    """The weight's placeholders in all graphs and bodies have its new type."""
    one = fake(weight.shape, weight.dtype)
    for module in program.graphs.values():
        for scope in Scope(module).walk():
            for node in scope.module.graph.nodes:
                if node.op == "placeholder" and weight_name(Value(scope, node)) == weight.name:
                    many = isinstance(node.meta["val"], (tuple, list))
                    node.meta["val"] = tuple(one for _ in node.meta["val"]) if many else one


def _use(found: Read) -> None:
    """The prepared weight in place of what was made of it."""
    weight: Any = found.reader.args[2 if found.form == TAPS else 0]
    if found.form != TAPS:
        found.made.replace_all_uses_with(weight)
        return
    editor = Editor(found.body, NAME)
    with editor.before(found.reader, found.reader):
        stored = editor.call(aten.permute.default, weight, [2, 1, 0], name="taps")
    found.reader.args = (*found.reader.args[:2], stored, *found.reader.args[3:])
