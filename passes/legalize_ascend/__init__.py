"""legalize-ascend: the value-form program as the graph mode of an NPU runs it, one static graph per step.

    value level                                             NPU form
    K1 = commit_path(K, candidate, path, p, c)              rows = joined_rows(candidate, k, path, c)
    a = tree_attention(q, K1, V1, n, k, v, mask, …)         K' = npu_scatter_update(K, n - c, rows)
    candidate' = k; K' = K1                          ->     a = fused attention(q, K', V', hidden); candidate' = k

    a = causal_attention(q, K, V, n, k, v, …)               K' = npu_scatter_update(K, n, k)
    K' = append_rows(K, k, n, count)                  ->     a = fused attention(q, K', V', hidden)

where K is one layer's cache, and `hidden` = attention_mask(n, mask, positions, capacity) is made once per step outside
the loop over layers. A cache stays in its memory only if its graph input has one reader, the scatter, and one writer,
the copy of the result (design 09): so everything that a step writes to a cache is joined into one group of rows, loops
that touch one cache become one loop, and attention reads what the scatter returned.

Rows beyond those that count are written too, as junk. Nobody sees them, on these conditions, each of them checked:
(1) of two joined groups the second begins where what counts of the first ends; (2) the junk begins at or behind the
last row that any step takes as valid in the state that this step leaves; (3) no step without a scatter makes rows
valid (`conditions`, over all small states that the program can reach); (4) start + rows <= capacity for every state:
caches grow to what the range of `start` allows, and a prefill takes at most `prefill_chunk` tokens. A drafter's nodes
stay in tables beside its cache; their attention takes both parts, and no rows are written for it.

Dense parts become the device's operators: rms_norm, rotary embedding with full tables made once, silu(gate) * up. Delta
rules, convolutions, experts, drafting and acceptance keep their ops, which the backend writes out. Raises SPC317 where
a cache can't be served by one scatter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch.fx import GraphModule, Node

from specc.diagnostics import Diagnostic, DiagnosticError, error
from specc.ir.clone import clone
from specc.ir.edit import erase_dead, finish, is_loop, loop_parts, retype
from specc.ir.printer import fingerprint
from specc.ir.prune import prune
from specc.manager import Pass, PassContext, PassResult
from specc.passes.legalize_ascend.attention import attend, attend_apart, left_over
from specc.passes.legalize_ascend.capacity import grown
from specc.passes.legalize_ascend.chains import WRITES, cache_slots, chains, slot_behind, slot_of
from specc.passes.legalize_ascend.common import NAME, At, Place, Plan, Refused, walk_loops
from specc.passes.legalize_ascend.conditions import prove
from specc.passes.legalize_ascend.dense import dense_parts
from specc.passes.legalize_ascend.legal import illegal
from specc.passes.legalize_ascend.loops import inline_single, merge, one_select
from specc.passes.legalize_ascend.prepared import prepare
from specc.passes.legalize_ascend.recurrent import recurrent
from specc.passes.legalize_ascend.scatter import write_once
from specc.program import INDEX_SAFE, LAYER_MAJOR, NPU_LEGAL, TREE_MASKED, DecodeProgram

__all__ = ["LegalizeAscend", "illegal"]


@dataclass(frozen=True, slots=True)
class LegalizeAscend(Pass):
    """See the module's docstring.

    `prefill_chunk`: the most prompt tokens of one prefill call (0: 512, or the longest sequence if that is shorter).
    `row_multiple`: caches that grow get a multiple of this many rows, so that rows of masks are aligned.
    """

    name: ClassVar[str] = NAME
    requires: ClassVar[frozenset[str]] = frozenset({INDEX_SAFE, TREE_MASKED, LAYER_MAJOR})
    establishes: ClassVar[frozenset[str]] = frozenset({NPU_LEGAL})
    preserves: ClassVar[frozenset[str]] = frozenset({INDEX_SAFE, TREE_MASKED, LAYER_MAJOR})

    prefill_chunk: int = 0
    row_multiple: int = 32

    def run(self, program: DecodeProgram, ctx: PassContext) -> PassResult:
        """Rewrites every graph. Raises DiagnosticError (SPC317) where a cache can't be written by one scatter."""
        if self.prefill_chunk < 0 or self.row_multiple < 1:
            remedy = "prefill_chunk is 0 or more, row_multiple 1 or more"
            raise DiagnosticError([error("SPC252", f"options of `{NAME}` out of range", help=remedy)])
        caches = cache_slots(program)
        capacity = max((program.slots[name].shape[2] for name in caches), default=0)
        plan = Plan(program, caches, capacity)
        graphs: dict[str, GraphModule] = {}
        findings: list[Diagnostic] = []
        for step, module in program.graphs.items():
            work = clone(module)
            try:
                legalize(work, step, plan)
            except Refused as reason:
                findings.append(error("SPC317", f"graph `{step}` has no form for an NPU: {reason}"))
                continue
            graphs[step] = work
        if not findings:
            findings += _unproved(replace(program, graphs=graphs), plan)
        plan.note("", "values stay values: the graph engine plans memory (no plan-buffers, no fuse-linear here)")
        if findings:
            raise DiagnosticError(findings)
        made = prepare(recurrent(replace(program, graphs=graphs), plan), plan)
        made = grown(made, plan, self.prefill_chunk, self.row_multiple)
        for module in made.graphs.values():
            retype(module)
            finish(module)
        changed = fingerprint(made) != fingerprint(program)
        return PassResult(made if changed else program, changed, tuple(plan.notes))


def _unproved(program: DecodeProgram, plan: Plan) -> list[Diagnostic]:
    """The condition that does not hold, if any."""
    try:
        prove(program, plan.writes)
    except Refused as reason:
        return [error("SPC317", str(reason))]
    plan.note("", "rows that do not count are seen by no step: checked on all small states")
    return []


def legalize(module: GraphModule, step: str, plan: Plan) -> None:
    """One step graph, edited in place."""
    top = Place(module)
    gather_layers(module, plan)
    written: dict[Node, Node] = {}
    regions = [top, *(Place(loop_parts(node).body, node, top) for node in walk_loops(module, "layer"))]
    for place in regions:
        found = list(chains(place, plan.caches))
        for chain in found:
            made = write_once(chain, step, plan)
            if made is not None:
                written |= dict.fromkeys(chain.versions, made)
        for node in dict.fromkeys(item for chain in found for item in chain.attentions):
            k, v = node.args[1:3]
            attend(place, node, written[k], written[v], step, plan)  # type: ignore[index]
    for place, node in left_over(top):
        attend_apart(place, node, step, plan)
    for place in top.walk():
        dense_parts(place, step, plan)
    erase_dead(module)
    prune(module)


def gather_layers(module: GraphModule, plan: Plan) -> None:
    """All of a step that happens to one cache into one loop over layers."""
    top = Place(module)
    for node in walk_loops(module, "layer"):
        if loop_parts(node).trip == 1 and _only_writes(node) and not _reads_layers(node):
            inline_single(module, node)
    one_select(module, [node for node in module.graph.nodes if slot_of(node) in plan.caches])
    while _merge_one(module, plan, top):
        pass


def _merge_one(module: GraphModule, plan: Plan, top: Place) -> bool:
    loops = walk_loops(module, "layer")
    for position, second in enumerate(loops):
        for first in loops[:position]:
            feeds = any(item.args and item.args[0] is first for item in loop_parts(second).sliced)
            if not feeds or not _touches(top, first, plan) or not _touches(top, second, plan):
                continue
            try:
                merge(module, first, second)
            except Refused:
                continue
            return True
    return False


def _touches(top: Place, node: Node, plan: Plan) -> bool:
    """True where a loop slices a version of a cache."""
    parts = loop_parts(node)
    return any(
        isinstance(item, Node) and slot_behind(At(top, item)) in plan.caches and len(item.meta["val"].shape) == 5
        for item in parts.sliced
        if isinstance(item, Node) and not isinstance(item.meta["val"], (tuple, list))
    )


def _only_writes(node: Node) -> bool:
    calls = [item for item in loop_parts(node).body.graph.nodes if item.op == "call_function"]
    return bool(calls) and all(item.target in WRITES for item in calls)


def _reads_layers(node: Node) -> bool:
    """True where it slices what another loop over layers stacked."""
    return any(
        isinstance(item, Node) and item.args and isinstance(item.args[0], Node) and is_loop(item.args[0])
        for item in loop_parts(node).sliced
    )
