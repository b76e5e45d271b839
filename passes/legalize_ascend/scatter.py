"""One scatter per cache and step: what a commit moves and the step's new rows are joined and written together."""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from specc.ir import ops
from specc.ir.build import fake, output_node
from specc.ir.edit import Editor, inherit
from specc.ir.port import Port
from specc.passes.legalize_ascend.chains import ATTENTION, Chain, Source, slot_of
from specc.passes.legalize_ascend.common import NAME, At, Place, Plan, Refused, aten, hoist
from specc.passes.legalize_ascend.conditions import Write, formula

MAX_SOURCES = 2


def write_once(chain: Chain, step: str, plan: Plan) -> Node | None:
    """Puts the scatter in place of the chain's writes and returns it; None where the graph writes nothing to it."""
    sources = chain.sources()
    if not sources:
        return None
    if len(sources) > MAX_SOURCES or any(item.path is not None for item in sources[1:]):
        raise Refused(f"{len(sources)} groups of rows are written to `{chain.slot}`")
    barrier = chain.attentions[0] if chain.attentions else chain.versions[-1]
    hoist(chain.place.module, [item.rows for item in sources if item.rows is not barrier], barrier)
    first_row = _start(chain.place, sources, plan)
    plan.writes.append(_write(step, chain.slot, first_row, sources))
    start = plan.inside(first_row, chain.place)
    editor = Editor(chain.place.module, NAME)
    with editor.before(barrier, *chain.versions[1:]):
        rows = _rows(editor, chain, sources, plan)
        made = editor.call(ops.npu_scatter_update, chain.root, start, rows, 1, name=f"{_part(chain)}_placed")
    last = chain.versions[-1]
    if last is not chain.root:
        inherit(made, last, NAME)
        last.replace_all_uses_with(made, delete_user_cb=lambda user: user.target not in ATTENTION)
    else:
        _returned(chain, made)
    words = "the rows that the commit moves and the new ones, joined" if len(sources) > 1 else "one group of rows"
    plan.note(step, f"`{chain.slot}`: one scatter of {words}")
    return made


def _write(step: str, slot: str, first_row: At, sources: list[Source]) -> Write:
    """What the conditions are proved of."""
    groups = tuple(
        (formula(item.start.node), None if item.count is None else formula(item.count.node)) for item in sources
    )
    counts = tuple(count for _, count in groups if count is not None)
    return Write(step, slot, formula(first_row.node), counts, groups)


def _part(chain: Chain) -> str:
    """k or v (or the slot's name)."""
    name = chain.slot.removesuffix("_cache")
    return name.rpartition("_")[2] or name


def _rows(editor: Editor, chain: Chain, sources: list[Source], plan: Plan) -> Node:
    place, first = chain.place, sources[0]
    if len(sources) == 1 and first.path is None:
        return first.rows
    count = first.count
    if count is None:
        raise Refused("rows that nobody counts stand in front of others")
    path = first.path or _whole(place, first.rows, count, plan)
    second = sources[1].rows if len(sources) > 1 else None
    numbers = plan.inside(path, place), plan.inside(count, place)
    return editor.call(ops.joined_rows, first.rows, second, *numbers, name=f"{_part(chain)}_joined")


def _whole(place: Place, rows: Node, count: At, plan: Plan) -> At:
    """The path 0, 1, … of all rows, [1,P]."""
    number = int(rows.meta["val"].shape[1])

    def make(editor: Editor, like: Node, size: int) -> Node:
        return editor.call(aten.unsqueeze.default, editor.call(ops.iota, like, size), 0, name="all_rows")

    return plan.outside("all_rows", [count], make, number)


def _start(place: Place, sources: list[Source], plan: Plan) -> At:
    """Where the rows begin: the last group's start less what the first one counts."""
    first, last = sources[0], sources[-1]
    if len(sources) == 1:
        if first.path is None or slot_of(first.start.node) == "length" or first.count is None:
            return first.start
        return plan.outside("start", [_length(place, plan), first.count], _less)
    assert first.count is not None
    return plan.outside("start", [last.start, first.count], _less)


def _less(editor: Editor, end: Node, count: Node) -> Node:
    return editor.call(aten.clamp_min.default, editor.call(aten.sub.Tensor, end, count), 0, name="first_row_written")


def _length(place: Place, plan: Plan) -> At:
    """The slot `length` as an operand of the step, which may not have read it before."""
    while place.parent is not None:
        place = place.parent
    for node in place.module.graph.nodes:
        if slot_of(node) == "length":
            return At(place, node)
    declared = plan.program.slots["length"]
    editor = Editor(place.module, NAME)
    first = next(node for node in place.module.graph.nodes if node.op != "placeholder")
    with editor.before(first):
        made = editor.placeholder("length", fake(declared.shape, declared.dtype), Port("slot", "length"))
    made.meta["keys"] = ("commit", "verify")
    return At(place, made)


def _returned(chain: Chain, made: Node) -> None:
    """The scatter becomes the slot's new value: the step had none, its new rows were to be seen by itself only."""
    place = chain.place
    value = made
    if place.loop is not None:
        assert place.parent is not None
        value = _stack(place, made)
        place = place.parent
    output = output_node(place.module)
    values: Any = output.args[0]
    output.args = ((*values, value),)
    output.meta["ports"] = (*output.meta["ports"], Port("slot", chain.slot))
    output.meta["val"] = (*output.meta["val"], value.meta["val"])


def _stack(place: Place, made: Node) -> Node:
    """One more stacked result of the loop."""
    assert place.loop is not None
    assert place.parent is not None
    inner = output_node(place.module)
    values: Any = inner.args[0]
    inner.args = ((*values, made),)
    inner.meta["val"] = (*inner.meta["val"], made.meta["val"])
    size = made.meta["val"]
    trip: Any = place.loop.args[2]
    stacked = size.new_empty((trip, *size.shape))
    place.loop.meta["val"] = (*place.loop.meta["val"], stacked)
    editor = Editor(place.parent.module, NAME)
    with editor.after(place.loop, place.loop):
        return editor.item(place.loop, len(values))
