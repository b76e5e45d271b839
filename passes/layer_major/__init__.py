"""layer-major: loop interchange, distribution and idiom recognition.

    loop token t:                                    pre, for all tokens [B,N,…]
        pre                                          loop layer l:
        loop layer l:                       ->           B, for all tokens
            B                                        post, for all tokens
        post

Row-wise ops become one op on the rows of all tokens; a table that each token writes its own row into, and reads under
the ancestor mask or causally, becomes those rows themselves (row j of it is token j's, and no token sees a row behind
its own); the token's number becomes iota. Legal where no value goes forward along tokens and back along layers
(`dependence`): then every row that token t reads in layer l is made in layer l, which the new order has computed for
all tokens. Floating-point results may differ by the rounding of larger matrix products, nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch.fx import GraphModule, Node

from specc.ir.build import GraphBuilder
from specc.ir.clone import clone
from specc.ir.edit import Editor, LoopParts, erase_dead, finish, inherit
from specc.ir.loop import trip_count
from specc.ir.ops import causal_attention, root_table, tree_attention
from specc.ir.prune import prune
from specc.ir.recurrence import recurrence_of
from specc.ir.scope import Scope, Value
from specc.manager import Note, Pass, PassContext, PassResult, predicate
from specc.passes.layer_major.batch import NAME, Batcher, aten
from specc.passes.layer_major.dependence import Dependence, contains_layers, dependences
from specc.passes.layer_major.layers import batch_layers
from specc.passes.layer_major.recurrent import emit_recurrence
from specc.passes.layer_major.values import Carried, Index, Refused, Rows, StateAfter, Uniform, Written, describe
from specc.passes.recurrences import recurrences, state_table
from specc.passes.tree_masked import is_ancestor_mask
from specc.program import INDEX_SAFE, LAYER_MAJOR, TREE_MASKED, DecodeProgram

__all__ = ["LayerMajor", "layer_major", "layer_major_faults"]


def _prepare(scope: Scope, builder: GraphBuilder) -> Batcher:
    """A batcher with the token loop's placeholders bound to what they are for all tokens."""
    loop, outer = scope.loop, scope.parent
    assert loop is not None
    assert outer is not None
    tokens = trip_count(loop.axis, loop.trip, [operand.meta["val"] for operand in loop.sliced])
    after = frozenset(place for place, items in loop.results().items() if any(item.users for item in items))
    batcher = Batcher(builder, scope, scope, tokens, after, batch_layers, emit_recurrence)
    states = {held.place for held in (state_table(call, scope) for call in recurrences(scope)) if held is not None}
    batcher.env[loop.index] = Index(0)
    for place, (node, operand) in enumerate(zip(loop.carried_inside, loop.carried, strict=True)):
        unchanged = loop.carried_out[place] is node
        committed = _committed(operand) if place in states else None
        batcher.env[node] = Uniform(operand) if unchanged else Carried(place, False, committed)
    for node, operand in zip(loop.sliced_inside, loop.sliced, strict=True):
        if operand.meta["val"].shape[1] != tokens:
            raise Refused(f"the loop visits {tokens} of the rows of `{operand.name}`")
        batcher.env[node] = Rows(operand, 1, is_ancestor_mask(Value(outer, operand)))
    for node, operand in zip(loop.invariant_inside, loop.invariant, strict=True):
        batcher.env[node] = Uniform(operand)
    return batcher


def _committed(operand: Node) -> Node:
    """The state before the first token, of a carried state or of a table of them."""
    held = operand.args[0] if operand.target is root_table else operand
    assert isinstance(held, Node)
    return held


def _table_after(editor: Editor, written: Written, loop: LoopParts, user: Node) -> Node:
    """What a user of the loop's table reads instead: the rows of all tokens, or the table with them put in."""
    assert written.rows is not None
    rows, dim = written.rows.node, written.rows.axis
    count = rows.meta["val"].shape[dim]
    if user.target is aten.narrow.default and user.args[1:] == (dim, written.shift, count):
        return rows
    if written.shift == 0 and count == written.size:
        return rows
    initial = loop.carried[written.place]
    return editor.call(aten.slice_scatter.default, initial, rows, dim, written.shift, written.shift + count)


def _bind(editor: Editor, loop: LoopParts, values: list[Any]) -> None:
    """Gives the loop's users the batched results. Raises Refused before anything is replaced."""
    first = len(loop.carried)
    for place, value in enumerate(values):
        unchanged = place < first and loop.carried_out[place] is loop.carried_inside[place]
        goes_on = isinstance(value, Written) or (isinstance(value, StateAfter) and value.last is not None)
        table = place < first and goes_on and value.place == place
        if not (unchanged or table or (place >= first and isinstance(value, Rows) and value.axis == 1)):
            kind = "carried value" if place < first else "stacked result"
            raise Refused(f"{kind} {place} of the loop is {describe(value)}")
    for place, items in loop.results().items():
        value = values[place]
        for item in items:
            _replace_result(editor, loop, item, value)


def _replace_result(editor: Editor, loop: LoopParts, item: Node, value: Any) -> None:
    if isinstance(value, StateAfter):
        assert value.last is not None, "checked by _bind"
        editor.replace(item, value.last)
        return
    if not isinstance(value, Written):
        editor.replace(item, value.node)
        return
    for user in list(item.users):
        new = _table_after(editor, value, loop, user)
        assert value.rows is not None
        if new is value.rows.node and user.target is aten.narrow.default:
            editor.replace(user, new)
        else:
            inherit(new, item, NAME)
            user.replace_input_with(item, new)


def _interchange(scope: Scope) -> str:
    """Rewrites one loop over tokens in its outer module; returns what was found. Raises Refused, nothing being changed
    but dead nodes left in front of the loop."""
    assert scope.loop is not None
    assert scope.parent is not None
    found = dependences(scope)
    if scope.loop.axis != "token":
        kind = scope.loop.axis
        raise Refused(f"a loop over {kind}s keeps no token dim, so its iterations can't be rows of one tensor")
    editor = Editor(scope.parent.module, NAME)
    with editor.before(scope.loop.node):
        batcher = _prepare(scope, editor)
        values = batcher.run()
        _bind(editor, scope.loop, values)
    return _found_text(found)


def _found_text(found: list[Dependence]) -> str:
    vectors = "; ".join(str(item) for item in found) or "none"
    return f"all tokens at once, layer by layer; distances along (tokens, layers): {vectors}"


def _keys(scope: Scope) -> tuple[str, ...]:
    """Spec keys of the first attention or recurrence in the loop, else of the loop."""
    assert scope.loop is not None
    for inner in scope.walk():
        for node in inner.module.graph.nodes:
            if node.target in (tree_attention, causal_attention) or recurrence_of(node.target) is not None:
                return tuple(node.meta.get("keys", ()))
    return tuple(scope.loop.node.meta.get("keys", ()))


def _candidates(module: GraphModule) -> list[Scope]:
    """Loops over tokens or steps that contain a loop over layers, outer ones first."""
    return [
        scope
        for scope in Scope(module).walk()
        if scope.loop is not None and scope.loop.axis in ("token", "step") and contains_layers(scope)
    ]


def layer_major(module: GraphModule, graph: str = "") -> tuple[GraphModule, tuple[Note, ...]]:
    """A copy of the module with its token loops turned inside out where that is legal, and notes: what was done, or the
    reason of the refusal.

    `graph` names the module in the notes. The module itself comes back where nothing is done.
    """
    if not _candidates(module):
        return module, ()
    work = clone(module)
    erase_dead(work)
    notes: list[Note] = []
    changed = False
    for scope in _candidates(work):
        try:
            message = _interchange(scope)
        except Refused as refused:
            notes.append(Note(NAME, graph, str(refused), False, _keys(scope)))
        else:
            notes.append(Note(NAME, graph, message, True, _keys(scope)))
            changed = True
    if not changed:
        return module, tuple(notes)
    erase_dead(work)
    prune(work)
    return finish(work), tuple(notes)


@predicate(LAYER_MAJOR)
def layer_major_faults(program: DecodeProgram) -> list[str]:
    """Loops over tokens or steps that still contain a loop over layers, other than those of `draft` in which a token's
    final output feeds a later one (that is proved again here)."""
    faults = []
    for name, module in program.graphs.items():
        for scope in _candidates(module):
            assert scope.loop is not None
            try:
                dependences(scope)
                reason = "its dependences allow the interchange"
            except Refused as refused:
                if refused.final and name == "draft":
                    continue
                reason = str(refused)
            faults.append(f"{name}: `{scope.loop.node.name}` is a loop over {scope.loop.axis}s around layers: {reason}")
    return faults


@dataclass(frozen=True, slots=True)
class LayerMajor(Pass):
    """loop token { loop layer { B } } -> loop layer { B over all tokens }, in every step graph where it is legal."""

    name: ClassVar[str] = NAME
    requires: ClassVar[frozenset[str]] = frozenset({INDEX_SAFE, TREE_MASKED})
    establishes: ClassVar[frozenset[str]] = frozenset({LAYER_MAJOR})
    preserves: ClassVar[frozenset[str]] = frozenset({INDEX_SAFE, TREE_MASKED})

    def run(self, program: DecodeProgram, ctx: PassContext) -> PassResult:
        """Visits every graph; a refused loop stays, with its reason in the notes."""
        notes: list[Note] = []
        graphs = {}
        for name, module in program.graphs.items():
            made, found = layer_major(module, name)
            notes.extend(found)
            if any(note.fired for note in found):
                graphs[name] = made
        return PassResult(program.with_graphs(**graphs), bool(graphs), tuple(notes))
