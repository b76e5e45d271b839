"""TREE_MASKED as a check of a program: no node reads a row of a node that is not its ancestor or itself.

Inside token loops every read of a table that the loop's iterations write is one of: attention under the token's slice
of `ancestor_mask`, causal attention up to the token's own number, or the row of the parent by the step's `parent`
input. A tree loop (one that slices `parent`) carries nothing else from node to node: no state, no window. Outside token
loops in `verify`, attention has its mask from `ancestor_mask`, or is causal; ops over a tree's nodes take the rows of
the step's parents, and the mask over them; and no op takes a state along a tree's nodes as if they were a chain.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from specc.ir import ops
from specc.ir.edit import is_loop, loop_parts
from specc.ir.effects import flat_nodes
from specc.ir.loop import trip_count
from specc.ir.op import info
from specc.ir.port import Port
from specc.ir.recurrence import recurrence_of
from specc.ir.scope import Miss, Scope, Value, named_arguments
from specc.manager import predicate
from specc.passes.parents import mask_parent, parent_rows
from specc.passes.tables import (
    RowNumber,
    Table,
    carried_write,
    check_layout,
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


def _read_fault(value: Value, table: Node, token: Scope) -> str | None:
    """None where this use of a table by index follows the parent, at the row that the parent wrote."""
    try:
        _, number = read_rows(value)
        if _is_parent_input(number.base, token):
            return _row_fault(value, number, _table_in(Value(value.scope, table), token), token)
    except Miss:
        pass
    return f"`{value.node.name}` reads rows of other nodes, neither masked by ancestors nor by the parent's number"


def _row_fault(value: Value, number: RowNumber, table: Table | None, token: Scope) -> str | None:
    write = None if table is None else carried_write(token, table.place)
    if write is None or token.loop is None:
        return None
    try:
        trip = trip_count(token.loop.axis, token.loop.trip, [operand.meta["val"] for operand in token.loop.sliced])
        check_layout(value.node.name, write, number, trip)
    except Miss as miss:
        return str(miss)
    return None


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
    return _read_fault(value, table, token)


def _table_in(value: Value, token: Scope) -> Table | None:
    """The loop's table that a value holds: as carried, sliced by layer, written, narrowed, or out of a layer loop."""
    value = value.resolved()
    table = table_of(value, token)
    if table is not None:
        return table
    if value.calls(aten.select_scatter.default, aten.narrow.default):
        return _table_in(value.at(value.node.args[0]), token)
    stacked = stacked_source(value)
    return None if stacked is None else _table_in(stacked, token)


def _loop_faults(token: Scope) -> list[str]:
    assert token.loop is not None
    faults = []
    for scope in token.walk():
        if enclosing_token_loop(scope) is not token:
            continue
        for node in scope.module.graph.nodes:
            if node.op == "output" or _table_in(Value(scope, node), token) is None:
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


def _depends_on(value: Value, port: Port) -> bool:
    """True where the value is computed from an input of the step, through loops at any depth."""
    todo, seen = [value], set[Node]()
    while todo:
        item = todo.pop().resolved()
        if item.node in seen:
            continue
        seen.add(item.node)
        if item.node.meta.get("port") == port:
            return True
        todo += [Value(item.scope, operand) for operand in item.node.all_input_nodes]
        role, loop = item.scope.role(item.node), item.scope.loop
        if role is not None and loop is not None and item.scope.parent is not None and role[0] in ("carried", "slice"):
            operands = loop.carried if role[0] == "carried" else loop.sliced
            todo += [Value(item.scope.parent, node) for node in flat_nodes(operands[role[1]])]
            if role[0] == "carried":
                todo += [Value(item.scope, node) for node in flat_nodes(loop.carried_out[role[1]])]
    return False


def _node_fault(value: Value, tree: bool) -> str | None:
    """What is wrong with an op over all nodes of a verify step, outside token loops."""
    node = value.node
    declared, recurrence = info(node.target), recurrence_of(node.target)
    if node.target is ops.tree_attention:
        mask = value.at(named_arguments(node)["mask"])
        return None if is_ancestor_mask(mask) else f"`{node.name}` has a mask that is not an ancestor_mask"
    if recurrence is not None and tree:
        rows = [value.at(named_arguments(node)[name]) for name in recurrence.rows]
        if any(_depends_on(row, Port("input", "tokens")) for row in rows):
            return f"`{node.name}` takes its state along the nodes of a tree as if they were a chain"
    names = () if declared is None else [argument.name for argument in declared.overload._schema.arguments]
    if not tree or node.target is ops.ancestor_mask or "parent_row" not in names:
        return None
    given = named_arguments(node)
    parent = None if given["parent_row"] is None else parent_rows(value.at(given["parent_row"]))
    if parent is None or parent.parent.meta.get("port") != Port("input", "parent"):
        return f"`{node.name}` does not follow the step's parents"
    if "mask" in names and (given["mask"] is None or mask_parent(value.at(given["mask"])) != parent):
        return f"`{node.name}` has a mask that is not the ancestor_mask over its parents"
    return None


def _step_faults(module: GraphModule) -> list[str]:
    """Faults of `verify` outside token loops."""
    tree = any(node.meta.get("port") == Port("input", "parent") for node in module.graph.nodes)
    scopes = [scope for scope in Scope(module).walk() if enclosing_token_loop(scope) is None]
    found = [_node_fault(Value(scope, node), tree) for scope in scopes for node in scope.module.graph.nodes]
    return [fault for fault in found if fault is not None]


@predicate(TREE_MASKED)
def tree_masked(program: DecodeProgram) -> list[str]:
    """Reasons why TREE_MASKED does not hold, each with the graph's name."""
    faults: list[str] = []
    for name, module in program.graphs.items():
        for scope in Scope(module).walk():
            if scope.loop is not None and scope.loop.axis == "token":
                faults.extend(f"{name}: {fault}" for fault in _loop_faults(scope))
        if name == "verify":
            faults.extend(f"{name}: {fault}" for fault in _step_faults(module))
    return faults
