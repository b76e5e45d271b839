"""Recurrent states in token loops: where an op's state comes from, and where the state after the token goes.

    tree    S = table[batch, row of the parent];  S' = op(S, …);  table[:, row of the token] = S'
    chain   S is carried;                         S' = op(S, …);  S' is what the loop carries on

Found by data flow from what ops declare (`specc.ir.recurrence`), never by names. In a tree the table starts as
`root_table`: the committed state in a row that no node writes, reached as the parent -1.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.fx import Node

from specc.ir import ops
from specc.ir.recurrence import Recurrence, recurrence_of
from specc.ir.scope import Miss, Scope, Value, named_arguments
from specc.passes.parents import Parent, parent_of
from specc.passes.tables import (
    Table,
    Write,
    carried_on,
    check_layout,
    enclosing_token_loop,
    read_rows,
    table_of,
    write_of,
)

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class TreeState:
    """A recurrent op whose state is its parent's row of `write.table`; its own state goes to its own row."""

    call: Value
    declared: Recurrence
    write: Write
    parent: Parent


def recurrences(token: Scope) -> Iterator[Value]:
    """Calls of recurrent ops in a token loop, those of token loops further inside left out."""
    for scope in token.walk():
        if enclosing_token_loop(scope) is token:
            for node in scope.module.graph.nodes:
                if recurrence_of(node.target) is not None:
                    yield Value(scope, node)


def state_operand(call: Value) -> Value:
    """The state that the op starts from."""
    declared = recurrence_of(call.node.target)
    assert declared is not None
    return call.at(named_arguments(call.node)[declared.state])


def own_states(call: Value) -> list[Node]:
    """The `getitem` nodes that are the state after the token."""
    declared = recurrence_of(call.node.target)
    assert declared is not None
    return [user for user in call.node.users if user.target is operator.getitem and user.args[1] == declared.result]


def reads_a_table(call: Value) -> bool:
    """True where the state is one row of something, looked up by number."""
    state = state_operand(call)
    if state.calls(aten.squeeze.dim):
        state = state.at(state.node.args[0])
    return state.calls(aten.index.Tensor)


def state_table(call: Value, token: Scope) -> Table | None:
    """The carried value that holds the op's state: itself, or as a row of it; None for anything else."""
    state = state_operand(call)
    if reads_a_table(call):
        read = state.at(state.node.args[0]) if state.calls(aten.squeeze.dim) else state
        state = read.at(read.node.args[0])
    return table_of(state, token)


def chain_place(call: Value, token: Scope) -> Table:
    """The carried value that is the op's state, and becomes the state after the token. Raises Miss."""
    name, state = call.node.name, state_operand(call)
    place = table_of(state, token)
    if place is None:
        raise Miss(f"the state of `{name}`, `{state.node.name}`, is not what an earlier token left")
    if not any(carried_on(Value(call.scope, item), place) for item in own_states(call)):
        raise Miss(f"`{name}` starts from `{state.node.name}`, but its own state is not what goes on to the next token")
    return place


def tree_state(call: Value, token: Scope, trip: int) -> TreeState:
    """Proves that an op reads its parent's state and writes its own into the same table. Raises Miss."""
    name, state = call.node.name, state_operand(call)
    declared = recurrence_of(call.node.target)
    assert declared is not None
    if not reads_a_table(call):
        if table_of(state, token) is not None:
            raise Miss(
                f"`{state.node.name}`, the state of `{name}`, goes on from each node to the next, not to its children"
            )
        raise Miss(f"the state of `{name}`, `{state.node.name}`, is not a row of a table of all nodes")
    if not state.calls(aten.squeeze.dim) or state.node.args[1] != 1:
        raise Miss(f"`{state.node.name}` is not one node's state")
    read = state.at(state.node.args[0])
    table, number = read_rows(read)
    held = table_of(table, token)
    if held is None:
        raise Miss(f"`{name}` reads its state from `{table.node.name}`, which the token loop does not carry")
    write = _own_write(call, table, token)
    check_layout(read.node.name, write, number, trip)
    _check_root(write, number.shift)
    try:
        return TreeState(call, declared, write, parent_of(number, token))
    except Miss as miss:
        raise Miss(f"`{name}` does not start from its parent's state: {miss}") from None


def _own_write(call: Value, table: Value, token: Scope) -> Write:
    """The write of the op's own state into the table that it was read from. Raises Miss."""
    for item in own_states(call):
        for user in item.users:
            if user.target is aten.select_scatter.default and user.args[0] is table.node and user.args[1] is item:
                return write_of(Value(call.scope, user), token)
    raise Miss(f"the state of `{call.node.name}` is not written into `{table.node.name}`, where it was read")


def _check_root(write: Write, shift: int) -> None:
    """Proves that row shift - 1, which a parent of -1 reads, is the committed state. Raises Miss."""
    init = write.table.init
    if not init.calls(ops.root_table):
        raise Miss(f"`{init.node.name}` is not a table that starts with the committed state (root_table)")
    root, read = int(init.node.args[2]) % write.table.rows, (shift - 1) % write.table.rows  # type: ignore[arg-type]
    if root != read:
        raise Miss(f"`{init.node.name}` has the committed state in row {root}, but a parent of -1 reads row {read}")
