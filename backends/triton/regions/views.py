"""Nodes that only read a value with other dims: address arithmetic for memory, reshapes and moves for blocks."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from specc.backends.triton.regions.values import (
    Block,
    Factors,
    Memory,
    Overlay,
    Parts,
    Shape,
    Unsupported,
    Value,
    numel,
    padded,
)
from specc.backends.triton.regions.writer import Writer
from specc.ir.scope import named_arguments

aten = torch.ops.aten


def _rest_dim(w: Writer, node: Node, dim: int, extra: int = 0) -> int:
    """A dim of the node's first operand as a dim of its rows. Raises Unsupported for one that numbers programs."""
    source = node.args[0]
    assert isinstance(source, Node)
    shape = source.meta["val"].shape
    at = dim % (len(shape) + extra) - w.kind.lead(shape)
    if at < 0:
        raise Unsupported("it works along the rows")
    return at


def _lead(w: Writer, node: Node) -> int:
    return w.kind.lead(node.meta["val"].shape)


def _rows(w: Writer, node: Node) -> Shape:
    """The shape of the node's rows."""
    shape = node.meta["val"].shape
    return tuple(int(size) for size in shape[w.kind.lead(shape) :])


def _source(w: Writer, node: Node) -> Value:
    value = w.value(node.args[0])  # type: ignore[arg-type]
    return w.block(value) if isinstance(value, (Parts, Overlay)) else value


def relabelled(w: Writer, node: Node) -> Value:
    """`squeeze`, `unsqueeze`, `expand`: sizes of 1 come and go, sizes of 1 are repeated."""
    value, shape, lead = _source(w, node), _rows(w, node), _lead(w, node)
    places = _matched(value.shape, shape, node, w)
    if isinstance(value, Memory):
        dims: list[Factors] = [((size, 0),) for size in shape]
        for old, new in places.items():
            if value.shape[old] > 1:
                dims[new] = value.dims[old]
        return replace(value, shape=shape, dims=tuple(dims), lead=lead)
    assert isinstance(value, Block)
    return value.reshaped(shape, tuple(places[axis] for axis in value.axes), lead)


def _matched(old: Shape, new: Shape, node: Node, w: Writer) -> dict[int, int]:
    """Old dim -> new dim."""
    if node.target in (aten.expand.default, aten.expand_as.default):
        return {dim: dim + len(new) - len(old) for dim in range(len(old))}
    source = node.args[0]
    assert isinstance(source, Node)
    lead = w.kind.lead(source.meta["val"].shape)
    ndim = len(source.meta["val"].shape)
    dim: Any = node.args[1]
    if node.target is aten.unsqueeze.default:
        at = dim % (ndim + 1) - lead
        if at < 0 or (at == 0 and _lead(w, node) == lead and lead and len(new) == len(old)):
            raise Unsupported("a dim among the rows")
        if _lead(w, node) != lead:
            return {item: item for item in range(len(old))}
        return {item: item + (item >= at) for item in range(len(old))}
    at = dim % ndim - lead
    if len(new) == len(old):
        return {item: item for item in range(len(old))}
    return {item: item - (item > at) for item in range(len(old)) if item != at}


def narrow(w: Writer, node: Node) -> Value:
    """`x.narrow(dim, start, length)` and slices with step 1."""
    given = named_arguments(node)
    dim = _rest_dim(w, node, given.get("dim", 0))
    value = w.value(given["self"])
    if node.target is aten.narrow.default:
        start, size = given["start"], given["length"]
    else:
        if given.get("step", 1) != 1:
            raise Unsupported("a slice with steps")
        total = value.shape[dim]
        start, end = given.get("start") or 0, given.get("end")
        if not isinstance(start, int) or not (end is None or isinstance(end, int)):
            raise Unsupported("a slice that depends on an index")
        start = max(start + total, 0) if start < 0 else min(start, total)
        end = total if end is None else max(end + total, 0) if end < 0 else min(end, total)
        size = end - start
    if not isinstance(start, int) or size < 1:
        raise Unsupported("a part whose place is not known")
    start = start + value.shape[dim] if start < 0 else start
    return w.window(value, dim, start, size)


def select(w: Writer, node: Node) -> Value:
    """`x[:, i]`."""
    source, dim, index = node.args
    assert isinstance(source, Node)
    assert isinstance(dim, int)
    at = _rest_dim(w, node, dim)
    value = w.value(source)
    if isinstance(index, Node):
        return at_index(w, value, at, w.block(index).text, keep=False)
    assert isinstance(index, int)
    part = w.window(value, at, index % value.shape[at], 1)
    return without(w, part, at)


def without(w: Writer, value: Value, dim: int) -> Value:
    """A value without a dim of size 1."""
    shape = (*value.shape[:dim], *value.shape[dim + 1 :])
    if isinstance(value, (Parts, Overlay)):
        value = w.block(value)
    if isinstance(value, Memory):
        return replace(value, shape=shape, dims=(*value.dims[:dim], *value.dims[dim + 1 :]))
    return value.reshaped(shape, tuple(axis - (axis > dim) for axis in value.axes))


def at_index(w: Writer, value: Value, dim: int, index: str, *, keep: bool) -> Value:
    """The element at a scalar index that the kernel computes, along `dim`."""
    if isinstance(value, Memory) and len(value.dims[dim]) == 1:
        stride = value.dims[dim][0][1]
        offset = value.offset if stride == 0 else (*value.offset, index if stride == 1 else f"{index} * {stride}")
        shape = (*value.shape[:dim], 1, *value.shape[dim + 1 :])
        dims = (*value.dims[:dim], ((1, 0),), *value.dims[dim + 1 :])
        part = replace(value, shape=shape, dims=dims, offset=offset)
        return part if keep else without(w, part, dim)
    return w.pick(w.block(value), dim, index, keep=keep)


def _merged(factors: Factors) -> Factors:
    """Factors with neighbours joined where they are one stride apart."""
    made: list[tuple[int, int]] = []
    for size, stride in factors:
        if size == 1:
            continue
        if made and made[-1][1] == size * stride:
            made[-1] = (made[-1][0] * size, stride)
        else:
            made.append((size, stride))
    return tuple(made) or ((1, 0),)


def flatten(w: Writer, node: Node) -> Value:
    """`x.flatten(start, end)`."""
    given = named_arguments(node)
    first = _rest_dim(w, node, given.get("start_dim", 0))
    last = _rest_dim(w, node, given.get("end_dim", -1))
    value = _source(w, node)
    if first == last:
        return value
    if isinstance(value, Memory):
        factors = _merged(tuple(factor for dims in value.dims[first : last + 1] for factor in dims))
        shape = (*value.shape[:first], numel(value.shape[first : last + 1]), *value.shape[last + 1 :])
        return replace(value, shape=shape, dims=(*value.dims[:first], factors, *value.dims[last + 1 :]))
    assert isinstance(value, Block)
    return flatten_block(w, value, first, last)


def flatten_block(w: Writer, value: Block, first: int, last: int) -> Block:
    """Dims [first, last] of a block as one."""
    inner = value.shape[first : last + 1]
    shape = (*value.shape[:first], numel(inner), *value.shape[last + 1 :])
    if any(first <= axis <= last for axis in value.axes):
        value = w.full(value, range(first, last + 1))
    own = [axis for axis in value.axes if first <= axis <= last]
    before = tuple(axis for axis in value.axes if axis < first)
    after = tuple(axis - (last - first) for axis in value.axes if axis > last)
    if not own:
        return value.reshaped(shape, (*before, *after))
    axes = (*before, first, *after)
    if len(own) == 1:
        return value.reshaped(shape, axes)
    sizes = [value.shape[axis] for axis in own]
    lanes = numel(tuple(padded(size) for size in sizes))
    outer = [padded(value.shape[axis]) for axis in value.axes if axis < first]
    behind = [padded(value.shape[axis]) for axis in value.axes if axis > last]
    made = w.let("line", f"tl.reshape({value.text}, {[*outer, lanes, *behind]})", value.dtype, shape, axes, value.lead)
    if all(size == padded(size) for size in sizes[1:]):
        return made
    # Element e of the line is at the lane of its indices in the padded block.
    total = padded(shape[first])
    e, terms, inner_size, inner_lanes = w.arange(total), list[str](), 1, 1
    for size in reversed(sizes):
        part = e if inner_size == 1 else f"{e} // {inner_size}"
        part = f"{part} % {size}" if size != sizes[0] or len(terms) < len(sizes) - 1 else part
        terms.append(part if inner_lanes == 1 else f"({part}) * {inner_lanes}")
        inner_size, inner_lanes = inner_size * size, inner_lanes * padded(size)
    return _moved(
        w, made, axes.index(first), f"({' + '.join(reversed(terms))}) & {lanes - 1}", [*outer, total, *behind]
    )


def _moved(w: Writer, value: Block, place: int, index: str, block: Sequence[int]) -> Block:
    """Lanes of a block reordered along one axis."""
    wide = w.spread_text(f"({index})", (place,), tuple(range(len(block))))
    return w.let("line", w.moved(value, place, wide, tuple(block)), value.dtype, value.shape, value.axes, value.lead)


def unflatten(w: Writer, node: Node) -> Value:
    """`x.unflatten(dim, sizes)`."""
    dim = _rest_dim(w, node, named_arguments(node)["dim"])
    value, shape, lead = _source(w, node), _rows(w, node), _lead(w, node)
    sizes = shape[dim : dim + 1 + len(shape) - len(value.shape)]
    if isinstance(value, Memory):
        if len(value.dims[dim]) != 1:
            value = w.block(value)
        else:
            stride, dims = value.dims[dim][0][1], list[Factors]()
            for size in reversed(sizes):
                dims.append(((size, stride),))
                stride *= size
            split = (*value.dims[:dim], *reversed(dims), *value.dims[dim + 1 :])
            return replace(value, shape=shape, dims=split, lead=lead)
    assert isinstance(value, Block)
    return unflatten_block(w, value, dim, sizes)


def unflatten_block(w: Writer, value: Block, dim: int, sizes: Shape) -> Block:
    """One dim of a block as several."""
    shape = (*value.shape[:dim], *sizes, *value.shape[dim + 1 :])
    more = len(sizes) - 1
    before = tuple(axis for axis in value.axes if axis < dim)
    after = tuple(axis + more for axis in value.axes if axis > dim)
    if dim not in value.axes:
        return value.reshaped(shape, (*before, *after))
    own = tuple(dim + place for place, size in enumerate(sizes) if size > 1)
    axes = (*before, *own, *after)
    if len(own) <= 1:
        return value.reshaped(shape, axes)
    wanted = [shape[axis] for axis in own]
    outer = [padded(shape[axis]) for axis in before]
    behind = [padded(shape[axis]) for axis in after]
    if any(size != padded(size) for size in wanted[1:]):
        lanes = [padded(size) for size in wanted]
        e, terms, inner, stride = w.arange(numel(tuple(lanes))), list[str](), 1, 1
        for size, lane in zip(reversed(wanted), reversed(lanes), strict=True):
            part = f"({e} // {inner} & {lane - 1})" if inner > 1 else f"({e} & {lane - 1})"
            terms.append(part if stride == 1 else f"{part} * {stride}")
            inner, stride = inner * lane, stride * size
        index = f"({' + '.join(reversed(terms))}) & {padded(value.shape[dim]) - 1}"
        value = _moved(w, value, len(before), index, [*outer, numel(tuple(lanes)), *behind])
    block = [*outer, *(padded(size) for size in wanted), *behind]
    return w.let("split", f"tl.reshape({value.text}, {block})", value.dtype, shape, axes, value.lead)


def permute(w: Writer, node: Node) -> Value:
    """`permute` and `transpose`."""
    given = named_arguments(node)
    source = given["self"]
    ndim, lead = len(source.meta["val"].shape), w.kind.lead(source.meta["val"].shape)
    order = list(range(ndim))
    if "dims" in given:
        order = [dim % ndim for dim in given["dims"]]
    else:
        first, second = given["dim0"] % ndim, given["dim1"] % ndim
        order[first], order[second] = second, first
    if order[:lead] != list(range(lead)):
        raise Unsupported("it moves the rows")
    rest = [dim - lead for dim in order[lead:]]
    value = _source(w, node)
    shape = tuple(value.shape[dim] for dim in rest)
    if isinstance(value, Memory):
        return replace(value, shape=shape, dims=tuple(value.dims[dim] for dim in rest))
    assert isinstance(value, Block)
    axes = tuple(place for place, dim in enumerate(rest) if dim in value.axes)
    moved = [value.axes.index(rest[axis]) for axis in axes]
    if moved == sorted(moved):
        return value.reshaped(shape, axes)
    return w.let("turned", f"tl.permute({value.text}, {moved})", value.dtype, shape, axes, value.lead)


def split(w: Writer, node: Node) -> tuple[Value, ...]:
    """`split_with_sizes`."""
    given = named_arguments(node)
    dim = _rest_dim(w, node, given.get("dim", 0))
    value, first, parts = w.value(given["self"]), 0, list[Value]()
    if isinstance(value, Block):
        raise Unsupported("a split of what is computed")
    for size in given["split_sizes"]:
        parts.append(w.window(value, dim, first, size))
        first += size
    return tuple(parts)


def item(w: Writer, node: Node) -> Value:
    """`results[i]`."""
    source, place = node.args
    assert isinstance(source, Node)
    assert isinstance(place, int)
    if source.target is aten.split_with_sizes.default:
        given = named_arguments(source)
        dim = _rest_dim(w, source, given.get("dim", 0))
        return w.window(w.value(given["self"]), dim, sum(given["split_sizes"][:place]), given["split_sizes"][place])
    values: Any = w.value(source)
    if not isinstance(values, tuple):
        raise Unsupported("one of several results of a node outside")
    return values[place]


def whole_number(w: Writer, node: Node) -> Block:
    """Sums and products of the loop index, a Python int."""
    symbols: Mapping[Any, str] = {operator.add: "+", operator.sub: "-", operator.mul: "*", operator.floordiv: "//"}
    if node.target not in symbols or len(node.args) != 2:
        raise Unsupported("an operation on the loop index")
    texts = [w.block(value).text if isinstance(value, Node) else str(value) for value in node.args]
    return Block(f"({texts[0]} {symbols[node.target]} {texts[1]})", torch.int64, (), (), 0, literal=True)


VIEWS: Mapping[Any, Callable[[Writer, Node], Any]] = {
    aten.squeeze.dim: relabelled,
    aten.unsqueeze.default: relabelled,
    aten.expand.default: relabelled,
    aten.narrow.default: narrow,
    aten.slice.Tensor: narrow,
    aten.select.int: select,
    aten.flatten.using_ints: flatten,
    aten.unflatten.int: unflatten,
    aten.transpose.int: permute,
    aten.permute.default: permute,
    operator.getitem: item,
    operator.add: whole_number,
    operator.sub: whole_number,
    operator.mul: whole_number,
    operator.floordiv: whole_number,
}
