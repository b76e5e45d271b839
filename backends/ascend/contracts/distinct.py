"""Index tensors that hold no row twice, proved on the data flow."""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from specc.backends.ascend.contracts.context import Context, input_names, static, words
from specc.backends.ascend.contracts.positions import counts_keys
from specc.ir.ranges.bounds import integer
from specc.ir.ranges.calls import call_of, shape_of, value

_SAME = words(
    "view reshape flatten unsqueeze squeeze to long int contiguous clone detach alias lift_fresh_copy permute "
    "transpose slice narrow select flip type"
)
_COUNTING = frozenset({"arange", "specc::iota", "specc::batch_index", "specc::npu_chain_slots"})
_ORDERS = frozenset({"topk", "sort", "argsort", "randperm", "specc::stable_topk"})


def distinct_rows(index: Any, ctx: Context, depth: int = 16) -> bool:
    """True where no two entries of `index` (for places [.., K]: no two rows) are equal, for all inputs.

    Proved: a single entry; an arange, or rows of rings (`npu_chain_slots`), with something added that is the same for
    all entries or multiplied by a number; the order that topk or sort gives in one row; a stack of places of which one
    part is distinct; and what the caller declares.
    """
    if not isinstance(index, Node) or depth == 0:
        return type(index) is int
    if any(name in ctx.facts.unique for name in input_names(index)):
        return True
    outer = ctx.outer(index)
    if outer is not index:
        return distinct_rows(outer, ctx, depth - 1)
    if _entries(index) == 1:
        return True
    call = call_of(index)
    if call is None:
        return False
    if call.name in _COUNTING:
        return True
    if call.name in _SAME:
        return distinct_rows(call.first, ctx, depth - 1)
    if call.name in ("add", "sub"):
        left, right = call.first, call.arg(1, "other")
        return any(_is_one(b) and distinct_rows(a, ctx, depth - 1) for a, b in ((left, right), (right, left)))
    if call.name == "mul":
        left, right = call.first, call.arg(1, "other")
        return any(_nonzero(b, ctx) and distinct_rows(a, ctx, depth - 1) for a, b in ((left, right), (right, left)))
    if call.name in ("stack", "cat"):
        return any(distinct_rows(part, ctx, depth - 1) for part in _columns(index))
    if call.name == "getitem" and isinstance(index.args[0], Node):
        source = call_of(index.args[0])
        return source is not None and source.name in _ORDERS and index.args[1:] == (1,) and _one_row(index)
    return call.name in _ORDERS and _one_row(index)


def distinct_along(index: Any, dim: int, ctx: Context) -> bool:
    """True where no two entries of `index` along `dim` are equal, whatever the other dims are: for torch.scatter."""
    shape = shape_of(index)
    if not isinstance(index, Node) or shape is None:
        return False
    dim = dim + len(shape) if dim < 0 else dim
    if not shape or static(shape[dim]) == 1 or distinct_rows(index, ctx):
        return True
    if dim == len(shape) - 1 and counts_keys(index, ctx):
        return True
    call = call_of(index)
    if call is not None and call.name == "getitem" and isinstance(index.args[0], Node) and index.args[1:] == (1,):
        call = call_of(index.args[0])
    if call is None or call.name not in _ORDERS:
        return False
    ordered = call.arg(2 if call.name == "topk" else 1, "dim", default=-1)
    return isinstance(ordered, int) and dim in (ordered, ordered + len(shape))


def _entries(node: Node) -> int | None:
    total = 1
    for size in shape_of(node) or (None,):
        number = None if size is None else static(size)
        if number is None:
            return None
        total *= number
    return total


def _is_one(item: Any) -> bool:
    """One value for all entries: adding it keeps them apart."""
    return not isinstance(item, Node) or not hasattr(value(item), "shape") or _entries(item) == 1


def _nonzero(item: Any, ctx: Context) -> bool:
    held = ctx.ranges.of(item)
    return _is_one(item) and (held.low >= integer(1) or held.high <= integer(-1))


def _columns(node: Node) -> list[Any]:
    """The parts of a place that are joined along the last dim."""
    call, shape = call_of(node), shape_of(node) or ()
    if call is None or call.arg(1, "dim", default=0) not in (-1, len(shape) - 1) or len(shape) < 2:
        return []
    return list(call.arg(0, "tensors"))


def _one_row(node: Node) -> bool:
    """The indices of a single row: those of several rows repeat each other."""
    shape = shape_of(node) or ()
    return bool(shape) and all(static(size) == 1 for size in shape[:-1])
