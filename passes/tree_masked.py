"""TREE_MASKED as a check of a program: no node reads a row of a node that is not its ancestor or itself.

Inside token loops every read of a table that the loop's iterations write is one of: attention under the token's slice
of `ancestor_mask`, causal attention up to the token's own number, or a row chosen by the step's `parent` input. A tree
loop (one that slices `parent`) carries nothing else from node to node. Attention outside token loops in `verify` has
its mask from `ancestor_mask`, or is causal.
"""

from __future__ import annotations

import torch
from torch.fx import Node

from specc.ir import ops
from specc.ir.edit import is_loop, loop_parts
from specc.ir.port import Port
from specc.ir.scope import Miss, Scope, Value, named_arguments
from specc.manager import predicate
from specc.passes.tables import (
    carried_write,
    enclosing_token_loop,
    filled_with,
    read_rows,
    stacked_source,
    table_of,
    token_offset,
)
from specc.program import TREE_MASKED, DecodeProgram

aten = torch.ops.aten


def is_ancestor_mask(value: Value) -> bool:
    """True for `ancestor_mask(…)` or a token loop's slice of it."""
    value = value.resolved()
    role = value.scope.role(value.node)
    if role is not None and role[0] == "slice" and value.scope.loop is not None and value.scope.loop.axis == "token":
        assert value.scope.parent is not None
        return is_ancestor_mask(Value(value.scope.parent, value.scope.loop.sliced[role[1]]))
    return value.calls(ops.ancestor_mask)


def _is_parent_input(value: Value, token: Scope) -> bool:
    """The step's `parent` input at this token, or where(valid, parent, -1)."""
    value = value.resolved()
    if value.calls(aten.where.self):
        _, parent, other = (value.at(argument) for argument in value.node.args)
        return filled_with(other, -1) and _is_parent_input(parent, token)
    role = token.role(value.node)
    if role is None or role[0] != "slice" or token.loop is None or token.parent is None:
        return False
    operand = Value(token.parent, token.loop.sliced[role[1]]).resolved()
    return operand.node.meta.get("port") == Port("input", "parent")


def _attention_fault(value: Value, table: Node, token: Scope) -> str | None:
    arguments = named_arguments(value.node)
    if table not in (arguments["k_new"], arguments["v_new"]):
        return f"`{value.node.name}` reads a node table as something other than its new rows"
    if value.node.target is ops.causal_attention:
        offset = token_offset(value, arguments["offset"], token)
        return None if offset is not None and offset <= 0 else f"`{value.node.name}` sees tokens behind its own"
    if is_ancestor_mask(value.at(arguments["mask"])):
        return None
    return f"`{value.node.name}` reads rows of other nodes under a mask that is not the token's ancestor_mask"


def _read_fault(value: Value, token: Scope) -> str | None:
    """None where this use of a table by index follows the parent."""
    try:
        _, number = read_rows(value)
        if _is_parent_input(number.base, token):
            return None
    except Miss:
        pass
    return f"`{value.node.name}` reads rows of other nodes, neither masked by ancestors nor by the parent's number"


def _use_fault(value: Value, table: Node, token: Scope) -> str | None:
    """Why the use of a table by one node may read a row that is not an ancestor's; None if it can't."""
    if is_loop(value.node):
        carried = table in loop_parts(value.node).carried
        return f"`{value.node.name}` carries a node table from layer to layer" if carried else None
    if value.node.op == "output":
        return None
    if value.calls(aten.select_scatter.default):
        if value.node.args[0] is table:
            return None
        return f"`{value.node.name}` writes a whole node table into another table"
    if value.calls(ops.tree_attention, ops.causal_attention):
        return _attention_fault(value, table, token)
    return _read_fault(value, token)


def _holds_table(value: Value, token: Scope) -> bool:
    """The value is a table of the loop: as carried, sliced by layer, written, narrowed, or out of a layer loop."""
    value = value.resolved()
    if table_of(value, token) is not None:
        return True
    if value.calls(aten.select_scatter.default, aten.narrow.default):
        return _holds_table(value.at(value.node.args[0]), token)
    stacked = stacked_source(value)
    return stacked is not None and _holds_table(stacked, token)


def _loop_faults(token: Scope) -> list[str]:
    assert token.loop is not None
    faults = []
    for scope in token.walk():
        if enclosing_token_loop(scope) is not token:
            continue
        for node in scope.module.graph.nodes:
            if node.op == "output" or not _holds_table(Value(scope, node), token):
                continue
            for user in node.users:
                if user.target is aten.narrow.default:
                    continue
                fault = _use_fault(Value(scope, user), node, token)
                if fault is not None and _is_tabular(Value(scope, node), token):
                    faults.append(fault)
    return [*faults, *_carried_faults(token)]


def _is_tabular(value: Value, token: Scope) -> bool:
    """Only values that come back written row by row are tables; other carried values are judged by _carried_faults."""
    value = value.resolved()
    if value.calls(aten.narrow.default):
        return _is_tabular(value.at(value.node.args[0]), token)
    stacked = stacked_source(value)
    if stacked is not None:
        return _is_tabular(stacked, token)
    if value.calls(aten.select_scatter.default):
        return True
    table = table_of(value, token)
    return table is not None and carried_write(token, table.place) is not None


def _carried_faults(token: Scope) -> list[str]:
    """In a tree loop, carried values that are neither tables nor unchanged: they pass from node i to node i + 1."""
    assert token.loop is not None
    assert token.parent is not None
    operands = [Value(token.parent, operand).resolved().node for operand in token.loop.sliced]
    if not any(
        node.meta.get("port") == Port("input", "parent") or node.target is ops.ancestor_mask for node in operands
    ):
        return []
    return [
        f"carried value `{inside.name}` passes from each node to the next, whatever their parents"
        for place, inside in enumerate(token.loop.carried_inside)
        if token.loop.carried_out[place] is not inside and inside.users and carried_write(token, place) is None
    ]


@predicate(TREE_MASKED)
def tree_masked(program: DecodeProgram) -> list[str]:
    """Reasons why TREE_MASKED does not hold, each with the graph's name."""
    faults: list[str] = []
    for name, module in program.graphs.items():
        for scope in Scope(module).walk():
            if scope.loop is not None and scope.loop.axis == "token":
                faults.extend(f"{name}: {fault}" for fault in _loop_faults(scope))
            elif name == "verify" and enclosing_token_loop(scope) is None:
                faults.extend(
                    f"{name}: `{node.name}` has a mask that is not an ancestor_mask"
                    for node in scope.module.graph.nodes
                    if node.target is ops.tree_attention
                    and not is_ancestor_mask(Value(scope, node).at(named_arguments(node)["mask"]))
                )
    return faults
