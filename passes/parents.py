"""The parents of a tree's nodes as a token loop sees them: recognised by data flow, from row numbers and from masks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.fx import Node

from specc.ir import ops
from specc.ir.scope import Miss, Scope, Value
from specc.passes.tables import RowNumber, filled_with, row_number

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Parent:
    """The parent of each node as operands of the token loop: `parent` [B,N], `valid` [B,N] or None (all valid)."""

    parent: Node
    valid: Node | None


def slice_operand(value: Value, token: Scope) -> Node:
    """The rows of all tokens [B,N,…] that a value of one token is its slice of. Raises Miss."""
    value = value.resolved()
    role = token.role(value.node)
    if role is None or role[0] != "slice" or token.loop is None:
        raise Miss(f"`{value.node.name}` is not a slice of the token loop")
    operand = token.loop.sliced[role[1]]
    assert isinstance(operand, Node)
    return operand


def parent_of(number: RowNumber, token: Scope) -> Parent:
    """parent, or where(valid, parent, -1), both slices of the token loop. Raises Miss."""
    base = number.base
    if not base.calls(aten.where.self):
        return Parent(slice_operand(base, token), None)
    valid, parent, other = (base.at(argument) for argument in base.node.args)
    if not filled_with(other, -1):
        raise Miss(f"`{base.node.name}` is not where(valid, parent, -1)")
    return Parent(slice_operand(parent, token), slice_operand(valid, token))


def parent_rows(value: Value) -> Parent | None:
    """The parents of all nodes whose rows a value [B,N] is: where(valid, parent, -1) + 1, or parent + 1."""
    number = row_number(value)
    base = number.base.resolved()
    if number.shift != 1 or number.wrap:
        return None
    if not base.calls(aten.where.self):
        return Parent(base.node, None)
    valid, parent, other = (base.at(argument) for argument in base.node.args)
    return Parent(parent.node, valid.node) if filled_with(other, -1) else None


def masked_parent(mask: Value, token: Scope) -> Parent | None:
    """The parents whose closure a token's row of a mask is: slices of ancestor_mask(parent + 1, valid)."""
    try:
        operand = slice_operand(mask, token)
    except Miss:
        return None
    assert token.parent is not None
    return mask_parent(Value(token.parent, operand).resolved())


def mask_parent(mask: Value) -> Parent | None:
    """The parents that an ancestor_mask is made from; None for any other value."""
    if not mask.calls(ops.ancestor_mask):
        return None
    row, valid = (mask.at(argument) for argument in mask.node.args)
    number = row_number(row)
    if number.shift != 1 or number.wrap:
        return None
    everyone = valid.calls(aten.ones_like.default)
    return Parent(number.base.node, None if everyone else valid.node)
