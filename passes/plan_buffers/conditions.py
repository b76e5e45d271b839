"""Conditions 1 to 3 of plan-buffers, proved on the graphs: who reads candidates, from where, along which path."""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from specc.ir import ops
from specc.ir.build import output_node
from specc.ir.edit import LoopParts, is_loop, loop_parts
from specc.ir.port import Port
from specc.ir.scope import named_arguments
from specc.passes.plan_buffers.common import (
    CACHED,
    Refused,
    bound_slots,
    outside,
    sliced_slot,
    slot_of,
    stacked_result,
)
from specc.program import DecodeProgram, output_ports


def candidate_homes(program: DecodeProgram) -> dict[str, str]:
    """Candidate slot -> cache slot, from the verify graph. Raises Refused."""
    homes: dict[str, str] = {}
    verify = program.graphs["verify"]
    for node in verify.graph.nodes:
        if is_loop(node):
            for _, cache, rows, parts in attention_rows(node):
                for result in stacked_result(parts, rows):
                    for slot in bound_slots(verify, result):
                        homes[slot] = cache
    wanted = moved_rows(program)
    if wanted - set(homes):
        raise Refused(f"`{min(wanted - set(homes))}` is not the stack of an attention's new rows")
    for name, cache in homes.items():
        nodes, spare = program.slots[name].shape[2], program.slots[cache].shape[2]
        longest = program.attributes.get("max_sequence_length")
        if longest is not None and spare < longest + nodes:
            raise Refused(f"`{cache}` has {spare} rows, fewer than max_sequence_length + {nodes}")
    return homes


def moved_rows(program: DecodeProgram) -> set[str]:
    """Candidate slots whose rows are moved into committed slots as they are: KV rows."""
    found: set[str] = set()
    for module in program.graphs.values():
        for node in module.graph.nodes:
            parts = loop_parts(node) if is_loop(node) else None
            for item in parts.body.graph.nodes if parts is not None else ():
                if item.target in (ops.commit_path, ops.append_rows):
                    assert parts is not None
                    arguments = named_arguments(item)
                    rows = "candidate" if item.target is ops.commit_path else "rows"
                    source, into = (sliced_slot(parts, arguments[name]) for name in (rows, "cache"))
                    if source is not None and (into is None or program.slots[into].role == "committed"):
                        found.add(source)
    return {name for name in found if program.slots[name].role == "candidate"}


def attention_rows(node: Node) -> list[tuple[Node, str, Node, LoopParts]]:
    """(attention, cache slot, new rows, loop) for K and V of every attention over a cache slot in a layer loop."""
    parts = loop_parts(node)
    found = []
    for item in parts.body.graph.nodes:
        if item.target in CACHED:
            arguments = named_arguments(item)
            for cache, rows in (("k_cache", "k_new"), ("v_cache", "v_new")):
                base, new = arguments[cache], arguments[rows]
                if base.op == "call_function" and base.target is ops.commit_path:
                    base = named_arguments(base)["cache"]
                slot = sliced_slot(parts, base)
                if slot is not None:
                    found.append((item, slot, new, parts))
    return found


def check_commit(program: DecodeProgram, homes: dict[str, str]) -> None:
    """Conditions 1 to 3: who reads candidates, where the commit starts, what its path is. Raises Refused."""
    for step, module in program.graphs.items():
        writes = {port.name for port in output_ports(module) if port.kind == "slot"}
        if step != "verify" and writes & set(homes):
            raise Refused(f"{step} writes the candidate rows `{min(writes & set(homes))}`")
        if step in ("draft", "accept") and "length" in writes:
            raise Refused(f"{step} moves `length` between verify and commit")
        for node in module.graph.nodes:
            if slot_of(node) in homes:
                for user in node.users:
                    if not is_loop(user):
                        raise Refused(f"{step}: `{user.name}` reads candidate rows outside a loop over layers")
                    check_moves(program, step, loop_parts(user), homes)


def check_moves(program: DecodeProgram, step: str, parts: LoopParts, homes: dict[str, str]) -> None:
    """Every reader of a candidate slice moves it into its home cache, from where it lies. Raises Refused."""
    for place in parts.sliced_inside:
        slot = sliced_slot(parts, place)
        if slot not in homes:
            continue
        for user in place.users:
            if user.target not in (ops.commit_path, ops.append_rows):
                raise Refused(f"{step}: `{user.name}` reads candidate rows")
            arguments = named_arguments(user)
            source = arguments["candidate" if user.target is ops.commit_path else "rows"]
            if source is not place or sliced_slot(parts, arguments["cache"]) != homes[slot]:
                raise Refused(f"{step}: `{user.name}` moves `{slot}` elsewhere than into `{homes[slot]}`")
            start = outside(parts, arguments["start"])
            if not is_committed_length(program, step, start):
                raise Refused(f"{step}: `{user.name}` does not start where verify wrote the candidates")
            if user.target is ops.commit_path:
                check_path(program, step, outside(parts, arguments["path"]))


def recorded(program: DecodeProgram, slot: str) -> Node | None:
    """What commit records in a pending slot."""
    commit = program.graphs["commit"]
    values: Any = output_node(commit).args[0]
    for port, value in zip(output_ports(commit), values, strict=True):
        if port == Port("slot", slot):
            return value if isinstance(value, Node) else None
    return None


def is_committed_length(program: DecodeProgram, step: str, start: Any) -> bool:
    """`length` in commit itself, or in verify and flush the pending slot in which commit records it."""
    slot = slot_of(start)
    if slot is None:
        return False
    if program.slots[slot].role == "pending":
        source = recorded(program, slot)
        return source is not None and slot_of(source) == "length"
    return slot == "length" and step == "commit"


def check_path(program: DecodeProgram, step: str, path: Any) -> None:
    """The path is accept's result: ascending with path[j] >= j (I7). Raises Refused."""
    slot = slot_of(path)
    if slot is not None and program.slots[slot].role == "pending":
        path = recorded(program, slot)
    port = path.meta.get("port") if isinstance(path, Node) and path.op == "placeholder" else None
    if port != Port("input", "path"):
        raise Refused(f"{step}: the path of the commit is not the one that accept returns, so its order is unknown")
