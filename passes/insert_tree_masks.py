"""insert-tree-masks: per-node path gathers become masked reads of all nodes.

    loop token t:                                     mask = ancestor_mask(parent + 1, valid)         [B,N,N]
        depth = depth_table[parent[t]] + 1            depth = mask.sum(-1) - 1                        [B,N]
        path  = path_table[parent[t]] + self    ->    loop token t:
        loop layer: attend(k_table[path], …)              loop layer: attend(k_table, …, mask[t])

Facts that are proved on the data flow before anything is changed: depth is the recurrence depth[parent] + 1 with -1 for
the committed context, so it counts proper ancestors; path is the recurrence path[parent] with the node itself at place
depth, so its valid entries are the ancestors and self; K and V are read along that path, at the rows which the nodes'
own iterations wrote. What is assumed, because a graph can't show it: parent[i] < i (I1) and depth < the path's width
(the draft's contract, I7).

Recurrent ops stay indexed by the parent: it is proved that each starts from its parent's row of a table that starts
with the committed state, and leaves its own state in its own row. Those that declare it get the node's row of the mask
beside it, which is what computing all nodes at once needs (the form of that is chosen by select-schedule).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.fx import GraphModule, Node

from specc.ir import ops
from specc.ir.clone import clone
from specc.ir.dims import is_symbolic
from specc.ir.edit import Editor, LoopParts, finish
from specc.ir.loop import trip_count
from specc.ir.prune import prune
from specc.ir.recurrence import recurrence_of
from specc.ir.scope import Miss, Scope, Value, add_operand, named_arguments, with_arguments
from specc.manager import Note, Pass, PassContext, PassResult
from specc.passes.parents import Parent, parent_of
from specc.passes.recurrences import TreeState, reads_a_table, recurrences, tree_state
from specc.passes.tables import (
    RowNumber,
    Write,
    check_layout,
    enclosing_token_loop,
    filled_with,
    read_rows,
    row_number,
    squeezed,
    token_offset,
    write_of,
)
from specc.passes.tree_masked import is_ancestor_mask
from specc.program import INDEX_SAFE, TREE_MASKED, DecodeProgram

aten = torch.ops.aten
NAME = "insert-tree-masks"


@dataclass(frozen=True, slots=True)
class TreeRead:
    """One attention over a node's own path: what it reads and the proof's parts."""

    attention: Value
    keys: Write
    values: Write
    depth: Value
    parent: Parent


def _recurrence(value: Value, above: Value, token: Scope, trip: int) -> Parent:
    """Proves `above` = table[parent] for the table that `value` [B,1,…] is written into; all rows start at -1."""
    table, number = read_rows(above)
    writes = []
    for user in value.node.users:
        for written in user.users if user.target is aten.squeeze.dim else ():
            if written.target is aten.select_scatter.default and written.args[0] is table.node:
                writes.append(write_of(Value(value.scope, written), token))
    if len(writes) != 1 or not writes[0].row.same(value):
        raise Miss(f"`{value.node.name}` is not written back into the table that `{above.node.name}` reads")
    check_layout(above.node.name, writes[0], number, trip)
    if not filled_with(writes[0].table.init, -1):
        raise Miss(f"the table that `{above.node.name}` reads does not start at -1 in every row")
    return parent_of(number, token)


def _depth(value: Value, token: Scope, trip: int) -> Parent:
    """Proves depth = depth_table[parent] + 1, -1 for the committed context."""
    node = value.node
    if not value.calls(aten.add.Tensor) or node.args[1] != 1 or node.kwargs:
        raise Miss(f"`{node.name}` is not the parent's depth + 1")
    return _recurrence(value, value.at(node.args[0]), token, trip)


def _path(value: Value, token: Scope, trip: int) -> tuple[Value, Parent]:
    """Proves path = where(column == depth, self, path_table[parent]); returns the depth node and the parent."""
    name = value.node.name
    if not value.calls(aten.where.self):
        raise Miss(f"`{name}` does not extend the parent's path by the node itself")
    here, own, above = (value.at(argument) for argument in value.node.args)
    if not own.calls(aten.full_like.default) or token_offset(own, own.node.args[1], token) != 0:
        raise Miss(f"`{name}` does not put the node's own number into its path")
    if not here.calls(aten.eq.Tensor):
        raise Miss(f"`{name}` does not extend the parent's path at one place")
    sides = [here.at(argument) for argument in here.node.args]
    sides.sort(key=lambda side: not side.calls(ops.iota))
    column, place = sides
    if not column.calls(ops.iota) or not place.calls(aten.unsqueeze.default) or place.node.args[1] not in (-1, 2):
        raise Miss(f"`{name}` does not extend the parent's path at place depth")
    depth = place.at(place.node.args[0])
    parent = _recurrence(value, above, token, trip)
    if _depth(depth, token, trip) != parent:
        raise Miss(f"depth and path of `{name}` follow different parents")
    return depth, parent


def _lanes(value: Value) -> Value:
    """x where the value equals x wherever x >= 0: the mask hides negative entries, so clamps of them don't matter."""
    if value.calls(aten.clamp_min.default, aten.clamp.default) and tuple(value.node.args[1:]) == (0,):
        return value.at(value.node.args[0])
    if value.calls(aten.where.self):
        test, yes, no = (value.at(argument) for argument in value.node.args)
        if _is_valid_mask(test, yes):
            return yes
        if test.calls(aten.lt.Scalar) and test.node.args[1] == 0 and test.at(test.node.args[0]).same(no):
            return no
    return value


def _is_valid_mask(mask: Value, path: Value) -> bool:
    """mask = path >= 0."""
    limit = 0 if mask.calls(aten.ge.Scalar) else -1 if mask.calls(aten.gt.Scalar) else None
    return limit is not None and bool(mask.node.args[1] == limit) and mask.at(mask.node.args[0]).same(path)


def _path_rows(value: Value, token: Scope, trip: int) -> tuple[Write, Value]:
    """A read table[batch, path]: the table's write and the path [B,1,P], shifts checked."""
    table, number = read_rows(value)
    write = write_of(table, token)
    base, shift, wrap = number.base, number.shift, number.wrap
    if base.calls(aten.squeeze.dim):
        inner = row_number(squeezed(base))
        base, shift, wrap = inner.base, shift + inner.shift, wrap or inner.wrap
    if shift != write.shift:
        check_layout(value.node.name, write, RowNumber(base, shift, wrap), trip)
    return write, _lanes(base)


def match_read(attention: Value, token: Scope, trip: int) -> TreeRead:
    """Proves that a tree_attention reads the K and V rows of the token's ancestors and itself. Raises Miss."""
    arguments = named_arguments(attention.node)
    keys, path = _path_rows(attention.at(arguments["k_new"]), token, trip)
    values, other = _path_rows(attention.at(arguments["v_new"]), token, trip)
    if not path.same(other):
        raise Miss("K and V are read along different paths (I27)")
    if keys.shift != values.shift or keys.table.rows != values.table.rows:
        raise Miss("K and V rows of one node lie at different rows (I27)")
    if not _is_valid_mask(attention.at(arguments["mask"]), path):
        raise Miss("the attention's mask is not `path >= 0`")
    depth, parent = _path(path, token, trip)
    return TreeRead(attention, keys, values, depth, parent)


def _attentions(token: Scope, target: object) -> list[Value]:
    """Calls of an op in a token loop, those of token loops further inside left out."""
    scopes = [scope for scope in token.walk() if enclosing_token_loop(scope) is token]
    return [Value(scope, node) for scope in scopes for node in scope.module.graph.nodes if node.target is target]


def _mask_before(module: GraphModule, loop: Node, parent: Parent, keys: Node) -> Node:
    """The ancestor mask [B,N,N], computed before the loop."""
    editor = Editor(module, NAME)
    with editor.before(loop, keys):
        row = editor.call(aten.add.Tensor, parent.parent, 1, name="parent_row")
        valid = parent.valid
        if valid is None:
            valid = editor.call(aten.ones_like.default, parent.parent, dtype=torch.bool, name="all_valid")
        return editor.call(ops.ancestor_mask, row, valid, name="mask")


def _depth_before(module: GraphModule, loop: Node, mask: Node, keys: Node) -> Node:
    """The nodes' depths [B,N] by the mask, computed before the loop."""
    editor = Editor(module, NAME)
    with editor.before(loop, keys):
        count = editor.call(aten.sum.dim_IntList, mask, [-1], name="path_length")
        return editor.call(aten.sub.Tensor, count, 1, name="depth")


def _hand_in(scope: Scope, token: Scope, mask: Node) -> Node:
    """The token's mask row [B,1,N] inside `scope`, handed through the loops between."""
    if scope is token:
        return mask
    assert scope.parent is not None
    assert scope.loop is not None
    return add_operand(scope.loop.node, "invariant", _hand_in(scope.parent, token, mask), "mask")


@dataclass(frozen=True, slots=True)
class TreeLoop:
    """What was proved of a token loop over a tree: attentions, recurrent ops that lack ancestors, the parents."""

    token: Scope
    reads: list[TreeRead]
    states: list[TreeState]
    parent: Parent
    nodes: int


def _rewrite_loop(found: TreeLoop) -> None:
    token = found.token
    assert token.loop is not None
    assert token.parent is not None
    module, loop = token.parent.module, token.loop.node
    keys = found.reads[0].depth.node if found.reads else found.states[0].call.node
    mask = _mask_before(module, loop, found.parent, keys)
    mask_row = add_operand(loop, "sliced", mask, "mask")
    if found.reads:
        own_depth = add_operand(loop, "sliced", _depth_before(module, loop, mask, keys), "depth")
        for old in {read.depth.node: read for read in found.reads}:
            old.replace_all_uses_with(own_depth, propagate_meta=False)
    masks: dict[GraphModule, Node] = {}
    for call in (*(read.attention for read in found.reads), *(state.call for state in found.states)):
        if call.scope.module not in masks:
            masks[call.scope.module] = _hand_in(call.scope, token, mask_row)
    for read in found.reads:
        _mask_read(read, masks[read.attention.scope.module], found.nodes)
    for state in found.states:
        assert state.declared.ancestors is not None
        _replace_call(state.call, {state.declared.ancestors: masks[state.call.scope.module]})


def _mask_read(read: TreeRead, mask: Node, nodes: int) -> None:
    """The attention over the rows of all nodes, under the mask."""
    node = read.attention.node
    editor = Editor(read.attention.scope.module, NAME)
    given = named_arguments(node)
    with editor.before(node):
        rows = {name: _all_rows(editor, given[name], write.shift, nodes) for name, write in _written(read)}
    _replace_call(read.attention, {**rows, "mask": mask})


def _replace_call(call: Value, changed: dict[str, Node]) -> None:
    node, editor = call.node, Editor(call.scope.module, NAME)
    with editor.before(node):
        made = editor.call(node.target, *with_arguments(node, **changed), name=node.name)  # type: ignore[arg-type]
    editor.replace(node, made)


def _written(read: TreeRead) -> tuple[tuple[str, Write], tuple[str, Write]]:
    return ("k_new", read.keys), ("v_new", read.values)


def _all_rows(editor: Editor, gathered: Node, shift: int, nodes: int) -> Node:
    """The rows of all nodes: the table without the committed context's row."""
    table = gathered.args[0]
    assert isinstance(table, Node)
    return editor.call(aten.narrow.default, table, 1, shift, nodes, name="node_rows")


def _chain_note(token: Scope, graph: str) -> Note | None:
    """What to say of a token loop without a tree."""
    chains, states = _attentions(token, ops.causal_attention), list(recurrences(token))
    for value in chains:
        offset = token_offset(value, named_arguments(value.node)["offset"], token)
        if offset != 0:
            message = f"`{value.node.name}` is causal, but not from the token's own number on"
            return Note(NAME, graph, message, False, tuple(value.node.meta.get("keys", ())))
    said = ["row t sees rows 0..t, masked causally without a mask tensor"] if chains else []
    said += ["states go on from each token to the next"] if states else []
    if not said:
        return None
    keys = tuple((chains or states)[0].node.meta.get("keys", ()))
    return Note(NAME, graph, f"a chain: {'; '.join(said)}", False, keys)


def _over_tokens(scope: Scope) -> bool:
    return scope.loop is not None and scope.loop.axis == "token"


def _unmasked(scope: Scope) -> list[Value]:
    """Tree attentions of a token loop whose mask is not an ancestor mask yet."""
    found = _attentions(scope, ops.tree_attention) if _over_tokens(scope) else []
    return [value for value in found if not is_ancestor_mask(value.at(named_arguments(value.node)["mask"]))]


def _loop_trip(parts: LoopParts) -> int:
    return trip_count(parts.axis, parts.trip, [operand.meta["val"] for operand in parts.sliced])


def _without_ancestors(scope: Scope) -> list[Value]:
    """Recurrent ops of a tree's token loop that take their node's ancestors and don't have them yet."""
    calls = list(recurrences(scope)) if _over_tokens(scope) else []
    if not any(reads_a_table(call) for call in calls):
        return []
    return [call for call in calls if _lacks_ancestors(call.node)]


def _lacks_ancestors(node: Node) -> bool:
    declared = recurrence_of(node.target)
    return declared is not None and declared.ancestors is not None and not named_arguments(node).get(declared.ancestors)


def _prove(token: Scope, attentions: list[Value]) -> TreeLoop:
    """All that a tree's token loop needs. Raises Miss."""
    assert token.loop is not None
    nodes = _loop_trip(token.loop)
    if is_symbolic(nodes):
        raise Miss("the number of nodes is not fixed, so no mask [B,N,N] can be built")
    reads = [match_read(value, token, nodes) for value in attentions]
    states = [tree_state(call, token, nodes) for call in recurrences(token)]
    calls = [(read.attention.node.name, read.parent) for read in reads]
    calls += [(state.call.node.name, state.parent) for state in states]
    first, parent = calls[0]
    if parent.parent.meta["val"].shape[1] != nodes:
        raise Miss(f"the loop visits {nodes} of the nodes that have a parent")
    for name, other in calls:
        if other != parent:
            raise Miss(f"`{first}` and `{name}` of one loop follow different parents (I27)")
    return TreeLoop(token, reads, [item for item in states if _lacks_ancestors(item.call.node)], parent, nodes)


def _visit(token: Scope, graph: str) -> tuple[bool, list[Note]]:
    """Rewrites one token loop in place where all its tree reads match."""
    attentions, states = _unmasked(token), _without_ancestors(token)
    if not attentions and not states:
        note = _chain_note(token, graph)
        return False, [] if note is None else [note]
    keys = tuple((attentions or states)[0].node.meta.get("keys", ()))
    try:
        found = _prove(token, attentions)
    except Miss as miss:
        return False, [Note(NAME, graph, str(miss), False, keys)]
    _rewrite_loop(found)
    return True, [Note(NAME, graph, _message(found), True, keys)]


def _message(found: TreeLoop) -> str:
    said, assumed = [], ["parent[i] < i (I1)"]
    if found.reads:
        said.append(f"path gathers of {len(found.reads)} attention(s) became masked reads of {found.nodes} nodes")
        said.append("depth = mask.sum(-1) - 1")
        assumed.append("paths no longer than the path table's width (I7)")
    if found.states:
        said.append(f"{len(found.states)} recurrence(s) start from their parent's state and got their node's ancestors")
    return f"{'; '.join(said)}; assumes {' and '.join(assumed)}"


def insert_tree_masks(module: GraphModule, graph: str = "") -> tuple[GraphModule, tuple[Note, ...]]:
    """A copy of the module with the path gathers of its token loops replaced by ancestor masks, and notes: what fired,
    and for each near miss the reason why not.

    `graph` names the module in the notes. The module itself comes back where nothing fires.
    """
    if not any(_unmasked(scope) or _without_ancestors(scope) for scope in Scope(module).walk()):
        chains = (_chain_note(scope, graph) for scope in Scope(module).walk() if _over_tokens(scope))
        return module, tuple(note for note in chains if note is not None)
    work = clone(module)
    notes: list[Note] = []
    changed = False
    for scope in list(Scope(work).walk()):
        if _over_tokens(scope):
            fired, found = _visit(scope, graph)
            changed |= fired
            notes.extend(found)
    if not changed:
        return module, tuple(notes)
    prune(work)
    return finish(work), tuple(notes)


@dataclass(frozen=True, slots=True)
class InsertTreeMasks(Pass):
    """Path gathers become ancestor-masked reads in every step graph."""

    name: ClassVar[str] = NAME
    requires: ClassVar[frozenset[str]] = frozenset({INDEX_SAFE})
    establishes: ClassVar[frozenset[str]] = frozenset({TREE_MASKED})
    preserves: ClassVar[frozenset[str]] = frozenset({INDEX_SAFE})

    def run(self, program: DecodeProgram, ctx: PassContext) -> PassResult:
        """Visits every graph; graphs without token loops come back as they are."""
        notes: list[Note] = []
        graphs = {}
        for name, module in program.graphs.items():
            made, found = insert_tree_masks(module, name)
            notes.extend(found)
            if any(note.fired for note in found):
                graphs[name] = made
        return PassResult(program.with_graphs(**graphs), bool(graphs), tuple(notes))
