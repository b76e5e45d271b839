"""select-schedule: how the states of recurrent layers reach the nodes of a verify step, per layer.

    o, u = delta_rule_verify(S, …, "unscheduled")   ->   delta_rule_verify(S, …, "tree")
    o, u, _ = delta_rule(S, q, k, v, …)             ->   delta_rule_verify(S, …, None, None, "serial")    a verify chain
    o, u, S' = delta_rule(S, …) over a prompt       ->   delta_rule_chunk(S, …, 64)
    S' = delta_rule_commit(S, …, "steps")           ->   delta_rule_commit(S, …, "rank_n")                after "tree"

`replay` runs each root-to-leaf path again, `serial` goes from node to node with the state in registers, `hybrid`
follows heavy-light chains and keeps a state at branch nodes only, `tree` solves the masked UT form over all nodes at
once (SpecLA; design 04). All give the same values; the first three give the bits of plain decoding, and fold factors
one by one, as it would. `auto` takes the one with the least estimated time (`cost`) for the layer's sizes, the tree,
the batch and whether the nodes' states are results; its numbers are notes.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch.fx import GraphModule, Node

from specc.ir import ops
from specc.ir.clone import clone
from specc.ir.dims import CHUNK
from specc.ir.edit import Editor, finish
from specc.manager import Note, Pass, PassContext, PassResult
from specc.passes.select_schedule.choose import Choice, case_of, choose
from specc.passes.select_schedule.measured import DeviceName
from specc.passes.select_schedule.sites import (
    CHAIN,
    COMMIT,
    VERIFY,
    Site,
    argument_place,
    sites,
    state_is_read,
)
from specc.passes.select_schedule.tiles import FORM, Schedule
from specc.program import BUFFERED, DEFERRED, INDEX_SAFE, LAYER_MAJOR, TREE_MASKED, DecodeProgram

__all__ = ["SelectSchedule"]
NAME = "select-schedule"
KEYS = ("verify.recurrence", "target.family")
DEVICE_OF: dict[str, DeviceName] = {"reference": "cpu"}


@dataclass(frozen=True, slots=True)
class SelectSchedule(Pass):
    """Chooses the schedule of every recurrent layer; see the package's docstring.

    schedule: the one to take, or auto. device: whose times `auto` compares (None: those of the target's device).
    chunk: tokens of a prompt that are computed at once.
    """

    name: ClassVar[str] = NAME
    requires: ClassVar[frozenset[str]] = frozenset({INDEX_SAFE, TREE_MASKED, LAYER_MAJOR})
    preserves: ClassVar[frozenset[str]] = frozenset({INDEX_SAFE, TREE_MASKED, LAYER_MAJOR, DEFERRED, BUFFERED})
    schedule: Literal["auto", "replay", "serial", "hybrid", "tree"] = "auto"
    device: Literal["h200", "cpu"] | None = None
    chunk: int = 64

    def run(self, program: DecodeProgram, ctx: PassContext) -> PassResult:
        """Decides per verify op, then rewrites the ops of every graph that work on the same state slots."""
        device = self.device or DEVICE_OF.get(ctx.target, "h200")
        choices = self._choices(program, device)
        if not choices:
            note = Note(NAME, "verify", "no recurrent layer is verified: nothing to choose", False, KEYS)
            return PassResult(program, False, (note,))
        by_slot = {slot: choice.schedule for choice in choices for slot in choice.slots}
        graphs: dict[str, GraphModule] = {}
        notes = [note for choice in choices for note in choice.notes(NAME, KEYS)]
        for name, module in program.graphs.items():
            made = clone(module)
            changes = sum(self._rewrite(site, by_slot) for site in list(sites(made)))
            if changes:
                graphs[name] = finish(made)
        return PassResult(program.with_graphs(**graphs), bool(graphs), tuple(notes))

    def _choices(self, program: DecodeProgram, device: DeviceName) -> list[Choice]:
        """One decision per different verify op; equal ones share it."""
        found: dict[Any, list[str]] = {}
        for site in sites(program.graphs["verify"]):
            if site.node.target in VERIFY or (site.node.target in CHAIN and not state_is_read(site.node)):
                found.setdefault(case_of(site, program), []).append(site.slot or site.node.name)
        return [choose(case, tuple(slots), self.schedule, device) for case, slots in found.items()]

    def _rewrite(self, site: Site, by_slot: dict[str, Schedule]) -> bool:
        """True where the op changed."""
        schedule = by_slot.get(site.slot or "")
        node = site.node
        if node.target in VERIFY and schedule is not None:
            changed = _set(node, "schedule", schedule)
            if node.target is ops.delta_rule_verify_pending:
                changed |= _set(node, "form", FORM[schedule])
            return changed
        if node.target in COMMIT and schedule is not None:
            return _set(node, "form", FORM[schedule])
        if node.target not in CHAIN:
            return False
        if not state_is_read(node):
            _replace(site, ops.delta_rule_verify, (None, None, schedule or "serial"))
            return True
        if int(site.argument("v").meta["val"].shape[1]) % CHUNK == 0:
            _replace(site, ops.delta_rule_chunk, (self.chunk,))
            return True
        return False


def _set(node: Node, name: str, value: str) -> bool:
    place = argument_place(node, name)
    if node.args[place] == value:
        return False
    node.args = (*node.args[:place], value, *node.args[place + 1 :])
    return True


def _replace(site: Site, target: Any, more: tuple[Any, ...]) -> None:
    """Another op of the rule in place of a `delta_rule`: the same six operands, then `more`."""
    node = site.node
    editor = Editor(site.scope.module, NAME)
    for user in list(node.users):
        if user.target is operator.getitem and not user.users:
            site.scope.module.graph.erase_node(user)
    with editor.before(node):
        made = editor.call(target, *node.args[:6], *more, name=node.name)
    editor.replace(node, made)
    site.scope.module.graph.erase_node(node)
