"""The rewriting of one step graph: commits in place, new rows written into the cache and read from there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.fx import GraphModule, Node

from specc.ir import ops
from specc.ir.build import output_node
from specc.ir.edit import Editor, LoopParts, add_invariant, inherit, is_impure, is_loop, loop_parts
from specc.ir.port import Port
from specc.ir.scope import named_arguments
from specc.passes.plan_buffers.common import (
    CACHED,
    NAME,
    Plan,
    Refused,
    bound_slots,
    outside,
    sliced_slot,
    slot_of,
    stacked_result,
    unbind,
)


def commits_in_place(module: GraphModule, step: str, plan: Plan) -> None:
    """commit_path of candidates becomes commit_path_ within the cache; append_rows of candidates vanishes."""
    changed: set[str] = set()
    for node in list(module.graph.nodes):
        if not is_loop(node):
            continue
        parts = loop_parts(node)
        for item in list(parts.body.graph.nodes):
            if item.target not in (ops.commit_path, ops.append_rows):
                continue
            arguments = named_arguments(item)
            source = sliced_slot(parts, arguments["candidate" if item.target is ops.commit_path else "rows"])
            if source not in plan.home:
                continue
            cache = arguments["cache"]
            for result in stacked_result(parts, item):
                changed.update(bound_slots(module, result))
            if item.target is ops.commit_path:
                editor = Editor(parts.body, NAME)
                with editor.before(item):
                    editor.call(
                        ops.commit_path_,
                        cache,
                        arguments["path"],
                        arguments["start"],
                        arguments["count"],
                        arguments["fast_reorder"],
                    )
                what = "moved within the cache in ascending order: accept's path has path[j] >= j (I7)"
            else:
                what = "already in place: the accepted rows are a prefix of the tail"
            item.replace_all_uses_with(cache)
            parts.body.graph.erase_node(item)
            plan.note(step, f"`{source}`: {what}")
    unbind(module, changed)


def append_loop(module: GraphModule, rows: Node) -> tuple[LoopParts, dict[str, Any], str] | None:
    """The loop that only appends the stacked `rows` to a cache slot: the loop, append_rows' operands, the slot."""
    users = [user for user in rows.users if is_loop(user)]
    if len(rows.users) != 1 or not users:
        return None
    parts = loop_parts(users[0])
    calls = [node for node in parts.body.graph.nodes if node.op == "call_function"]
    if len(calls) != 1 or calls[0].target is not ops.append_rows:
        return None
    arguments = named_arguments(calls[0])
    slot = sliced_slot(parts, arguments["cache"])
    if slot is None or outside(parts, arguments["rows"]) is not rows:
        return None
    output = output_node(module)
    for result in stacked_result(parts, calls[0]):
        values: Any = output.args[0]
        ports = [port for port, value in zip(output.meta["ports"], values, strict=True) if value is result]
        if any(port != Port("slot", slot) for port in ports):
            return None
    return parts, {name: outside(parts, value) for name, value in arguments.items()}, slot


@dataclass(frozen=True, slots=True)
class Tail:
    """Where the new rows of one attention operand go: count None appends all of them (candidates).

    `append` is the loop at value level that appended them; its results are then the cache itself.
    """

    cache: Node
    rows: Node
    count: Node | None
    slots: frozenset[str]
    append: LoopParts | None = None


def tail_of(module: GraphModule, parts: LoopParts, attention: Node, which: str, plan: Plan) -> Tail:
    """The tail for K or V (`which`) of an attention. Raises Refused where its rows are not simply appended."""
    arguments = named_arguments(attention)
    cache, rows = arguments[f"{which}_cache"], arguments[f"{which}_new"]
    slot = sliced_slot(parts, cache)
    if slot is None:
        raise Refused(f"`{attention.name}` does not read a slice of a cache slot")
    results = stacked_result(parts, rows)
    length = outside(parts, arguments["length"])
    if len(results) != 1:
        raise Refused(f"the new rows of `{attention.name}` are not stacked once")
    appended = append_loop(module, results[0])
    if appended is not None:
        loop, operands, target = appended
        if target != slot or operands["start"] is not length:
            raise Refused(f"the rows of `{attention.name}` are appended elsewhere than behind those that it sees")
        check_last_reader(module, outside(parts, cache), parts.node, loop.node)
        hoist(module, operands["count"], parts.node)
        return Tail(cache, rows, operands["count"], frozenset({slot}), loop)
    if slot_of(length) != "length":
        raise Refused(f"`{attention.name}` does not see the committed rows of slot `length`")
    check_last_reader(module, outside(parts, cache), parts.node, parts.node)
    slots = bound_slots(module, results[0])
    if any(plan.home.get(name) != slot for name in slots):
        raise Refused(f"the new rows of `{attention.name}` become {slots}, not the tail of `{slot}`")
    return Tail(cache, rows, None, frozenset(slots))


def check_last_reader(module: GraphModule, cache: Node, writer: Node, append: Node) -> None:
    """Condition 5: nothing after the loop `writer` (but the append itself) reads the cache's old value."""
    order = {node: number for number, node in enumerate(module.graph.nodes)}
    for user in cache.users:
        if order[user] > order[writer] and user is not append and user.users:
            raise Refused(f"`{user.name}` reads the old value of `{cache.name}` later in the step")


def hoist(module: GraphModule, node: Node, before: Node) -> None:
    """Move `node` and what it depends on in front of the loop `before`. Raises Refused where it depends on the loop."""
    order = {item: number for number, item in enumerate(module.graph.nodes)}
    moved: set[Node] = set()
    stack = [node]
    while stack:
        item = stack.pop()
        if item in moved or order[item] < order[before]:
            continue
        if item is before or is_impure(item):
            raise Refused("how many rows are appended is known only after the loop")
        moved.add(item)
        stack.extend(item.all_input_nodes)
    for item in sorted(moved, key=order.__getitem__):
        before.prepend(item)


def later_read(parts: LoopParts, attention: Node, caches: tuple[Node, Node]) -> Node | None:
    """A read of a cache slice after the attention, which would see the rows written in front of it."""
    order = {node: number for number, node in enumerate(parts.body.graph.nodes)}
    readers = [user for cache in caches for user in cache.users if order[user] > order[attention]]
    return readers[0] if readers else None


def rows_in_tail(module: GraphModule, step: str, plan: Plan) -> None:
    """New rows of attentions over cache slots are written into the cache and read from there."""
    for node in list(module.graph.nodes):
        if not is_loop(node):
            continue
        parts = loop_parts(node)
        for attention in [item for item in parts.body.graph.nodes if item.target in CACHED]:
            try:
                tails = [tail_of(module, parts, attention, which, plan) for which in ("k", "v")]
                reader = later_read(parts, attention, (tails[0].cache, tails[1].cache))
                if reader is not None:
                    raise Refused(f"`{reader.name}` reads the cache after `{attention.name}`")
                if named_arguments(attention).get("offset", 0) != 0:
                    raise Refused(f"`{attention.name}` is one row of a token loop")
            except Refused as reason:
                plan.note(step, f"new rows stay values: {reason}", fired=False)
                continue
            write_tail(module, parts, attention, tails)
            names = ", ".join(sorted(f"`{name}`" for tail in tails for name in tail.slots))
            plan.note(step, f"{names}: rows written behind those that attention sees, read from there")
            parts = loop_parts(node)


def write_tail(module: GraphModule, parts: LoopParts, attention: Node, tails: list[Tail]) -> None:
    """Insert the writes, put the cached attention in place of the old one, drop the bound slots."""
    arguments = named_arguments(attention)
    inside = {outside(parts, place): place for place in parts.invariant_inside}
    counts: list[Node | None] = []
    for tail in tails:
        if tail.count is not None and tail.count not in inside:
            inside[tail.count] = add_invariant(parts.node, tail.count, "count")
        counts.append(None if tail.count is None else inside[tail.count])
    editor = Editor(parts.body, NAME)
    with editor.before(attention):
        for tail, count in zip(tails, counts, strict=True):
            more = () if count is None else (count,)
            editor.call(ops.append_rows_, tail.cache, tail.rows, arguments["length"], *more)
        kept = {name: value for name, value in arguments.items() if name not in ("k_new", "v_new")}
        target = CACHED[attention.target]  # type: ignore[index]
        names = [argument.name for argument in target._schema.arguments if argument.name in kept]
        made = editor.call(target, *(kept[name] for name in names), name=attention.name)
    inherit(made, attention, NAME)
    attention.replace_all_uses_with(made)
    parts.body.graph.erase_node(attention)
    unbind(module, {name for tail in tails for name in tail.slots})
    for tail in tails:
        if tail.append is not None:
            append = tail.append
            cache = outside(parts, tail.cache)
            for results in append.results().values():
                for result in results:
                    result.replace_all_uses_with(cache)


def drop_placeholders(module: GraphModule, slots: set[str]) -> None:
    """Erase the unread placeholders of slots that are no longer stored."""
    for node in list(module.graph.nodes):
        if slot_of(node) in slots and not node.users:
            module.graph.erase_node(node)
