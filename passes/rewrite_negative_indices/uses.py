"""Rewriting one index operand: wrap-around where eager torch wraps, clamp and mask where -1 means padding."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from specc.ir.edit import Editor
from specc.ir.ranges import Ranges
from specc.ir.ranges.bounds import integer
from specc.ir.ranges.calls import call_of, value
from specc.ir.ranges.indices import IndexUse, Place, interval_of

aten = torch.ops.aten
ORIGIN = "rewrite-negative-indices"
_ROW_READS = ("gather", "index_select", "embedding")
_ROW_WRITES = ("scatter", "scatter_add", "scatter_reduce", "index_copy", "index_add")


@dataclass(frozen=True, slots=True)
class Policy:
    """`mask_padding`: clamp and mask an index whose -1 means padding where eager torch would raise."""

    mask_padding: bool = True


def rewrite_use(module: GraphModule, use: IndexUse, ranges: Ranges, policy: Policy) -> str | None:
    """Make the operand's address legal; returns what was done, or None where nothing keeps the meaning."""
    interval = interval_of(use, ranges)
    if use.semantics == "raise":
        padded = interval.sentinels == {"pad"} and interval.low >= integer(-1) and interval.high <= use.legal.high
        return _mask(module, use) if padded and policy.mask_padding else None
    constant = isinstance(use.operand, int)
    if use.semantics == "clamp" and not constant:
        return None
    if not interval.low >= -use.rows:
        return _clamped_slice(use) if use.semantics == "clamp" else None
    if not interval.high <= use.legal.high:
        return None
    editor = Editor(module, ORIGIN)
    size = use.rows.constant
    if constant:
        return _constant(editor, use, size)
    with editor.before(use.node):
        count = size if size is not None else _size_node(editor, use)
        wrapped = _wrapped(editor, use.operand, count, scalar=use.is_scalar)
    put(use.node, use.place, wrapped)
    return f"{interval} wraps around in eager torch: made where(i < 0, i + {use.rows}, i)"


def put(node: Node, place: Place, new: Any) -> None:
    """Replace the argument at a place of a node."""
    kind, key, *inner = place
    if kind == "kwargs":
        node.update_kwarg(key, _replaced(node.kwargs[key], inner, new))
    else:
        node.update_arg(key, _replaced(node.args[key], inner, new))
    passes = tuple(node.meta.get("passes", ()))
    node.meta["passes"] = passes if ORIGIN in passes else (*passes, ORIGIN)


def _replaced(held: Any, inner: list[Any], new: Any) -> Any:
    if not inner:
        return new
    first, *rest = inner
    if isinstance(held, slice):
        ends = {name: getattr(held, name) for name in ("start", "stop", "step")}
        ends[first] = _replaced(ends[first], rest, new)
        return slice(ends["start"], ends["stop"], ends["step"])
    return type(held)([_replaced(item, rest, new) if at == first else item for at, item in enumerate(held)])


def _clamped_slice(use: IndexUse) -> str:
    """A constant end of a slice before the first row means the first row."""
    put(use.node, use.place, 0)
    return f"{use.operand} is before the first row, where Python slices start: made 0"


def _constant(editor: Editor, use: IndexUse, size: int | None) -> str:
    if size is not None:
        put(use.node, use.place, use.operand + size)
        return f"{use.operand} counts from the end: made {use.operand + size}"
    with editor.before(use.node):
        made = editor.call(operator.add, _size_node(editor, use), use.operand)
    put(use.node, use.place, made)
    return f"{use.operand} counts from the end: made size + {use.operand}"


def _size_node(editor: Editor, use: IndexUse) -> Node:
    """The size of the table at run time."""
    if use.dim is None:
        return editor.call(aten.sym_numel.default, use.table)
    return editor.call(aten.sym_size.int, use.table, use.dim, name=f"{use.table.name}_rows")


def _wrapped(editor: Editor, index: Node, count: int | Node, *, scalar: bool) -> Node:
    """where(i < 0, i + n, i); for a symbolic int, Python's i % n, which is the same on [-n, n)."""
    if scalar:
        return editor.call(operator.mod, index, count)
    negative = editor.call(aten.lt.Scalar, index, 0, name=f"{index.name}_negative")
    from_end = editor.call(aten.add.Tensor, index, count)
    return editor.call(aten.where.self, negative, from_end, index, name=f"{index.name}_wrapped")


def _mask(module: GraphModule, use: IndexUse) -> str | None:
    """-1 means padding: read row 0 and zero the result, or write to a row behind the last that is dropped."""
    call = call_of(use.node)
    if (call is not None and call.in_place) or use.is_scalar or use.dim is None:
        return None
    if use.op in _ROW_READS:
        _mask_read(Editor(module, ORIGIN), use)
        return "-1 means padding: row 0 is read instead, and the result is zeroed where the index is -1"
    if use.op in _ROW_WRITES:
        _mask_write(Editor(module, ORIGIN), use)
        return "-1 means padding: those rows are written behind the last row and dropped"
    return None


def _mask_read(editor: Editor, use: IndexUse) -> None:
    index, node = use.operand, use.node
    with editor.before(node):
        valid = editor.call(aten.ge.Scalar, index, 0, name=f"{index.name}_valid")
        safe = editor.call(aten.clamp_min.default, index, 0, name=f"{index.name}_safe")
    put(node, use.place, safe)
    result, dims = value(node), value(index).dim()
    with editor.after(node):
        if use.op == "embedding":
            mask = editor.call(aten.unsqueeze.default, valid, -1)
        elif use.op == "index_select" and dims:
            shape = [-1 if dim == use.dim else 1 for dim in range(result.dim())]
            mask = editor.call(aten.view.default, valid, shape)
        else:
            mask = valid
    with editor.after(mask if mask is not valid else node, node):
        zero = editor.call(aten.zeros_like.default, node)
    with editor.after(zero, node):
        masked = editor.call(aten.where.self, mask, node, zero, name=f"{node.name}_masked")
    _redirect(node, masked, lambda user: user not in (zero, masked))


def _redirect(node: Node, new: Node, wanted: Callable[[Node], bool]) -> None:
    node.replace_all_uses_with(new, delete_user_cb=wanted)


def _mask_write(editor: Editor, use: IndexUse) -> None:
    """scatter(x, d, i, s)  ->  narrow(scatter(cat(x, one row), d, where(i < 0, n, i), s), d, 0, n)."""
    index, node, table = use.operand, use.node, use.table
    count = use.size.constant
    with editor.before(node):
        rows: int | Node = count if count is not None else _size_node(editor, use)
        spare = editor.call(aten.zeros_like.default, editor.call(aten.narrow.default, table, use.dim, 0, 1))
        longer = editor.call(aten.cat.default, [table, spare], use.dim, name=f"{table.name}_with_spare_row")
        behind = editor.call(aten.add.Tensor, editor.call(aten.zeros_like.default, index), rows)
        negative = editor.call(aten.lt.Scalar, index, 0, name=f"{index.name}_padding")
        safe = editor.call(aten.where.self, negative, behind, index, name=f"{index.name}_safe")
    put(node, use.place, safe)
    put(node, ("args", 0) if node.args else ("kwargs", "input"), longer)
    with editor.after(node):
        kept = editor.call(aten.narrow.default, node, use.dim, 0, rows, name=f"{node.name}_kept")
    node.meta["val"] = value(longer)
    _redirect(node, kept, lambda user: user is not kept)
