"""Intervals of ops that move values: views, reads by index, writes by index, concatenation, casts."""

from __future__ import annotations

from typing import Any

import torch

from specc.ir.ranges import interval as iv
from specc.ir.ranges.bounds import of_size
from specc.ir.ranges.calls import Call, dtype_of, shape_of, value
from specc.ir.ranges.interval import EVERYTHING, exactly
from specc.ir.ranges.rules import RULES, Operands, Value, dim_size, rule

SAME_VALUES = (
    "view reshape expand expand_as unsqueeze squeeze permute transpose t flatten unflatten select slice narrow movedim "
    "flip roll repeat tile diagonal contiguous clone detach alias index_select gather take "
    "take_along_dim index masked_select unfold ravel broadcast_to view_as reshape_as swapdims cpu cuda alias_copy "
    "lift_fresh pin_memory squeeze_ positive select_copy view_copy expand_copy unsqueeze_copy"
)


def _first(call: Call, operands: Operands) -> Value:
    """The tensor's own values, unless its bits are taken for another dtype (`x.view(torch.int32)`)."""
    before, after = dtype_of(call.first), dtype_of(call.node)
    reinterpreted = before is not None and after is not None and before != after
    return EVERYTHING if reinterpreted else operands.of(call.first)


for _name in SAME_VALUES.split():
    RULES.setdefault(_name, _first)


@rule("repeat_interleave")
def _repeat_interleave(call: Call, operands: Operands) -> Value:
    """With one argument it is a tensor of counts, and the result holds their positions."""
    if call.arg(1, "repeats") is None:
        size = dim_size(call.first, 0)
        return EVERYTHING if size is None else iv.up_to(size)
    return operands.of(call.first)


def _parts(call: Call, operands: Operands) -> Value:
    """Each part of a split tensor holds the tensor's values."""
    fake = value(call.node)
    whole = operands.of(call.first)
    return tuple(whole for _ in fake) if isinstance(fake, (tuple, list)) else EVERYTHING


for _name in ("split", "split_with_sizes", "chunk", "unbind", "tensor_split", "hsplit", "vsplit", "broadcast_tensors"):
    RULES[_name] = _parts


@rule("cat", "stack", "hstack", "vstack", "dstack", "column_stack")
def _cat(call: Call, operands: Operands) -> Value:
    parts = call.arg(0, "tensors")
    return iv.join_all([operands.of(part) for part in parts]) if isinstance(parts, (list, tuple)) else EVERYTHING


@rule("tril", "triu", "diag_embed")
def _with_zero(call: Call, operands: Operands) -> Value:
    return iv.join(operands.of(call.first), exactly(0))


@rule("constant_pad_nd")
def _pad(call: Call, operands: Operands) -> Value:
    fill = call.kwargs.get("value", next((item for item in call.args[2:] if isinstance(item, (int, float))), 0))
    if call.kwargs.get("mode", "constant") != "constant" or (len(call.args) > 2 and isinstance(call.args[2], str)):
        return EVERYTHING
    return iv.join(operands.of(call.first), operands.of(fill))


@rule("select_scatter", "slice_scatter", "diagonal_scatter")
def _scatter_view(call: Call, operands: Operands) -> Value:
    return iv.join(operands.of(call.first), operands.of(call.arg(1, "src")))


@rule("index_put")
def _index_put(call: Call, operands: Operands) -> Value:
    if call.arg(3, "accumulate", default=False):
        return EVERYTHING
    return iv.join(operands.of(call.first), operands.of(call.arg(2, "values")))


@rule("scatter", "index_copy", "index_fill")
def _scatter(call: Call, operands: Operands) -> Value:
    if call.kwargs.get("reduce") is not None or len(call.args) > 4:
        return EVERYTHING
    return iv.join(operands.of(call.first), operands.of(call.arg(3, "src", "value", "source", "tensor")))


@rule("masked_scatter")
def _masked_scatter(call: Call, operands: Operands) -> Value:
    return iv.join(operands.of(call.first), operands.of(call.arg(2, "source")))


@rule("copy")
def _copy(call: Call, operands: Operands) -> Value:
    return _cast(call, operands, call.arg(1, "src"))


def _cast(call: Call, operands: Operands, source: Any) -> Value:
    """Values of `source` in the dtype of the result; a float gives anything, a number as bool gives 0 or 1."""
    dtype = dtype_of(source)
    if isinstance(source, float) or dtype is None or dtype.is_floating_point:
        return EVERYTHING
    if dtype_of(call.node) == torch.bool:
        held = operands.of(source)
        return held if held.within(iv.BOOL) else iv.BOOL
    return operands.of(source)


@rule("to", "type", "long", "int", "short", "char", "byte", "bool", "type_as", "convert_element_type")
def _to(call: Call, operands: Operands) -> Value:
    return _cast(call, operands, call.first)


@rule("nonzero", "argwhere")
def _nonzero(call: Call, operands: Operands) -> Value:
    shape = shape_of(call.first)
    if not shape or call.kwargs.get("as_tuple"):
        return EVERYTHING
    return iv.join_all([iv.up_to(of_size(size)) for size in shape])


@rule("getitem")
def _getitem(call: Call, operands: Operands) -> Value:
    """A tensor read by Python indexing holds the tensor's values; items of tuples are handled by the analysis."""
    return operands.of(call.first)
