"""page-caches: the target's caches become pages of a pool that all sequences share, named by a block table.

    slot K: [L,B,C,Hkv,D]                               slot K: [L,P,page,Hkv,D]
                                                        slot block_table: i32[B,blocks]; slot page_owner: i32[P]
                                                        take_pages_(block_table, page_owner, n, count, rows, page)
    append_rows_(K, k, n, count)                  ->    append_pages_(K, block_table, k, n, count)
    commit_path_(K, path, n, count, fast)               commit_pages_(K, block_table, path, n, count, fast)
    attended = tree_attention_cached(q, K, V, n, …)     attended = tree_attention_paged(q, K, V, block_table, n, …)

Pages are taken on the device, in front of the loop over layers that appends rows to them, for all rows that it appends:
the count of a prefill, one row of a plain step, all nodes of a tree (of sequences that are finished, too: their rows
are appended as well). So no row is ever written to a page of another sequence, and the host is not asked. They are
given back when a row is reset, restored over or cleared; a rejected node's rows stay and are used by the next step.

A pool has blocks + 1 pages for every sequence, blocks = ceil(C / page): page 0 belongs to nobody, and with every
sequence holding at most `blocks` pages one is always free when one is lacking.

A cache is taken where all that touches it are these ops, on its slices in loops over layers, and rows are appended at
slot `length` (conditions checked on the graphs; a note says why where they fail). A drafter's cache, whose rows lag
behind or run ahead, stays as it is. A cache of the target that can't be taken is an error (SPC203).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch.fx import GraphModule, Node

from specc.diagnostics import DiagnosticError, error
from specc.ir import ops
from specc.ir.clone import clone
from specc.ir.dims import BATCH
from specc.ir.edit import Editor, LoopParts, add_invariant, finish, inherit, is_loop, loop_parts, retype
from specc.ir.infer import fake
from specc.ir.port import Port, ValueRange
from specc.ir.scope import named_arguments
from specc.manager import ALL_PROPERTIES, Note, Pass, PassContext, PassResult
from specc.program import BUFFERED, INDEX_SAFE, LAYER_MAJOR, DecodeProgram, Slot, output_ports

NAME = "page-caches"
KEYS = ("runtime.kv_layout", "runtime.kv_block_size")
TABLE, OWNER = "block_table", "page_owner"
PAGED: Mapping[object, torch._ops.OpOverload] = {
    ops.append_rows_: ops.append_pages_,
    ops.commit_path_: ops.commit_pages_,
    ops.tree_attention_cached: ops.tree_attention_paged,
    ops.causal_attention_cached: ops.causal_attention_paged,
}
SHARED = -1
"""The batch dim of a slot that all sequences share."""


class Refused(Exception):
    """A cache can't be paged; the message is the reason."""


@dataclass(frozen=True, slots=True)
class PageCaches(Pass):
    """Caches of `page` rows a page; see the module's docstring."""

    name: ClassVar[str] = NAME
    requires: ClassVar[frozenset[str]] = frozenset({BUFFERED, INDEX_SAFE, LAYER_MAJOR})
    preserves: ClassVar[frozenset[str]] = ALL_PROPERTIES
    page: int = 128

    def run(self, program: DecodeProgram, ctx: PassContext) -> PassResult:
        """Raises DiagnosticError (SPC203) for a cache of the target that can't be paged."""
        caches, notes = pageable(program, ctx)
        if not caches:
            return PassResult(program, False, tuple(notes))
        slots, ranges = paged_slots(program, caches, self.page)
        graphs = {}
        for step, module in program.graphs.items():
            graphs[step], count = paged(clone(module), caches, slots, self.page)
            if count:
                message = f"{count} uses of {', '.join(f'`{name}`' for name in sorted(caches))} go through the table"
                notes.append(Note(NAME, step, message, True, KEYS))
        made = replace(program, graphs=graphs, slots=slots, ranges={**program.ranges, **ranges})
        return PassResult(made, True, tuple(notes))


def pageable(program: DecodeProgram, ctx: PassContext) -> tuple[frozenset[str], list[Note]]:
    """The slots that become pools, and why other caches do not. Raises DiagnosticError (SPC203)."""
    caches = {name for name, slot in program.slots.items() if _is_cache(slot)}
    reasons: dict[str, str] = {}
    for step, module in program.graphs.items():
        for name in sorted(caches):
            try:
                _check(program, step, module, name)
            except Refused as reason:
                reasons.setdefault(name, f"{step}: {reason}")
    _refuse(reasons, ctx)
    # Keys and values of an attention go through the table together.
    for one, other in _pairs(program):
        for first, mate in ((one, other), (other, one)):
            if first in reasons and mate is not None:
                reasons.setdefault(mate, f"`{first}` is not paged")
    notes = [
        Note(NAME, "commit", f"`{name}` stays one piece for each sequence: {reason}", False, KEYS)
        for name, reason in sorted(reasons.items())
    ]
    return frozenset(caches - set(reasons)), notes


def _refuse(reasons: Mapping[str, str], ctx: PassContext) -> None:
    """Raises DiagnosticError (SPC203) for a cache of the target; a drafter's may stay as it is."""
    for name, reason in sorted(reasons.items()):
        if not name.startswith("draft_"):
            message = f"the cache `{name}` can't be paged: {reason}"
            raise DiagnosticError([error("SPC203", message, ctx.span(KEYS), help="write `kv_layout: contiguous`")])


def _is_cache(slot: Slot) -> bool:
    """K or V rows [L,B,C,Hkv,D] that are stored."""
    shape = slot.shape
    return slot.role == "committed" and len(shape) == 5 and slot.batch_dim == 1 and slot.name.endswith("_cache")


def _slot_of(node: Any) -> str | None:
    port = node.meta.get("port") if isinstance(node, Node) and node.op == "placeholder" else None
    return port.name if port is not None and port.kind == "slot" else None


@dataclass(slots=True)
class _Use:
    """An op of PAGED in a loop over layers that reads or writes slices of caches, by the operands' names."""

    loop: Node
    node: Node
    caches: dict[str, str] = field(default_factory=dict)


def _uses(module: GraphModule) -> Iterator[_Use]:
    """Every op of PAGED in the loops of a step graph."""
    for loop in module.graph.nodes:
        if not is_loop(loop):
            continue
        parts = loop_parts(loop)
        sliced = dict(zip(parts.sliced_inside, parts.sliced, strict=True))
        for node in parts.body.graph.nodes:
            if node.target in PAGED:
                slots = {name: _slot_of(sliced.get(item)) for name, item in _cache_operands(node).items()}
                yield _Use(loop, node, {name: slot for name, slot in slots.items() if slot is not None})


def _cache_operands(node: Node) -> dict[str, Any]:
    given = named_arguments(node)
    return {name: given[name] for name in ("cache", "k_cache", "v_cache") if name in given}


def _pairs(program: DecodeProgram) -> Iterator[tuple[str | None, str | None]]:
    for module in program.graphs.values():
        for use in _uses(module):
            if "k_cache" in use.caches or "v_cache" in use.caches:
                yield use.caches.get("k_cache"), use.caches.get("v_cache")


def _outside(parts: LoopParts, node: Any) -> Any:
    return dict(zip(parts.inside, parts.operands, strict=True)).get(node, node)


def _check(program: DecodeProgram, step: str, module: GraphModule, name: str) -> None:
    """Raises Refused where a step does more with a cache than PAGED says."""
    if any(port.kind == "slot" and port.name == name for port in output_ports(module)):
        raise Refused("it is written as a whole")
    for place in [node for node in module.graph.nodes if _slot_of(node) == name]:
        for user in place.users:
            if not is_loop(user):
                raise Refused(f"`{user.name}` reads it outside a loop over layers")
            parts = loop_parts(user)
            if place in (*parts.carried, *parts.invariant):
                raise Refused(f"the loop `{user.name}` takes it whole")
            for inside, operand in zip(parts.sliced_inside, parts.sliced, strict=True):
                if operand is place:
                    _check_slice(parts, inside)


def _check_slice(parts: LoopParts, inside: Node) -> None:
    for user in inside.users:
        if user.target not in PAGED or inside not in _cache_operands(user).values():
            raise Refused(f"`{user.name}` touches it")
        given = named_arguments(user)
        if user.target is ops.append_rows_:
            if _slot_of(_outside(parts, given["start"])) != "length":
                raise Refused(f"`{user.name}` does not append rows at slot `length`")
            count = given.get("count")
            if count is not None and count not in parts.invariant_inside:
                raise Refused(f"how many rows `{user.name}` appends is known only in the loop")


def paged_slots(
    program: DecodeProgram, caches: frozenset[str], page: int
) -> tuple[dict[str, Slot], dict[str, ValueRange]]:
    """The slots with pools in place of caches, a table and the pages' owners; their ranges."""
    capacity = max(program.slots[name].shape[2] for name in caches)
    blocks = -(-capacity // page)
    pages = (blocks + 1) * BATCH
    slots = dict(program.slots)
    for name in caches:
        slot = slots[name]
        layers, _, _, *row = slot.shape
        slots[name] = replace(
            slot, shape=(layers, pages, page, *row), batch_dim=SHARED, doc=f"{slot.doc}: pages of {page}"
        )
    doc = "pages of every sequence in order; 0: none"
    slots[TABLE] = Slot(TABLE, (BATCH, blocks), torch.int32, "control", doc)
    doc = "whose a page is: sequence + 1, 0 for a free one; page 0 stays nobody's"
    slots[OWNER] = Slot(OWNER, (pages,), torch.int32, "control", doc, batch_dim=SHARED)
    return slots, {f"slot:{TABLE}": ValueRange(0, pages - 1), f"slot:{OWNER}": ValueRange(0, BATCH)}


def paged(module: GraphModule, caches: frozenset[str], slots: Mapping[str, Slot], page: int) -> tuple[GraphModule, int]:
    """A step graph (edited in place) whose uses of `caches` go through the table, and how many they are."""
    for node in module.graph.nodes:
        name = _slot_of(node)
        if name in caches:
            node.meta["val"] = fake(slots[name].shape, slots[name].dtype)
    uses = [use for use in _uses(module) if caches.issuperset(use.caches.values()) and use.caches]
    if not uses:
        return module, 0
    table, owner = (_placeholder(module, slots[name]) for name in (TABLE, OWNER))
    taken: set[tuple[Any, int]] = set()
    inside: dict[Node, Node] = {}
    for use in uses:
        if use.node.target is ops.append_rows_:
            _take(module, use, table, owner, page, taken)
        if use.loop not in inside:
            inside[use.loop] = add_invariant(use.loop, table, TABLE)
        _through(loop_parts(use.loop), use.node, inside[use.loop])
    if not owner.users:
        module.graph.erase_node(owner)
    retype(module)
    return finish(module), len(uses)


def _take(module: GraphModule, use: _Use, table: Node, owner: Node, page: int, taken: set[tuple[Any, int]]) -> None:
    """Pages for the rows that an op appends, in front of its loop, once for equal numbers of rows."""
    parts = loop_parts(use.loop)
    given = named_arguments(use.node)
    length = _outside(parts, given["start"])
    count = _outside(parts, given["count"]) if given.get("count") is not None else None
    rows = 0 if count is not None else int(given["rows"].meta["val"].shape[1])
    if (count, rows) in taken:
        return
    taken.add((count, rows))
    editor = Editor(module, NAME)
    with editor.before(use.loop, use.node):
        made = editor.call(ops.take_pages_, table, owner, length, count, rows, page)
    made.meta["keys"] = KEYS


def _through(parts: LoopParts, node: Node, table: Node) -> None:
    """The op with the table behind its caches."""
    caches = len(_cache_operands(node))
    first = 0 if node.target in (ops.append_rows_, ops.commit_path_) else 1
    place = first + caches
    arguments = (*node.args[:place], table, *node.args[place:])
    name = None if first == 0 else node.name
    made = node.graph.create_node("call_function", PAGED[node.target], arguments, dict(node.kwargs), name)
    node.prepend(made)
    made.meta |= node.meta
    inherit(made, node, NAME)
    node.replace_all_uses_with(made)
    parts.body.graph.erase_node(node)


def _placeholder(module: GraphModule, slot: Slot) -> Node:
    """A slot that the step did not read before."""
    editor = Editor(module, NAME)
    last = [node for node in module.graph.nodes if node.op == "placeholder"][-1]
    with editor.after(last):
        made = editor.placeholder(slot.name, fake(slot.shape, slot.dtype), Port("slot", slot.name))
    made.meta["keys"] = KEYS
    return made
