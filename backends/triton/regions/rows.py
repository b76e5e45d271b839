"""Nodes that write: rows into a cache, a value into a tensor. A kernel stores only after it has read everything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from specc.backends.printing.naming import wanted_name
from specc.backends.triton.regions.pointwise import cast
from specc.backends.triton.regions.values import Block, Memory, Overlay, Parts, Unsupported, Value, padded
from specc.backends.triton.regions.writer import Writer
from specc.ir import ops
from specc.ir.scope import named_arguments

aten = torch.ops.aten


def store(w: Writer, memory: Memory, value: Value, extra: str = "") -> None:
    """Note the stores of a value into memory of the same shape (behind all that is computed)."""
    if 0 in memory.shape:
        return
    if isinstance(value, Overlay):
        _store_overlay(w, memory, value, extra)
        return
    if isinstance(value, Parts):
        first = 0
        for piece in value.pieces:
            part = w.window(memory, value.dim, first, piece.shape[value.dim])
            assert isinstance(part, Memory)
            store(w, part, piece, extra)
            first += piece.shape[value.dim]
        return
    block = cast(w, w.block(value), memory.dtype)
    axes = tuple(dim for dim, size in enumerate(memory.shape) if size > 1)
    address = w.address(memory, [w.index(memory.shape, axes, dim) for dim in range(len(memory.shape))])
    text = w.spread(block, memory.shape, axes)
    text = w.typed(Block(text, block.dtype, (), (), 0, block.literal))
    if memory.dtype == torch.bool:
        text = f"{text}.to(tl.uint8)"
    elif memory.dtype in (torch.bfloat16, torch.float16):
        text = f"{text}.to(tl.{'bfloat16' if memory.dtype == torch.bfloat16 else 'float16'})"
    masks = w.masks(memory.shape, axes) + ([f"({extra})"] if extra else [])
    guard = f", mask={' & '.join(masks)}" if masks else ""
    w.stores.append(f"tl.store({address}, {text}{guard})")


def _store_overlay(w: Writer, memory: Memory, value: Overlay, extra: str) -> None:
    """The base where the part is not, and the part."""
    dim, size = value.dim, value.part.shape[value.dim]
    axes = tuple(at for at, count in enumerate(memory.shape) if count > 1)
    at, stride = w.index(memory.shape, axes, dim), memory.dims[dim][0][1]
    around = f"(({at} < {value.start}) | ({at} >= {value.start} + {size}))"
    store(w, memory, value.base, f"{extra} & {around}" if extra else around)
    shape = (*memory.shape[:dim], size, *memory.shape[dim + 1 :])
    dims = (*memory.dims[:dim], ((size, stride),), *memory.dims[dim + 1 :])
    place = replace(memory, shape=shape, dims=dims, offset=(*memory.offset, f"{value.start} * {stride}"))
    store(w, place, value.part, extra)


def _target(w: Writer, node: Any) -> Memory:
    value = w.value(node)
    if not isinstance(value, Memory):
        raise Unsupported("it writes what the kernel computes")
    for parameter in w.parameters.values():
        if parameter.name == value.pointer:
            parameter.written = "inplace"
    return value


def copy(w: Writer, node: Node) -> Memory:
    """`target.copy_(source)`."""
    target, source = node.args[:2]
    memory = _target(w, target)
    assert isinstance(source, Node)
    value = w.value(source)
    if w.kind.rows is not None and memory.lead != 2:
        raise Unsupported("tokens that write one row")
    if memory.lead == 0 or (value.shape != memory.shape and isinstance(value, Parts)):
        raise Unsupported("a copy of this form")
    store(w, memory, value)
    return memory


def append_in_place(w: Writer, node: Node) -> Memory:
    """specc.append_rows_: cache[b, start[b] + j] = rows[b, j] for j < count[b]."""
    given = named_arguments(node)
    memory, rows = _target(w, given["cache"]), w.value(given["rows"])
    start = w.block(given["start"])
    count = None if given.get("count") is None else w.block(given["count"])
    if memory.lead != 1 or start.lead != 1 or start.axes or len(memory.dims[0]) != 1:
        raise Unsupported("a cache of this form")
    stride = memory.dims[0][0][1]
    if w.kind.rows is not None:
        if rows.lead != 2:
            raise Unsupported("rows that are not the tokens'")
        w.uses_batch = True
        offset = f"({w.typed(start)} + token) * {stride}"
        place = Memory(
            memory.pointer, memory.dtype, memory.shape[1:], memory.dims[1:], (*memory.offset, offset), 2, memory.name
        )
        store(w, place, rows, "" if count is None else f"token < {w.typed(count)}")
        return memory
    if rows.lead != 1:
        raise Unsupported("rows of another batch")
    offset = w.typed(start) if stride == 1 else f"{w.typed(start)} * {stride}"
    shape = (rows.shape[0], *memory.shape[1:])
    place = Memory(
        memory.pointer,
        memory.dtype,
        shape,
        (((shape[0], stride),), *memory.dims[1:]),
        (*memory.offset, offset),
        1,
        memory.name,
    )
    axes = tuple(dim for dim, size in enumerate(shape) if size > 1)
    store(w, place, rows, "" if count is None else f"{w.index(shape, axes, 0)} < {w.typed(count)}")
    return memory


def append(w: Writer, node: Node) -> Block:
    """specc.append_rows: the whole cache with rows written at a place."""
    given = named_arguments(node)
    cache, rows = w.full(w.block(given["cache"])), w.value(given["rows"])
    start, count = (w.block(given[key]) for key in ("start", "count"))
    if w.kind.rows is not None or cache.lead != 1 or rows.lead != 1 or not isinstance(rows, (Memory, Block)):
        raise Unsupported("a cache of this form")
    axes, name = cache.axes, wanted_name(node)
    if 0 not in axes:
        raise Unsupported("a cache of one row")
    # Along dim 0 only: an index of other dims' size 1 in the block.
    place = w.let("place", f"{w.index(cache.shape, axes, 0)} - {w.typed(start)}", torch.int64, cache.shape, axes, 1)
    inside = f"(({place.text} >= 0) & ({place.text} < {w.typed(count)}))"
    if isinstance(rows, Memory):
        texts: list[str | None] = [place.text, *(w.index(cache.shape, axes, dim) for dim in range(1, len(cache.shape)))]
        moved = w.load_at(rows, cache.shape, axes, 1, texts, [*w.masks(cache.shape, axes), inside])
    else:
        block = w.full(rows)
        if block.axes != axes:
            raise Unsupported("rows of this form")
        index = f"({place.text} & {padded(rows.shape[0]) - 1}).to(tl.int32)"
        text = w.moved(block, 0, index, tuple(padded(cache.shape[axis]) for axis in axes))
        moved = w.let("moved", text, block.dtype, cache.shape, axes, 1)
    text = f"tl.where({inside}, {moved.text}, {cache.text})"
    return w.let(name, text, cache.dtype, cache.shape, axes, 1)


ROWS: Mapping[Any, Callable[[Writer, Node], Any]] = {
    aten.copy_.default: copy,
    ops.append_rows_: append_in_place,
    ops.append_rows: append,
}
