"""fuse-deferred-state-update: `verify; accept; commit` becomes `commit(previous); verify; accept`.

    commit:  cache = C(cache, candidate, x)         commit:  pending_x = x
    verify:  … cache …                        ->    verify:  cache = C(cache, candidate, pending_x) …; pending nothing
                                                    flush:   cache = C(cache, candidate, pending_x); pending nothing

C is whatever part of `commit` computes slots from candidates and can wait (`find`): KV rows, and recurrent states from
their factors; x is what that part reads besides those slots (the path, the count, the length before the step), recorded
in slots of role `pending`. A slot that can't wait keeps its part of commit, and a note says why: the window of a
convolution, states taken from snapshots or replayed. The fold is then fused into the loop over layers of `verify`
(iteration l folds layer l, then verifies with it), and there into the op that verifies with the state (`prologue`), so
that no separate pass over caches and states remains (EAGLE-Pangu, path-index commit; SpecLA, deferred update).

`window` > 1: factors that compose stay pending over several steps (`windowed`); states are read every step and written
when the window is full.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch.fx import GraphModule, Node

from specc.ir.clone import clone
from specc.ir.edit import finish, is_loop
from specc.ir.scope import Scope
from specc.manager import Note, Pass, PassContext, PassResult
from specc.passes.fuse_deferred_state_update.common import KEYS, NAME, Slice
from specc.passes.fuse_deferred_state_update.find import Refused, find_slice, slice_of
from specc.passes.fuse_deferred_state_update.fold import (
    drop_dead,
    insert_fold,
    pending_name,
    pending_slots,
    record,
)
from specc.passes.fuse_deferred_state_update.prologue import folds_of_states, fuse_prologue
from specc.passes.fuse_deferred_state_update.unfolded import unfolded_reads
from specc.passes.fuse_deferred_state_update.windowed import (
    COUNT,
    Factors,
    append_factors,
    factors_of,
    fold_windows,
    window_slots,
)
from specc.passes.loop_fusion import fuse_loops
from specc.program import DEFERRED, INDEX_SAFE, LAYER_MAJOR, TREE_MASKED, DecodeProgram

__all__ = ["FuseDeferredStateUpdate", "find_slice", "insert_fold", "unfolded_reads"]
# Steps that must not run with something pending: their wrappers call flush first.
FLUSH_FIRST = ("prefill", "decode")


def _fuse_folds(verify: GraphModule, folds: list[Node]) -> list[Note]:
    """Fuse each fold into the loop of verify that reads its slices; a note says what happened."""
    notes = []
    for fold in folds:
        folded = _names(_slots_of(fold))
        readers = {user for item in fold.users for user in item.users if is_loop(user)}
        if len(readers) != 1:
            reason: str | None = f"{len(readers)} loops read the folded slot"
        else:
            reason = fuse_loops(verify, fold, readers.pop(), NAME)
        what = "fused into the loop that reads it" if reason is None else f"not fused: {reason}"
        message = f"fold of {folded} {what}"
        notes.append(Note(NAME, "verify", message, reason is None, KEYS))
    return notes


def _slots_of(fold: Node) -> tuple[str, ...]:
    """The slots that a loop at the head of verify folds."""
    end = fold.graph.output_node()
    return tuple(port.name for port, value in zip(end.meta["ports"], end.args[0], strict=True) if fold in value.args)  # type: ignore[arg-type]


def _fuse_prologues(verify: GraphModule) -> list[Note]:
    """Fuse folds of states into the ops that verify with them."""
    notes = []
    for scope, fold in folds_of_states(Scope(verify)):
        name = fold.name
        reason = fuse_prologue(scope, fold)
        message = f"`{name}` is the prologue of the op that verifies with it"
        if reason is not None:
            message = f"`{name}` stays an op of its own: {reason}"
        notes.append(Note(NAME, "verify", message, reason is None, (*KEYS, "verify.recurrence")))
    return notes


def _names(slots: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in slots)


def _without(found: Slice | None, windowed: list[Factors], program: DecodeProgram) -> Slice | None:
    """The slice of the slots that are not windowed."""
    if found is None or not windowed:
        return found
    kept = {factors.slot for factors in windowed}
    rest = {slot: node for slot, node in found.results.items() if slot not in kept}
    return slice_of(program, rest, found.count) if rest else None


@dataclass(frozen=True, slots=True)
class FuseDeferredStateUpdate(Pass):
    """Moves the part of commit that can wait to the head of the next verify; see the package's docstring.

    window: fold factors that compose when this many are pending (0 and 1: every verify does).
    """

    name: ClassVar[str] = NAME
    requires: ClassVar[frozenset[str]] = frozenset({INDEX_SAFE, TREE_MASKED, LAYER_MAJOR})
    establishes: ClassVar[frozenset[str]] = frozenset({DEFERRED})
    preserves: ClassVar[frozenset[str]] = frozenset({INDEX_SAFE, TREE_MASKED, LAYER_MAJOR})
    window: int = 0

    def run(self, program: DecodeProgram, ctx: PassContext) -> PassResult:
        """Finds what can wait, records and folds it, then fuses the folds; one note per slot that stays immediate."""
        found, refused = find_slice(program)
        notes = [
            Note(NAME, "commit", f"`{slot}` stays immediate: {reason}", False, KEYS) for slot, reason in refused.items()
        ]
        if found is None:
            if not notes:
                notes = [Note(NAME, "commit", "commit moves no candidate rows: nothing to defer", False, KEYS)]
            return PassResult(program, False, tuple(notes))
        windowed, more = self._windowed(program, found)
        notes += more
        plain = _without(found, windowed, program)
        made = program
        counts: list[str] = []
        graphs = {name: clone(program.graphs[name]) for name in ("verify", "flush", "commit")}
        folds: list[Node] = []
        if plain is not None:
            made, count, loops = self._defer(made, graphs, plain, notes)
            counts.append(count)
            folds += loops
        if windowed:
            made, loops = self._defer_windows(made, graphs, windowed, notes)
            counts.append(COUNT)
            folds += loops
        drop_dead(graphs["commit"])
        notes += _fuse_folds(graphs["verify"], folds)
        notes += _fuse_prologues(graphs["verify"])
        attributes = {
            **program.attributes,
            "flush_first": list(FLUSH_FIRST),
            "pending_count": counts[0] if len(counts) == 1 else counts,
        }
        done = {name: finish(graphs[name]) for name in ("verify", "flush", "commit")}
        return PassResult(replace(made.with_graphs(**done), attributes=attributes), True, tuple(notes))

    def _windowed(self, program: DecodeProgram, found: Slice) -> tuple[list[Factors], list[Note]]:
        """The slots whose factors wait for a full window, and why others don't."""
        windowed: list[Factors] = []
        notes = []
        for slot in found.caches if self.window > 1 else ():
            try:
                windowed.append(factors_of(program, found, slot))
            except Refused as reason:
                message = f"`{slot}` is folded by every verify, not when {self.window} are pending: {reason}"
                notes.append(Note(NAME, "commit", message, False, ("commit.window", *KEYS)))
        return windowed, notes

    def _defer(
        self, program: DecodeProgram, graphs: dict[str, GraphModule], found: Slice, notes: list[Note]
    ) -> tuple[DecodeProgram, str, list[Node]]:
        """One step's commit waits: the program with its slots, the slot of its count, the folds in verify."""
        commit = program.graphs["commit"]
        folds = insert_fold(graphs["verify"], commit, found)
        insert_fold(graphs["flush"], commit, found)
        record(graphs["commit"], found)
        kept = _names(tuple(pending_name(port) for port in found.recorded))
        message = f"{_names(found.caches)} folded by the next verify; recorded: {kept}"
        notes.append(Note(NAME, "commit", message, True, KEYS))
        added = pending_slots(program, found)
        made = replace(program, slots={**program.slots, **added.slots}, ranges={**program.ranges, **added.ranges})
        return made, pending_name(found.count), folds

    def _defer_windows(
        self, program: DecodeProgram, graphs: dict[str, GraphModule], windowed: list[Factors], notes: list[Note]
    ) -> tuple[DecodeProgram, list[Node]]:
        """Several steps' factors wait: the program with its slots, the folds in verify."""
        added = window_slots(program, windowed, self.window)
        slots = {**program.slots, **added.slots}
        append_factors(graphs["commit"], slots, windowed, self.window)
        folds = fold_windows(graphs["verify"], slots, windowed, self.window, verify=True)
        fold_windows(graphs["flush"], slots, windowed, self.window, verify=False)
        rows = added.ranges[f"slot:{COUNT}"].high
        caches = _names(tuple(factors.slot for factors in windowed))
        message = f"{caches} folded by the verify that finds {self.window} factors pending, of at most {rows}"
        notes.append(Note(NAME, "commit", message, True, ("commit.window", *KEYS)))
        return replace(program, slots=slots, ranges={**program.ranges, **added.ranges}), folds
