"""Nodes that make values from nothing: numbers, counts, tables of integers that the spec fixes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node

from specc.backends.printing.naming import wanted_name
from specc.backends.triton.regions.pointwise import number_text
from specc.backends.triton.regions.values import Block, Shape, Unsupported, padded
from specc.backends.triton.regions.writer import Writer
from specc.ir import ops
from specc.ir.scope import named_arguments

aten = torch.ops.aten
_WORD = 63
_WORDS = 4


def _shape(w: Writer, node: Node) -> tuple[Shape, int]:
    fake = node.meta["val"]
    lead = w.kind.lead(fake.shape)
    return tuple(int(size) for size in fake.shape[lead:]), lead


def constant(w: Writer, node: Node, value: Any) -> Block:
    """One number everywhere."""
    shape, lead = _shape(w, node)
    dtype = node.meta["val"].dtype
    text = w.block(value).text if isinstance(value, Node) else number_text(value, dtype)
    return Block(text, dtype, shape, (), lead, literal=True)


def zeros_like(w: Writer, node: Node) -> Block:
    """`torch.zeros_like`."""
    return constant(w, node, 0)


def ones_like(w: Writer, node: Node) -> Block:
    """`torch.ones_like`."""
    return constant(w, node, 1)


def full_like(w: Writer, node: Node) -> Block:
    """`torch.full_like`."""
    return constant(w, node, node.args[1])


def full_rows(w: Writer, node: Node) -> Block:
    """specc.full_rows."""
    return constant(w, node, named_arguments(node)["value"])


def iota(w: Writer, node: Node) -> Block:
    """specc.iota."""
    size = int(node.meta["val"].shape[0])
    if size == 1:
        return Block("0", torch.int64, (1,), (), 0, literal=True)
    return w.let(wanted_name(node), f"{w.arange(padded(size))}.to(tl.int64)", torch.int64, (size,), (0,), 0)


def int_table(w: Writer, node: Node) -> Block:
    """specc.int_table."""
    given = named_arguments(node)
    values, shape = given["values"], tuple(given["shape"])
    axes = tuple(axis for axis, size in enumerate(shape) if size > 1)
    if len(set(values)) == 1:
        return Block(str(values[0]), torch.int64, shape, (), 0, literal=True)
    terms, stride = list[str](), 1
    for axis in reversed(range(len(shape))):
        if axis in axes:
            terms.append(f"{w.index(shape, axes, axis)}" + (f" * {stride}" if stride > 1 else ""))
        stride *= shape[axis]
    place = " + ".join(reversed(terms))
    return w.let(wanted_name(node), table_text(values, place), torch.int64, shape, axes, 0)


def table_text(values: Sequence[int], place: str) -> str:
    """`values[place]` without a table in memory: a line, or bits of numbers. Raises Unsupported for too many."""
    first, step = values[0], values[1] - values[0]
    if all(value == first + step * number for number, value in enumerate(values)):
        scaled = f"({place}).to(tl.int64)" + (f" * {step}" if step != 1 else "")
        return scaled if first == 0 else f"{scaled} + {first}"
    low = min(values)
    bits = max(max(values) - low, 1).bit_length()
    each = _WORD // bits
    words = [
        sum((value - low) << (bits * number) for number, value in enumerate(values[start : start + each]))
        for start in range(0, len(values), each)
    ]
    if len(words) > _WORDS:
        raise Unsupported("a table of too many numbers")
    at = f"({place})"
    text = f"tl.full([], {words[-1]}, tl.int64)"
    for number in reversed(range(len(words) - 1)):
        text = f"tl.where({at} < {each * (number + 1)}, tl.full([], {words[number]}, tl.int64), {text})"
    inside = at if len(words) == 1 else f"({at} % {each})"
    shift = f"({inside} * {bits} & 63).to(tl.int64)"
    found = f"(({text}) >> {shift} & {2**bits - 1})"
    return found if low == 0 else f"{found} + {low}"


def static_values(node: Any) -> list[int] | None:
    """The numbers of a 1-D `int_table` (or `iota`), where a node is one."""
    if not isinstance(node, Node):
        return None
    if node.target is ops.int_table and len(named_arguments(node)["shape"]) == 1:
        return list(named_arguments(node)["values"])
    if node.target is ops.iota:
        return list(range(int(node.meta["val"].shape[0])))
    return None


def batch_number(w: Writer, node: Node) -> Block:
    """specc.batch_index: which batch row the program works on; it only stands in `x[batch, index]`."""
    raise Unsupported("a row number by itself")


CREATE: Mapping[Any, Callable[[Writer, Node], Any]] = {
    aten.zeros_like.default: zeros_like,
    aten.ones_like.default: ones_like,
    aten.full_like.default: full_like,
    ops.full_rows: full_rows,
    ops.iota: iota,
    ops.int_table: int_table,
    ops.batch_index: batch_number,
}
