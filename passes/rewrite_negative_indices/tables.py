"""Dummy root: tables whose last row is the committed context, read as index -1, get it as row 0 instead.

    table [.., N + 1, ..], nodes in rows 0..N-1, row N untouched       nodes in rows 1..N, row 0 untouched
    index(table, [batch, parent])                                ->    index(table, [batch, parent + 1])
    select_scatter(table, row, d, i)                             ->    select_scatter(table, row, d, i + 1)
    narrow(table, d, 0, N)                                       ->    narrow(table, d, 1, N)

A `root_table` holds the committed state itself in that row: it is made with the row in front instead of behind. Found
by data flow from the op that makes the table, through loops. Only index operands and the layout change: the
values inside the tables (depths, paths, rows) and whatever is computed from `parent` stay as they are.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node

from specc.ir import ops
from specc.ir.edit import Editor, LoopParts, add_invariant, bodies, is_loop, loop_parts
from specc.ir.interpreter import Poison
from specc.ir.ranges import Ranges
from specc.ir.ranges.bounds import integer
from specc.ir.ranges.calls import call_of, shape_of
from specc.ir.ranges.indices import IndexUse, index_uses
from specc.ir.ranges.interval import Interval, between
from specc.manager import Note
from specc.passes.rewrite_negative_indices.uses import ORIGIN, put

aten = torch.ops.aten
_READS = ("index", "gather", "index_select", "take_along_dim")
_VIEWS = ("squeeze", "unsqueeze", "view", "reshape", "expand", "clone", "contiguous")


class NotATableError(Exception):
    """Why a candidate keeps its layout."""


@dataclass(slots=True)
class Table:
    """One table on its way through the program: its nodes with their row dim, and what must be shifted."""

    made: Node
    rows: int
    members: dict[Node, int] = field(default_factory=dict)
    shifts: list[IndexUse] = field(default_factory=list)


def shift_tables(module: GraphModule, ranges: Ranges, graph: str) -> list[Note]:
    """Shift every table of the module in place, where all that touches it allows it; notes say what and why not."""
    owners = {body: loop_parts(node) for node, body in bodies(module)}
    notes: list[Note] = []
    shifted: dict[Node, Node] = {}
    for made, dim in list(_candidates(module)):
        table = Table(made, int(made.meta["val"].shape[dim]))
        try:
            _follow(table, dim, owners)
            reads = _check(table, ranges)
        except NotATableError as problem:
            notes.append(_note(made, graph, f"keeps its layout: {problem}", fired=False))
            continue
        for use in table.shifts:
            _shift(use, ranges, table.rows, shifted, owners)
        if made.target is ops.root_table:
            put(made, ("args", 2), 0)
        if _is_padding(made, reads, ranges):
            # Row 0 only fills masked lanes: checks may put anything there.
            made.meta["poison"] = Poison(dim, 0, 1)
        notes.append(_note(made, graph, _summary(table, reads, ranges), fired=True))
    return notes


def _note(made: Node, graph: str, message: str, *, fired: bool) -> Note:
    return Note(ORIGIN, graph, f"table `{made.name}` {message}", fired, tuple(made.meta.get("keys", ())))


def _candidates(module: GraphModule) -> Iterator[tuple[Node, int]]:
    """Tables that a token loop of `trip` iterations carries, with a dim of trip + 1 rows: constant ones, and those with
    the committed state in their last row."""
    for node in module.graph.nodes:
        if not is_loop(node):
            continue
        parts = loop_parts(node)
        trip = parts.trip
        if parts.axis != "token" or trip is None:
            continue
        for operand in parts.carried:
            shape = shape_of(operand)
            if shape is not None and operand.target is ops.root_table:
                root = operand.args[2]
                assert isinstance(root, int)
                if shape[2] == trip + 1 and root % shape[2] == trip:
                    yield operand, 2
                continue
            if shape is None or operand.target is not ops.full_rows:
                continue
            fitting = [dim for dim, size in enumerate(shape) if dim and size == trip + 1]
            dims = [dim for dim in fitting if _is_written(parts, operand, dim)] or fitting
            if dims:
                yield operand, dims[0]


def _is_written(parts: LoopParts, operand: Node, dim: int) -> bool:
    """Some select_scatter writes rows of this dim: tells the row dim from others of the same size."""
    table = Table(operand, 0)
    try:
        _follow(table, dim, {body: loop_parts(node) for node, body in bodies(_owner(operand))})
    except NotATableError:
        return False
    return any(use.writes for use in table.shifts)


def _owner(node: Node) -> GraphModule:
    owner = node.graph.owning_module
    assert owner is not None
    return owner


def _follow(table: Table, dim: int, owners: dict[GraphModule, LoopParts]) -> None:
    """Collect all nodes that hold the table, or a part with all of its rows, and all index operands into it."""
    work = [(table.made, dim)]
    while work:
        node, row = work.pop()
        if node in table.members:
            if table.members[node] != row:
                raise NotATableError(f"`{node.name}` holds its rows in two dims")
            continue
        table.members[node] = row
        for user in node.users:
            work += _through(table, user, node, row, owners)
    for parts in owners.values():
        for inside, outside, result in zip(
            parts.carried_inside, parts.carried, parts.carried_out[: len(parts.carried)], strict=True
        ):
            held = [item in table.members for item in (inside, outside, result)]
            if any(held) and not all(held):
                raise NotATableError(f"`{parts.node.name}` carries another value in its place after an iteration")


def _through(
    table: Table, user: Node, node: Node, row: int, owners: dict[GraphModule, LoopParts]
) -> Iterator[tuple[Node, int]]:
    if is_loop(user):
        yield from _into_loop(loop_parts(user), node, row)
        return
    if user.op == "output":
        yield from _out_of_body(user, node, row, owners)
        return
    call = call_of(user)
    uses = [use for use in index_uses(user) if use.table is node]
    rows = [use for use in uses if use.dim == row]
    if call is None or not rows or call.in_place:
        raise NotATableError(f"`{user.name}` reads it whole")
    if call.name == "select_scatter" and user.args[1] is not node:
        yield user, row
    elif call.name == "narrow":
        if call.arg(2, "start") != 0 or call.arg(3, "length") != table.rows - 1:
            raise NotATableError(f"`{user.name}` takes other rows than those of all nodes")
    elif call.name not in _READS or sum(argument is node for argument in user.all_input_nodes) != 1:
        raise NotATableError(f"`{user.name}` uses it by {call.name}")
    table.shifts += rows


def _into_loop(parts: LoopParts, node: Node, row: int) -> Iterator[tuple[Node, int]]:
    for inside, operand in zip(parts.carried_inside, parts.carried, strict=True):
        if operand is node:
            yield inside, row
    for inside, operand in zip(parts.invariant_inside, parts.invariant, strict=True):
        if operand is node:
            yield inside, row
    for inside, operand in zip(parts.sliced_inside, parts.sliced, strict=True):
        if operand is node:
            yield inside, _sliced_dim(parts, row)
        elif isinstance(operand, (list, tuple)) and node in operand:
            raise NotATableError(f"`{parts.node.name}` slices a tuple that holds it")


def _sliced_dim(parts: LoopParts, row: int) -> int:
    if row == (1 if parts.axis == "token" else 0):
        raise NotATableError(f"`{parts.node.name}` slices it along its rows")
    return row if parts.axis == "token" else row - 1


def _out_of_body(user: Node, node: Node, row: int, owners: dict[GraphModule, LoopParts]) -> Iterator[tuple[Node, int]]:
    parts = owners.get(_owner(user))
    if parts is None:
        raise NotATableError("it leaves the graph with the committed row in it")
    results = parts.results()
    for position, value in enumerate(parts.carried_out):
        if value is node:
            yield from ((result, row) for result in results.get(position, []))
    for position, value in enumerate(parts.stacked_out, len(parts.carried_out)):
        if value is node:
            if parts.axis == "token" and row == 1:
                raise NotATableError(f"`{parts.node.name}` stacks it along its rows")
            stacked = row if parts.axis == "token" else row + 1
            yield from ((result, stacked) for result in results.get(position, []))


def _check(table: Table, ranges: Ranges) -> list[IndexUse]:
    """The reads that may be -1. Raises unless every index is -1 or a node's row, and the last row is never written."""
    nodes = between(0, table.rows - 2)
    reads = []
    for use in table.shifts:
        held = ranges.of(use.operand)
        if use.op == "narrow":
            continue
        if use.writes and held.within(nodes):
            continue
        if not use.writes and held.within(Interval(integer(-1), nodes.high)):
            if not held.low >= integer(0):
                reads.append(use)
            continue
        what = "writes" if use.writes else "reads"
        raise NotATableError(f"`{use.node.name}` {what} row {held}, which is not a node's row")
    if not reads:
        raise NotATableError("no index into it can be -1")
    wraps = [use for use in reads if ranges.of(use.operand).sentinels == {"wrap"}]
    if wraps:
        raise NotATableError(f"-1 means wrap-around in `{wraps[0].node.name}`")
    return reads


def _shift(
    use: IndexUse, ranges: Ranges, rows: int, shifted: dict[Node, Node], owners: dict[GraphModule, LoopParts]
) -> None:
    """Add 1 to an index operand; operands that are shared are shifted once per graph."""
    if isinstance(use.operand, int):
        put(use.node, use.place, use.operand + 1)
        return
    assert ranges.of(use.operand).within(between(-1, rows - 1))
    put(use.node, use.place, _shifted(use.operand, use.is_scalar, shifted, owners))


def _shifted(operand: Node, scalar: bool, shifted: dict[Node, Node], owners: dict[GraphModule, LoopParts]) -> Node:
    """operand + 1, in front of all that uses the operand; rows that are handed into a loop are shifted outside."""
    if operand not in shifted:
        outside = None if scalar else _handed_in(operand, owners)
        editor = Editor(_owner(operand), ORIGIN)
        if outside is not None:
            loop, source = outside
            row = _shifted(source, scalar, shifted, owners)
            shifted[operand] = add_invariant(loop, row, row.name)
        else:
            with editor.before(_first_use(operand), operand):
                if scalar:
                    shifted[operand] = editor.call(operator.add, operand, 1, name="node_row")
                else:
                    shifted[operand] = editor.call(aten.add.Tensor, operand, 1, name=_row_name(operand))
    return shifted[operand]


def _handed_in(operand: Node, owners: dict[GraphModule, LoopParts]) -> tuple[Node, Node] | None:
    """(loop, operand outside) of a loop's invariant; None for any other node."""
    owner = owners.get(_owner(operand))
    if owner is None or operand not in owner.invariant_inside:
        return None
    source = owner.invariant[owner.invariant_inside.index(operand)]
    return (owner.node, source) if isinstance(source, Node) else None


def _first_use(operand: Node) -> Node:
    """The first node of the graph that uses the operand: the shifted index must stand before all of them."""
    order = {node: position for position, node in enumerate(operand.graph.nodes)}
    return min(operand.users, key=order.__getitem__)


def _row_name(operand: Node) -> str:
    """`parent_or_committed` -> `parent_row`; a view of `own` -> `own_row`."""
    node = operand
    while True:
        call = call_of(node)
        source: Any = call.first if call is not None and call.name in _VIEWS else None
        if not isinstance(source, Node):
            return f"{node.name.split('_or_')[0]}_row"
        node = source


def _is_padding(made: Node, reads: list[IndexUse], ranges: Ranges) -> bool:
    """The dummy row of rows of floats that no read takes for the committed context, and that holds nothing."""
    committed = any("committed" in ranges.of(use.operand).sentinels for use in reads)
    return made.target is ops.full_rows and not committed and bool(made.meta["val"].dtype.is_floating_point)


def _summary(table: Table, reads: list[IndexUse], ranges: Ranges) -> str:
    meanings: set[str] = set()
    for use in reads:
        meanings |= ranges.of(use.operand).sentinels or {"pad"}
    names = ", ".join(sorted({f"`{use.node.name}`" for use in reads}))
    said = {
        "committed": "-1 is the committed context, now the dummy root in row 0",
        "pad": "padding (-1) reads row 0, which no node writes, and stays masked",
    }
    why = "; ".join(said[meaning] for meaning in sorted(meanings & said.keys()))
    return f"has its nodes in rows 1..{table.rows - 1}, read with index + 1 by {names}: {why}"


__all__ = ["NotATableError", "Table", "shift_tables"]
