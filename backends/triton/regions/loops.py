"""A loop of few iterations over small values as a loop inside the kernel."""

from __future__ import annotations

import torch
from torch.fx import Node

from specc.backends.triton.regions.create import CREATE
from specc.backends.triton.regions.values import Block, Unsupported, Value, padded, register_type
from specc.backends.triton.regions.views import VIEWS, at_index
from specc.backends.triton.regions.writer import Writer
from specc.ir.edit import LoopParts, loop_parts

# Longer loops are not unrolled.
UNROLLED = 32
# Worked out where they are read.
_LAZY = frozenset({*VIEWS, *CREATE})


def _variable(w: Writer, name: str, value: Block) -> Block:
    """A variable of the kernel that an iteration assigns again: a block with all its axes."""
    value = w.full(value)
    return w.let(name, w.typed(value), value.dtype, value.shape, value.axes, value.lead)


def _slice(w: Writer, parts: LoopParts, place: int, index: str) -> Value:
    operand = parts.sliced[place]
    if not isinstance(operand, Node) or isinstance(operand.meta.get("val"), (list, tuple)):
        raise Unsupported("a loop over separate tensors")
    value, shape = w.value(operand), operand.meta["val"].shape
    lead = w.kind.lead(shape)
    if parts.axis == "token":
        if lead != 1:
            raise Unsupported("a loop over tokens of other rows")
        return at_index(w, value, 0, index, keep=True)
    if lead:
        raise Unsupported("a loop over rows")
    return at_index(w, value, 0, index, keep=False)


def _stacked(w: Writer, parts: LoopParts, value: Block, trip: int) -> Block:
    """Where the iterations' results along the token axis are collected."""
    if parts.axis != "token" or value.shape[:1] != (1,) or value.lead != 1:
        raise Unsupported("results stacked in front of the rows")
    shape = (trip, *value.shape[1:])
    axes = tuple(axis for axis, size in enumerate(shape) if size > 1)
    block = [padded(shape[axis]) for axis in axes]
    return w.let("stacked", f"tl.full({block}, 0, {register_type(value.dtype)})", value.dtype, shape, axes, 1)


def fused_loop(w: Writer, node: Node) -> tuple[Value, ...]:
    """A `loop` node; its value is the tuple of its results."""
    parts = loop_parts(node)
    trip = parts.trip
    if w.kind.rows is not None or not isinstance(trip, int):
        raise Unsupported("a loop of this form")
    carried = [
        _variable(w, inside.name, w.block(operand))
        for inside, operand in zip(parts.carried_inside, parts.carried, strict=True)
    ]
    # Types of stacked results are known from the body; their blocks must exist before the loop.
    stacked = [_stacked(w, parts, _typed(w, item), trip) for item in parts.stacked_out]
    for operand in parts.invariant:
        if isinstance(operand, Node):
            w.value(operand)
    index = w.names.fresh(parts.axis)
    function = "tl.static_range" if trip <= UNROLLED else "range"
    with w.nested(f"for {index} in {function}({trip}):"):
        w.env[parts.index] = Block(index, torch.int64, (), (), 0, literal=True)
        w.env.update(zip(parts.carried_inside, carried, strict=True))
        for place, inside in enumerate(parts.sliced_inside):
            w.env[inside] = _slice(w, parts, place, index)
        for inside, operand in zip(parts.invariant_inside, parts.invariant, strict=True):
            if not isinstance(operand, Node):
                raise Unsupported("a constant operand of a loop")
            w.env[inside] = w.value(operand)
        for inner in parts.body.graph.nodes:
            if inner.op == "call_function" and inner.target not in _LAZY:
                w.value(inner)
        for variable, item in zip(stacked, parts.stacked_out, strict=True):
            part = w.block(item)
            at = w.index(variable.shape, variable.axes, 0)
            aligned = w.spread(part, variable.shape, variable.axes)
            w.line(f"{variable.text} = tl.where({at} == {index}, {aligned}, {variable.text})")
        _assign(w, carried, [w.block(item) for item in parts.carried_out])
    return (*carried, *stacked)


def _typed(w: Writer, item: Node) -> Block:
    """A block with the type that a node of the body has."""
    fake = item.meta["val"]
    lead = w.kind.lead(fake.shape)
    return Block("0", fake.dtype, tuple(int(size) for size in fake.shape[lead:]), (), lead)


def _assign(w: Writer, carried: list[Block], values: list[Block]) -> None:
    """The carried variables take their new values."""
    names = {variable.text for variable in carried}
    ready: list[str] = []
    for variable, value in zip(carried, values, strict=True):
        full = w.full(value)
        if full.axes != variable.axes or full.dtype != variable.dtype:
            raise Unsupported("a carried value that changes its form")
        text = w.typed(full)
        if text in names and text != variable.text:
            text = w.let("old", text, full.dtype, full.shape, full.axes, full.lead).text
        ready.append(text)
    for variable, text in zip(carried, ready, strict=True):
        if text != variable.text:
            w.line(f"{variable.text} = {text}")
