"""Tables that a token loop carries: one row per node, written by the node's own iteration, read by later ones.

What is recognised here by data flow (never by names): the write `table[:, index + shift] = row`, its way back to the
loop's carried result (directly, or as a stacked result of a layer loop), and the row numbers that reads use.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass

import torch
from torch.fx import Node

from specc.ir import ops
from specc.ir.edit import is_loop
from specc.ir.scope import Miss, Scope, Value

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Table:
    """Carried value number `place` of the token loop `token`; `sliced`: one layer's part of it."""

    token: Scope
    place: int
    sliced: bool

    @property
    def init(self) -> Value:
        """What the loop starts with, in the scope around it."""
        assert self.token.loop is not None
        assert self.token.parent is not None
        return Value(self.token.parent, self.token.loop.carried[self.place]).resolved()

    @property
    def dim(self) -> int:
        """The row dim of the whole table: 1, or 2 where dim 0 is layers."""
        return 2 if self.sliced else 1

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.init.node.meta["val"].shape[self.dim])


@dataclass(frozen=True, slots=True)
class Write:
    """`table` with row index + shift replaced by `row`: [B,1,…] without its token dim, or [B,…] as it is."""

    table: Table
    row: Value
    shift: int


@dataclass(frozen=True, slots=True)
class RowNumber:
    """An index operand as node number `base` + shift; `wrap`: the size added to a negative one (0: none)."""

    base: Value
    shift: int
    wrap: int


def enclosing_token_loop(scope: Scope) -> Scope | None:
    """The innermost token loop that this scope is in."""
    found: Scope | None = scope
    while found is not None and (found.loop is None or found.loop.axis != "token"):
        found = found.parent
    return found


def token_offset(value: Value, argument: object, token: Scope) -> int | None:
    """c where an int argument is the token loop's index + c, else None."""
    if not isinstance(argument, Node):
        return None
    found = value.at(argument)
    if found.calls(operator.add, operator.sub):
        left, right = found.node.args
        if isinstance(left, int) and found.node.target is operator.add:
            left, right = right, left
        base = token_offset(found, left, token)
        if base is None or not isinstance(right, int):
            return None
        return base + right if found.node.target is operator.add else base - right
    return 0 if token.role(found.node) == ("index", 0) else None


def table_of(value: Value, token: Scope) -> Table | None:
    """The carried table that a value is: a carried placeholder of the token loop, or one layer's slice of it."""
    value = value.resolved()
    role = value.scope.role(value.node)
    if role is None:
        return None
    if value.scope is token:
        return Table(token, role[1], False) if role[0] == "carried" else None
    loop, parent = value.scope.loop, value.scope.parent
    if loop is None or parent is None or loop.axis != "layer" or role[0] != "slice":
        return None
    outer = table_of(Value(parent, loop.sliced[role[1]]), token)
    return None if outer is None or outer.sliced else Table(token, outer.place, True)


def write_of(value: Value, token: Scope) -> Write:
    """The write that produced a table's value. Raises Miss."""
    value = value.resolved()
    name = value.node.name
    if not value.calls(aten.select_scatter.default):
        raise Miss(f"`{name}` is not a table with the token's own row written into it")
    target, source, dim, place = value.node.args
    table = table_of(value.at(target), token)
    if table is None:
        raise Miss(f"`{name}` writes into something that the token loop does not carry")
    shift = token_offset(value, place, token)
    if shift is None or dim != 1:
        raise Miss(f"`{name}` does not write the row of the token's own number")
    row = value.at(source)
    if row.calls(aten.squeeze.dim) and row.node.args[1] == 1:
        row = row.at(row.node.args[0])
    if not carried_on(value, table):
        raise Miss(f"`{name}` is not what the token loop carries on: rows of earlier tokens may be lost")
    return Write(table, row, shift)


def carried_on(value: Value, table: Table) -> bool:
    """True where the value becomes the loop's carried value `table.place`."""
    assert table.token.loop is not None
    result = table.token.loop.carried_out[table.place]
    if not table.sliced:
        return value.scope is table.token and result is value.node
    layers = value.scope.loop
    assert layers is not None
    if not isinstance(result, Node) or result.target is not operator.getitem or result.args[0] is not layers.node:
        return False
    place = result.args[1]
    assert isinstance(place, int)
    stacked = place - len(layers.carried)
    whole = layers.trip is None or layers.trip == table.init.node.meta["val"].shape[0]
    return whole and stacked >= 0 and layers.stacked_out[stacked] is value.node


def carried_write(token: Scope, place: int) -> Write | None:
    """The write that carried value `place` of a loop comes back as; None where it is not such a table."""
    assert token.loop is not None
    if not isinstance(token.loop.carried_out[place], Node):
        return None
    value = Value(token, token.loop.carried_out[place]).resolved()
    try:
        write = write_of(stacked_source(value) or value, token)
    except Miss:
        return None
    return write if write.table.place == place else None


def stacked_source(value: Value) -> Value | None:
    """What a loop's body stacks, where the value is that stacked result; None for anything else."""
    source = value.node.args[0] if value.node.target is operator.getitem else None
    if not isinstance(source, Node) or not is_loop(source):
        return None
    inner = next(scope for scope in value.scope.inner() if scope.loop is not None and scope.loop.node is source)
    assert inner.loop is not None
    number = value.node.args[1]
    assert isinstance(number, int)
    stacked = number - len(inner.loop.carried)
    if stacked < 0 or not isinstance(inner.loop.stacked_out[stacked], Node):
        return None
    return Value(inner, inner.loop.stacked_out[stacked]).resolved()


def _plus(value: Value) -> tuple[Value, int] | None:
    if value.calls(aten.add.Tensor, aten.add.Scalar) and len(value.node.args) == 2:
        left, right = value.node.args
        if isinstance(right, int) and not value.node.kwargs:
            return value.at(left), right
    return None


def row_number(value: Value) -> RowNumber:
    """Splits an index operand into a node number and the table's shift; sees through Python's wrap-around
    `where(i < 0, i + n, i)`."""
    value = value.resolved()
    if value.calls(aten.where.self):
        test, wrapped, plain = (value.at(argument) for argument in value.node.args)
        added = _plus(wrapped)
        below = test.calls(aten.lt.Scalar) and test.node.args[1] == 0 and test.at(test.node.args[0]).same(plain)
        if below and added is not None and added[0].same(plain):
            inner = row_number(plain)
            return RowNumber(inner.base, inner.shift, added[1])
    added = _plus(value)
    if added is not None:
        return RowNumber(added[0], added[1], 0)
    return RowNumber(value, 0, 0)


def squeezed(value: Value) -> Value:
    """x where the value is `squeeze(x, 1)` of a row [B,1,…] -> […]; looks through a shift around it. Raises Miss."""
    if not value.calls(aten.squeeze.dim) or value.node.args[1] != 1:
        raise Miss(f"`{value.node.name}` is not one token's row without its token dim")
    return value.at(value.node.args[0])


def read_rows(value: Value) -> tuple[Value, RowNumber]:
    """(table, row numbers) of `table[batch, rows]`, the rows of each sequence's own table. Raises Miss."""
    value = value.resolved()
    if not value.calls(aten.index.Tensor):
        raise Miss(f"`{value.node.name}` is not a read of table rows by index")
    table, indices = value.node.args
    assert isinstance(indices, (list, tuple))
    if len(indices) != 2 or not value.at(indices[0]).calls(ops.batch_index):
        raise Miss(f"`{value.node.name}` does not read each sequence's own table as table[batch, rows]")
    return value.at(table), row_number(value.at(indices[1]))


def check_layout(name: str, write: Write, number: RowNumber, trip: int) -> None:
    """Proves that node j is read at the row that iteration j writes, and -1 at a row that no iteration writes.

    Rows [shift, shift + trip) are written. Raises Miss.
    """
    if number.shift != write.shift:
        raise Miss(f"`{name}` reads node j at row j + {number.shift}, but it is written at row j + {write.shift}")
    if number.wrap not in (0, write.table.rows):
        raise Miss(f"`{name}` wraps negative rows by {number.wrap}, the table has {write.table.rows} rows")
    committed = (number.shift - 1) % write.table.rows
    if write.shift <= committed < write.shift + trip:
        raise Miss(f"`{name}` reads the committed context (-1) at row {committed}, which a node overwrites")


def filled_with(value: Value, number: int) -> bool:
    """True for a tensor of one constant: `full_rows`, `full_like`."""
    if value.calls(ops.full_rows):
        return bool(value.node.args[2] == number)
    return value.calls(aten.full_like.default) and bool(value.node.args[1] == number)
