"""plan-buffers: from values to buffers. Caches and states change in place, KV candidates live in the cache's own tail.

    value level                                         buffer level
    attended = tree_attention(q, K, V, n, k, v, …)      append_rows_(K, k, n); append_rows_(V, v, n)
    candidate = stack of k over layers            ->    attended = tree_attention_cached(q, K, V, n, …)
    K' = commit_path(K, candidate, path, n, count)      commit_path_(K, path, n, count)
    K' = append_rows(K, stack of k, n, count)           append_rows_(K, k, n, count) in the layer's own iteration

where K is one layer's slice of a cache slot and n its committed length. Rows at and behind n are invisible until
`length` moves, so nobody sees candidates there; the cache has num_nodes spare rows. Conditions, all proved on the
graphs: (1) candidates are written by one step at row `length`, and read by nothing but the commit; (2) the commit
starts at the row that they were written at; (3) its path is accept's, ascending with path[j] >= j (I7), so that moving
rows upward in place equals a gather (I8); (4) in a deferred program the compaction stands before the write of the next
candidates; (5) no read of a cache's old value follows its overwriting. What fails a condition keeps its value form, and
a note says why. States, windows, factors and pending lists of recurrent layers: see `layers`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch.fx import GraphModule

from specc.ir import ops
from specc.ir.clone import clone
from specc.ir.edit import finish, is_loop, loop_parts
from specc.ir.op import info
from specc.ir.prune import prune
from specc.manager import Note, Pass, PassContext, PassResult, predicate
from specc.passes.plan_buffers.common import NAME, Plan, Refused, slot_of
from specc.passes.plan_buffers.conditions import candidate_homes, check_commit
from specc.passes.plan_buffers.layers import layers_in_place
from specc.passes.plan_buffers.rewrite import commits_in_place, drop_placeholders, rows_in_tail
from specc.program import BUFFERED, DEFERRED, INDEX_SAFE, LAYER_MAJOR, TREE_MASKED, DecodeProgram, output_ports

__all__ = ["PlanBuffers", "unplanned"]


@dataclass(frozen=True, slots=True)
class PlanBuffers(Pass):
    """Gives every value of the state its memory; see the module's docstring."""

    name: ClassVar[str] = NAME
    requires: ClassVar[frozenset[str]] = frozenset({INDEX_SAFE, TREE_MASKED, LAYER_MAJOR})
    establishes: ClassVar[frozenset[str]] = frozenset({BUFFERED})
    preserves: ClassVar[frozenset[str]] = frozenset({INDEX_SAFE, TREE_MASKED, LAYER_MAJOR, DEFERRED})

    def run(self, program: DecodeProgram, ctx: PassContext) -> PassResult:
        """Plans with the candidates in the tail where the conditions hold, else with candidates of their own."""
        refused: list[Note] = []
        try:
            homes = candidate_homes(program)
            check_commit(program, homes)
            made, plan = planned(program, homes)
            reasons = unplanned(made)
        except Refused as reason:
            reasons = [str(reason)]
        if reasons:
            message = f"candidates stay slots of their own: {reasons[0]}"
            refused.append(Note(NAME, "commit", message, False, ("commit", "verify")))
            made, plan = planned(program, {})
        fired = any(note.fired for note in plan.notes)
        return PassResult(made if fired else program, fired, (*refused, *plan.notes))


def planned(program: DecodeProgram, homes: dict[str, str]) -> tuple[DecodeProgram, Plan]:
    """The program at buffer level with these candidate slots in the tails of these caches."""
    plan = Plan(program, homes, [])
    graphs: dict[str, GraphModule] = {}
    for step, module in program.graphs.items():
        made = clone(module)
        commits_in_place(made, step, plan)
        prune(made)
        rows_in_tail(made, step, plan)
        prune(made)
        layers_in_place(made, step, plan)
        prune(made)
        drop_placeholders(made, set(homes))
        graphs[step] = finish(made)
    slots = dict(program.slots)
    for name, cache in homes.items():
        nodes = slots[name].shape[2]
        slots[name] = replace(slots[name], alias=f"rows [length, length + {nodes}) of {cache}, until committed")
    return replace(program, graphs=graphs, slots=slots), plan


@predicate(BUFFERED)
def unplanned(program: DecodeProgram) -> list[str]:
    """Why the program is not BUFFERED: a step is bound to a slot that is not stored, or a candidate has two homes."""
    aliased = {name for name, slot in program.slots.items() if slot.alias is not None}
    reasons = []
    for step, module in program.graphs.items():
        bound = {slot_of(node) for node in module.graph.nodes} & aliased
        bound |= {port.name for port in output_ports(module) if port.kind == "slot" and port.name in aliased}
        reasons += [f"{step} is bound to `{name}`, which is not stored" for name in sorted(filter(None, bound))]
        reasons += [f"{step}: {text}" for text in unordered_commits(module)]
    return reasons


def unordered_commits(module: GraphModule) -> list[str]:
    """Loops in which a compaction follows a write of new rows to the same cache: it would move the new rows."""
    found = []
    for node in module.graph.nodes:
        if not is_loop(node):
            continue
        written: set[Any] = set()
        for item in loop_parts(node).body.graph.nodes:
            declared = info(item.target) if isinstance(item.target, torch._ops.OpOverload) else None
            if declared is None or not declared.mutates:
                continue
            cache = item.args[0]
            if item.target is ops.commit_path_ and cache in written:
                found.append(f"`{item.name}` compacts a cache after new rows were written to it")
            if item.target is ops.append_rows_:
                written.add(cache)
    return found
