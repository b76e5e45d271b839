"""How a window of pending factors is written, and recognised again: rows in order, and the count that is due."""

from __future__ import annotations

import torch
from torch.fx import Node

from specc.ir import ops
from specc.ir.build import GraphBuilder
from specc.ir.scope import Value

aten = torch.ops.aten


def order_of(b: GraphBuilder, count: Node, nothing: Node, rows: int) -> Node:
    """int64 [B,rows]: 0, 1, … in every row; `nothing` [B] is zeros."""
    place = b.call(ops.iota, count, rows, name="pending_place")
    return b.call(aten.add.Tensor, b.call(aten.unsqueeze.default, nothing, 1), place, name="pending_order")


def in_order(path: Value) -> bool:
    """Whether a path is `order_of` all its rows."""
    path = path.resolved()
    if not path.calls(aten.add.Tensor) or not all(isinstance(argument, Node) for argument in path.node.args):
        return False
    column, place = (path.at(argument) for argument in path.node.args)
    if not column.calls(aten.unsqueeze.default) or not place.calls(ops.iota):
        return False
    return (
        column.at(column.node.args[0]).calls(aten.zeros_like.default)
        and place.node.args[1] == path.node.meta["val"].shape[1]
    )


def due_of(b: GraphBuilder, count: Node, nothing: Node, window: int) -> tuple[Node, Node]:
    """(what is due, what stays pending) [B] of `count`: all of it from `window` factors on."""
    full = b.call(aten.ge.Scalar, count, window, name="window_full")
    due = b.call(aten.where.self, full, count, nothing, name="due")
    return due, b.call(aten.where.self, full, nothing, count, name="still_pending")


def due_window(due: Value, count: Value) -> int | None:
    """The window W where `due` is where(count >= W, count, 0); None where it is something else."""
    due, count = due.resolved(), count.resolved()
    if not due.calls(aten.where.self):
        return None
    if not all(isinstance(argument, Node) for argument in due.node.args):
        return None
    full, chosen, nothing = (due.at(argument) for argument in due.node.args)
    if not full.calls(aten.ge.Scalar) or not nothing.calls(aten.zeros_like.default):
        return None
    if not chosen.same(count) or not full.at(full.node.args[0]).same(count):
        return None
    window = full.node.args[1]
    return window if type(window) is int else None
