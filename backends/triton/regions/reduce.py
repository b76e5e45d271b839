"""Reductions and running sums over dims of a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node

from specc.backends.printing.naming import wanted_name
from specc.backends.triton.kernels import region_math
from specc.backends.triton.regions.pointwise import cast, number_text, working
from specc.backends.triton.regions.values import Block, Unsupported, padded
from specc.backends.triton.regions.writer import Writer
from specc.ir.scope import named_arguments

aten = torch.ops.aten


def rest_dims(w: Writer, node: Node, dims: Any) -> list[int]:
    """Dims of the node's first operand as dims of its rows, the last first. Raises Unsupported for the rows' own."""
    source = node.args[0]
    assert isinstance(source, Node)
    shape = source.meta["val"].shape
    lead = w.kind.lead(shape)
    wanted = range(len(shape)) if dims in (None, []) else dims if isinstance(dims, (list, tuple)) else [dims]
    found = sorted((dim % len(shape) - lead for dim in wanted), reverse=True)
    if found and found[-1] < 0:
        raise Unsupported("it works along the rows")
    return found


def masked(w: Writer, block: Block, dim: int, neutral: str) -> str:
    """The block with `neutral` in the padding along `dim`."""
    size = block.shape[dim]
    if padded(size) == size:
        return block.text
    return f"tl.where({w.index(block.shape, block.axes, dim)} < {size}, {block.text}, {neutral})"


def _reduced(
    w: Writer, node: Node, block: Block, dims: Sequence[int], neutral: str, form: Callable[[str, int], str]
) -> Block:
    """The block reduced over `dims` (given last first); `form(text, axis)` reduces one axis."""
    keep = bool(named_arguments(node).get("keepdim", False))
    block = w.full(block, dims)
    for number, dim in enumerate(dims):
        shape = (*block.shape[:dim], *((1,) if keep else ()), *block.shape[dim + 1 :])
        axes = tuple(axis - (axis > dim and not keep) for axis in block.axes if axis != dim)
        if dim not in block.axes:
            block = block.reshaped(shape, axes)
            continue
        text = form(masked(w, block, dim, neutral), block.axes.index(dim))
        name = wanted_name(node) if number == len(dims) - 1 else "partial"
        block = w.let(name, text, block.dtype, shape, axes, block.lead)
    return block


def total(w: Writer, node: Node) -> Block:
    """`sum`; 16-bit floats in float32, rounded once."""
    dtype = node.meta["val"].dtype
    block = cast(w, w.block(node.args[0]), working(dtype))  # type: ignore[arg-type]
    block = w.narrow(block) if w.small(node) else block
    neutral = number_text(0, working(dtype))
    made = _reduced(
        w, node, block, rest_dims(w, node, _dims(node)), neutral, lambda text, axis: f"tl.sum({text}, {axis})"
    )
    return cast(w, w.widen(made, dtype), dtype)


def mean(w: Writer, node: Node) -> Block:
    """`mean` over dims."""
    dtype = node.meta["val"].dtype
    block = cast(w, w.block(node.args[0]), working(dtype))  # type: ignore[arg-type]
    dims = rest_dims(w, node, _dims(node))
    count = 1
    for dim in dims:
        count *= block.shape[dim]
    made = _reduced(w, node, block, dims, "0.0", lambda text, axis: f"tl.sum({text}, {axis})")
    text = w.rounded(f"tl.div_rn({made.text}, tl.full([], {float(count)}, tl.float32))", dtype)
    return w.let(wanted_name(node), text, dtype, made.shape, made.axes, made.lead)


def _dims(node: Node) -> Any:
    return named_arguments(node).get("dim")


def truth(w: Writer, node: Node) -> Block:
    """`any` and `all` over one dim."""
    is_any = node.target in (aten.any.dim, aten.any.dims)
    block = cast(w, w.block(node.args[0]), torch.bool)  # type: ignore[arg-type]
    function, neutral = ("tl.max", "0") if is_any else ("tl.min", "1")
    block = w.full(block, rest_dims(w, node, _dims(node)))
    whole = Block(f"{w.typed(block)}.to(tl.int32)", torch.int32, block.shape, block.axes, block.lead)
    made = _reduced(
        w, node, whole, rest_dims(w, node, _dims(node)), neutral, lambda text, axis: f"{function}({text}, {axis})"
    )
    return w.let(wanted_name(node), f"{made.text} != 0", torch.bool, made.shape, made.axes, made.lead)


def largest(w: Writer, node: Node) -> Block:
    """`amax`; of floats it is NaN where one is, as torch has it."""
    block = w.block(node.args[0])  # type: ignore[arg-type]
    if block.dtype.is_floating_point and block.dtype != torch.float64:
        name, dims = w.helper(region_math.greatest), rest_dims(w, node, _dims(node))
        return _reduced(w, node, block, dims, 'float("-inf")', lambda text, axis: f"{name}({text}, {axis})")
    _only_integers(block)
    whole, block = block.dtype, w.narrow(block)
    low = number_text(torch.iinfo(block.dtype).min, block.dtype)
    made = _reduced(w, node, block, rest_dims(w, node, _dims(node)), low, lambda text, axis: f"tl.max({text}, {axis})")
    return w.widen(made, whole)


def smallest(w: Writer, node: Node) -> Block:
    """`amin` of integers."""
    block = w.block(node.args[0])  # type: ignore[arg-type]
    _only_integers(block)
    whole, block = block.dtype, w.narrow(block)
    high = number_text(torch.iinfo(block.dtype).max, block.dtype)
    made = _reduced(w, node, block, rest_dims(w, node, _dims(node)), high, lambda text, axis: f"tl.min({text}, {axis})")
    return w.widen(made, whole)


def _only_integers(block: Block) -> None:
    # Triton's maximum passes over NaN where torch's returns it.
    if block.dtype.is_floating_point or block.dtype == torch.bool:
        raise Unsupported("the extreme of floats or booleans")


def argmax(w: Writer, node: Node) -> Block:
    """`argmax` of integers along a dim: the first of equals."""
    block = w.block(node.args[0])  # type: ignore[arg-type]
    _only_integers(block)
    dims = rest_dims(w, node, _dims(node))
    if len(dims) != 1:
        raise Unsupported("argmax over all dims")
    dim = dims[0]
    block = w.narrow(w.full(block, dims))
    keep = bool(named_arguments(node).get("keepdim", False))
    shape = (*block.shape[:dim], *((1,) if keep else ()), *block.shape[dim + 1 :])
    axes = tuple(axis - (axis > dim and not keep) for axis in block.axes if axis != dim)
    if dim not in block.axes:
        return Block("0", torch.int64, shape, (), block.lead, literal=True)
    low = number_text(torch.iinfo(block.dtype).min, block.dtype)
    text = f"tl.argmax({masked(w, block, dim, low)}, {block.axes.index(dim)}, tie_break_left=True).to(tl.int64)"
    return w.let(wanted_name(node), text, torch.int64, shape, axes, block.lead)


def running(w: Writer, node: Node) -> Block:
    """`cumsum` and `cumprod` along a dim."""
    dtype = node.meta["val"].dtype
    dim = rest_dims(w, node, named_arguments(node)["dim"])[0]
    block = w.full(cast(w, w.block(node.args[0]), working(dtype)), [dim])  # type: ignore[arg-type]
    if dim not in block.axes:
        return cast(w, block, dtype)
    function = "tl.cumsum" if node.target is aten.cumsum.default else "tl.cumprod"
    narrowed = w.narrow(block) if w.small(node) else block
    text = w.rounded(f"{function}({narrowed.text}, {block.axes.index(dim)})", dtype)
    text += ".to(tl.int64)" if narrowed is not block else ""
    return w.let(wanted_name(node), text, dtype, block.shape, block.axes, block.lead)


REDUCE: Mapping[Any, Callable[[Writer, Node], Any]] = {
    aten.sum.dim_IntList: total,
    aten.mean.dim: mean,
    aten.any.dim: truth,
    aten.all.dim: truth,
    aten.amax.default: largest,
    aten.amin.default: smallest,
    aten.argmax.default: argmax,
    aten.cumsum.default: running,
    aten.cumprod.default: running,
}
