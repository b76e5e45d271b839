"""Nodes that pick elements by computed indices, and nodes that place a value beside others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from specc.backends.printing.naming import wanted_name
from specc.backends.triton.kernels import region_math
from specc.backends.triton.regions.create import static_values, table_text
from specc.backends.triton.regions.pointwise import cast, number_text
from specc.backends.triton.regions.reduce import rest_dims
from specc.backends.triton.regions.values import (
    Block,
    Factors,
    Memory,
    Overlay,
    Parts,
    Piece,
    Shape,
    Unsupported,
    Value,
    padded,
)
from specc.backends.triton.regions.views import at_index, flatten_block, unflatten_block
from specc.backends.triton.regions.writer import Writer
from specc.ir import ops
from specc.ir.scope import named_arguments

aten = torch.ops.aten


def _rows(w: Writer, node: Node) -> tuple[Shape, int]:
    shape = node.meta["val"].shape
    lead = w.kind.lead(shape)
    return tuple(int(size) for size in shape[lead:]), lead


def _consecutive(values: Sequence[int] | None) -> bool:
    return values is not None and all(value == values[0] + place for place, value in enumerate(values))


def index_select(w: Writer, node: Node) -> Value:
    """`x.index_select(dim, index)`."""
    given = named_arguments(node)
    dim = rest_dims(w, node, given["dim"])[0]
    value, static = w.value(given["self"]), static_values(given["index"])
    if _consecutive(static):
        assert static is not None
        return w.window(value, dim, static[0], len(static))
    return _along(w, node, value, dim, w.block(given["index"]))


def _along(w: Writer, node: Node, value: Value, dim: int, index: Block) -> Value:
    """value[..., index, ...] with a 1-D index in the place of `dim`."""
    shape, lead = _rows(w, node)
    if not index.axes:
        picked = at_index(w, value, dim, w.typed(index) if index.literal else index.text, keep=True)
        if isinstance(picked, Memory):
            repeated: Factors = ((shape[dim], 0),)
            return replace(picked, shape=shape, dims=(*picked.dims[:dim], repeated, *picked.dims[dim + 1 :]))
        picked = w.block(picked)
        return picked.reshaped(shape, picked.axes)
    wide = index.reshaped(shape, (dim,))
    if isinstance(value, Memory):
        axes = tuple(axis for axis, size in enumerate(shape) if size > 1 and (axis == dim or axis in value.axes()))
        return _loaded(w, value, shape, axes, lead, {dim: wide})
    return _gathered(w, node, w.block(value), dim, wide, shape, lead)


def _loaded(
    w: Writer, value: Memory, shape: Shape, axes: tuple[int, ...], lead: int, indices: Mapping[int, Block]
) -> Block:
    """Elements of memory at the given indices, at their own index along other dims (dims line up with `shape`)."""
    texts: list[str | None] = [
        w.spread_text(indices[dim].text, indices[dim].axes, axes) if dim in indices else w.index(shape, axes, dim)
        for dim in range(len(shape))
    ]
    return w.load_at(value, shape, axes, lead, texts, w.masks(shape, axes))


def _gathered(w: Writer, node: Node, value: Block, dim: int, index: Block, shape: Shape, lead: int) -> Block:
    """torch.gather of a block: the index lies in a block of the result's shape."""
    if dim not in value.axes:
        return value.reshaped(shape, value.axes, lead)
    axes = tuple(sorted(set(value.axes) | set(index.axes)))
    value = w.full(value, [axis for axis in axes if value.shape[axis] > 1])
    if value.axes != axes:
        raise Unsupported("an index with more dims than what it reads")
    block = [padded(shape[axis]) for axis in axes]
    if [padded(value.shape[axis]) for axis in axes if axis != dim] != [
        padded(shape[axis]) for axis in axes if axis != dim
    ]:
        raise Unsupported("an index that reads a part of the other dims")
    lanes = padded(value.shape[dim])
    wide = w.spread_text(f"({w.typed(index)} & {lanes - 1}).to(tl.int32)", index.axes, axes)
    text = w.moved(value, axes.index(dim), wide, tuple(block))
    return w.let(wanted_name(node), text, value.dtype, shape, axes, lead)


def gather(w: Writer, node: Node) -> Value:
    """`x.gather(dim, index)`."""
    given = named_arguments(node)
    dim = rest_dims(w, node, given["dim"])[0]
    value, index = w.value(given["self"]), w.block(given["index"])
    shape, lead = _rows(w, node)
    if w.kind.lead(given["self"].meta["val"].shape) != lead:
        raise Unsupported("an index of other rows")
    if not index.axes and all(size == 1 for size in shape):
        return at_index(w, value, dim, index.text, keep=True)
    if isinstance(value, Memory):
        axes = tuple(
            axis
            for axis, size in enumerate(shape)
            if size > 1 and (axis in index.axes or (axis != dim and axis in value.axes()))
        )
        return _loaded(w, value, shape, axes, lead, {dim: index})
    block = w.block(value)
    if not index.axes:
        picked = w.pick(block, dim, index.text, keep=True)
        return picked.reshaped(shape, picked.axes, lead)
    return _gathered(w, node, block, dim, index, shape, lead)


def index(w: Writer, node: Node) -> Value:
    """`x[batch, index]`: rows of the program's own batch row; `table[index]` of a table of numbers."""
    given = named_arguments(node)
    source, indices = given["self"], given["indices"]
    shape, lead = _rows(w, node)
    if len(indices) == 1 and isinstance(indices[0], Node):
        return _table(w, node, source, w.block(indices[0]), shape, lead)
    if len(indices) != 2 or getattr(indices[0], "target", None) is not ops.batch_index or w.kind.rows is not None:
        raise Unsupported("indices of this form")
    if w.kind.lead(source.meta["val"].shape) != 1 or not isinstance(indices[1], Node):
        raise Unsupported("indices of this form")
    value, at = w.value(source), w.block(indices[1])
    inner = value.shape[1:]
    if not at.axes:
        picked = at_index(w, value, 0, at.text, keep=False)
        # Dims of size 1 (all of the index's) stand before those of the row that was picked.
        return _with_ones(w, picked, len(at.shape))
    if isinstance(value, Memory):
        axes = (*at.axes, *(dim + len(at.shape) for dim in range(len(inner)) if dim + 1 in value.axes()))
        texts: list[str | None] = [w.spread_text(at.text, at.axes, axes)]
        texts += [w.index(shape, axes, dim + len(at.shape)) for dim in range(len(inner))]
        return w.load_at(value, shape, axes, lead, texts, w.masks(shape, axes))
    return _rows_of_block(w, node, w.block(value), at, shape)


def _with_ones(w: Writer, value: Value, count: int) -> Value:
    if isinstance(value, (Parts, Overlay)):
        value = w.block(value)
    shape = (*[1] * count, *value.shape)
    if isinstance(value, Memory):
        dims = (*[((1, 0),)] * count, *value.dims)
        return Memory(value.pointer, value.dtype, shape, dims, value.offset, value.lead, value.name)
    return value.reshaped(shape, tuple(axis + count for axis in value.axes))


def _rows_of_block(w: Writer, node: Node, value: Block, at: Block, shape: Shape) -> Block:
    """block[index]: the index as one line, gathered along dim 0, then its dims again."""
    count = len(at.shape)
    line = at if count == 1 else flatten_block(w, w.full(at), 0, count - 1)
    flat = (line.shape[0], *value.shape[1:])
    made = _gathered(w, node, value, 0, line.reshaped(flat, (0,)), flat, value.lead)
    return made if count == 1 else unflatten_block(w, made, 0, shape[:count])


def _table(w: Writer, node: Node, source: Node, at: Block, shape: Shape, lead: int) -> Block:
    values = static_values(source)
    if values is None:
        return _weight_rows(w, w.value(source), at, shape, lead)
    if len(set(values)) == 1:
        return Block(str(values[0]), torch.int64, shape, (), lead, literal=True)
    return w.let(wanted_name(node), table_text(values, w.typed(at)), torch.int64, shape, at.axes, at.lead)


def _weight_rows(w: Writer, value: Value, at: Block, shape: Shape, lead: int) -> Block:
    """Rows of a tensor that is the same for all programs."""
    if not isinstance(value, Memory) or value.lead or at.lead != lead:
        raise Unsupported("a table of rows")
    count = len(at.shape)
    inner = range(1, len(value.shape))
    axes = (*at.axes, *(dim - 1 + count for dim in inner if dim in value.axes()))
    texts: list[str | None] = [w.spread_text(w.typed(at), at.axes, axes)]
    texts += [w.index(shape, axes, dim - 1 + count) for dim in inner]
    return w.load_at(value, shape, axes, lead, texts, w.masks(shape, axes))


def embedding(w: Writer, node: Node) -> Value:
    """The table's row of the program's token, read where it is used."""
    given = named_arguments(node)
    if any(value not in (-1, False) for key, value in given.items() if key not in ("weight", "indices")):
        raise Unsupported("options of embedding")
    table, at = w.value(given["weight"]), w.block(given["indices"])
    if at.axes or not isinstance(table, Memory):
        raise Unsupported("several rows of a table")
    picked = at_index(w, table, 0, at.text, keep=False)
    assert isinstance(picked, Memory)
    made = _with_ones(w, picked, len(at.shape))
    assert isinstance(made, Memory)
    return Memory(made.pointer, made.dtype, made.shape, made.dims, made.offset, at.lead, made.name)


def cat(w: Writer, node: Node) -> Parts:
    """`torch.cat`."""
    given = named_arguments(node)
    tensors = given["tensors"]
    first = tensors[0].meta["val"].shape
    dim = given.get("dim", 0) % len(first) - w.kind.lead(first)
    shape, lead = _rows(w, node)
    if dim < 0 or any(w.kind.lead(tensor.meta["val"].shape) != lead for tensor in tensors):
        raise Unsupported("it joins rows")
    dtype = node.meta["val"].dtype
    pieces = tuple(_piece(w, tensor) for tensor in tensors if 0 not in tensor.meta["val"].shape)
    if any(piece.dtype != dtype for piece in pieces):
        pieces = tuple(cast(w, w.block(piece), dtype) for piece in pieces)
    return Parts(pieces, dim, shape, dtype, lead)


def _piece(w: Writer, node: Node) -> Piece:
    value = w.value(node)
    return w.block(value) if isinstance(value, Overlay) else value


def pad(w: Writer, node: Node) -> Value:
    """`constant_pad_nd`."""
    given = named_arguments(node)
    value = _piece(w, given["self"])
    dtype = node.meta["val"].dtype
    number = number_text(given.get("value", 0), dtype)
    sizes: Sequence[int] = given["pad"]
    for place in range(0, len(sizes), 2):
        dim = len(value.shape) - 1 - place // 2
        if dim < 0 or min(sizes) < 0:
            raise Unsupported("it pads rows")
        pieces: list[Piece] = [] if 0 in value.shape else [value]
        for at, size in ((0, sizes[place]), (1, sizes[place + 1])):
            if size:
                shape = (*value.shape[:dim], size, *value.shape[dim + 1 :])
                pieces.insert(0 if at == 0 else len(pieces), Block(number, dtype, shape, (), value.lead, literal=True))
        if pieces != [value]:
            total = sum(piece.shape[dim] for piece in pieces)
            value = Parts(tuple(pieces), dim, (*value.shape[:dim], total, *value.shape[dim + 1 :]), dtype, value.lead)
    return value


def slice_scatter(w: Writer, node: Node) -> Parts | Overlay:
    """`slice_scatter`: what stands before the part, the part, what stands behind it; or a part at the place of a
    loop's iteration."""
    given = named_arguments(node)
    dim = rest_dims(w, node, given.get("dim", 0))[0]
    start, end = given.get("start"), given.get("end")
    if isinstance(start, Node):
        return _overlay(w, node, dim, start)
    if not isinstance(start, int) or not isinstance(end, int) or given.get("step", 1) != 1 or start < 0:
        raise Unsupported("a part whose place is not known")
    base, source = _piece(w, given["self"]), _piece(w, given["src"])
    shape, lead = _rows(w, node)
    end = min(end, shape[dim])
    if source.lead != lead or base.lead != lead or source.dtype != base.dtype or end <= start:
        raise Unsupported("a part of other rows")
    pieces: list[Piece] = [source]
    if start:
        pieces.insert(0, w.window(base, dim, 0, start))
    if end < shape[dim]:
        pieces.append(w.window(base, dim, end, shape[dim] - end))
    return Parts(tuple(pieces), dim, shape, base.dtype, lead)


def _overlay(w: Writer, node: Node, dim: int, start: Node) -> Overlay:
    given = named_arguments(node)
    base, part = w.value(given["self"]), w.value(given["src"])
    shape, lead = _rows(w, node)
    if given.get("step", 1) != 1 or isinstance(part, Overlay) or base.dtype != part.dtype or part.lead != lead:
        raise Unsupported("a part of other rows")
    if isinstance(base, (Parts, Overlay)):
        base = w.block(base)
    return Overlay(base, part, dim, w.block(start).text, shape, base.dtype, lead)


def roll(w: Writer, node: Node) -> Block:
    """`roll` along one dim, of a tensor in memory."""
    given = named_arguments(node)
    if len(given["shifts"]) != 1 or len(given.get("dims", ())) != 1:
        raise Unsupported("roll of several dims")
    dim = rest_dims(w, node, given["dims"][0])[0]
    value, shift = w.value(given["self"]), given["shifts"][0]
    shape, lead = _rows(w, node)
    if not isinstance(value, Memory):
        raise Unsupported("roll of what is computed")
    text = w.block(shift).text if isinstance(shift, Node) else str(shift)
    axes = value.axes()
    place = w.index(shape, axes, dim)
    size = shape[dim]
    helper = w.helper(region_math.wrapped)
    indices: list[str | None] = [
        f"{helper}({place} - {text}, {size})" if item == dim else w.index(shape, axes, item)
        for item in range(len(shape))
    ]
    return w.load_at(value, shape, axes, lead, indices, w.masks(shape, axes))


INDEXING: Mapping[Any, Callable[[Writer, Node], Any]] = {
    aten.index_select.default: index_select,
    aten.gather.default: gather,
    aten.index.Tensor: index,
    aten.embedding.default: embedding,
    aten.cat.default: cat,
    aten.constant_pad_nd.default: pad,
    aten.slice_scatter.default: slice_scatter,
    aten.roll.default: roll,
}
