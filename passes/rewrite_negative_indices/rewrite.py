"""Pass 1: every index operand is proved inside [0, size), or rewritten until it is.

    x[i], i in [-n, n), where eager torch wraps    ->  x[where(i < 0, i + n, i)]
    gather(x, d, i), -1 means padding              ->  where(i >= 0, gather(x, d, clamp_min(i, 0)), 0)
    tables of N + 1 rows whose last row, read as   ->  the dummy root is row 0: node i is row i + 1; index operands
    index -1, is the committed context                 and the table's layout move, no other value does

A masked-off lane still dereferences its address on some accelerators (Ascend), so the *address* must be in range:
masking the result is not enough. A possible -1 where eager torch raises, and any index past the end, is a diagnostic
with the interval and where it comes from. Design 02, pass 1; invariant I6.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch.fx import GraphModule

from specc.diagnostics import Diagnostic, DiagnosticError, Span
from specc.ir.clone import clone
from specc.ir.edit import finish, modules
from specc.ir.ranges import Declared, analyse
from specc.ir.ranges.indices import IndexUse, all_index_uses, interval_of, is_proved
from specc.manager import Note, Pass, PassContext, PassResult, predicate
from specc.passes.rewrite_negative_indices.diagnose import describe, untyped, violation
from specc.passes.rewrite_negative_indices.tables import shift_tables
from specc.passes.rewrite_negative_indices.types import record_types
from specc.passes.rewrite_negative_indices.uses import Policy, rewrite_use
from specc.program import BUFFERED, DEFERRED, INDEX_SAFE, LAYER_MAJOR, TREE_MASKED, DecodeProgram

__all__ = ["Policy", "RewriteNegativeIndices", "rewrite_negative_indices", "unsafe_indices"]

NAME = "rewrite-negative-indices"


def rewrite_negative_indices(
    module: GraphModule,
    ranges: Declared | None = None,
    policy: Policy | None = None,
    *,
    example_inputs: Sequence[object] | None = None,
) -> tuple[GraphModule, tuple[Note, ...]]:
    """A module that computes the same and reads and writes only rows [0, size); and what was done, or why not.

    `module` is any graph: of a program, of `torch.export` (`exported.module()`) or of `symbolic_trace`; the latter
    has no shapes, so it needs `example_inputs` (tensors or fake tensors). `ranges` declares integer inputs by
    placeholder name. Raises DiagnosticError (SPC320, SPC321, SPC322) with one finding per index that can be neither
    proved nor rewritten. `module` itself stays as it is.
    """
    made, notes = _rewrite(module, dict(ranges or {}), policy or Policy(), "", {}, example_inputs)
    return made, notes


def unsafe_indices(module: GraphModule, ranges: Declared | None = None) -> Iterator[str]:
    """One line for each index operand that can't be proved in range: node, interval, legal interval, origin."""
    found = analyse(module, ranges)
    for use in all_index_uses(module):
        if not is_proved(use, found):
            yield describe(use, found)


@predicate(INDEX_SAFE)
def index_safe(program: DecodeProgram) -> list[str]:
    """The proof again, on the program as it is now: the reasons why an index might leave its table."""
    return [
        f"{name}: {line}" for name, graph in program.graphs.items() for line in unsafe_indices(graph, program.ranges)
    ]


@dataclass(frozen=True, slots=True)
class RewriteNegativeIndices(Pass):
    """Establishes INDEX_SAFE on every step graph.

    `mask_padding`: a possible -1 that means padding is clamped and its result masked where eager torch would raise;
    False makes it a diagnostic.
    """

    name: ClassVar[str] = NAME
    establishes: ClassVar[frozenset[str]] = frozenset({INDEX_SAFE})
    preserves: ClassVar[frozenset[str]] = frozenset({TREE_MASKED, LAYER_MAJOR, DEFERRED, BUFFERED})

    mask_padding: bool = True

    def run(self, program: DecodeProgram, ctx: PassContext) -> PassResult:
        """All findings of all graphs at once; keys of the nodes give them their place in the spec."""
        policy = Policy(mask_padding=self.mask_padding)
        graphs: dict[str, GraphModule] = {}
        notes: list[Note] = []
        findings: list[Diagnostic] = []
        for name, graph in program.graphs.items():
            try:
                made, said = _rewrite(graph, program.ranges, policy, name, ctx.spans, None)
            except DiagnosticError as problem:
                findings += problem.diagnostics
                continue
            notes += said
            if any(note.fired for note in said):
                graphs[name] = made
        if findings:
            raise DiagnosticError(findings)
        return PassResult(program.with_graphs(**graphs) if graphs else program, bool(graphs), tuple(notes))


def _rewrite(
    module: GraphModule,
    ranges: Declared,
    policy: Policy,
    graph: str,
    spans: Mapping[str, Span],
    example_inputs: Sequence[object] | None,
) -> tuple[GraphModule, tuple[Note, ...]]:
    made = clone(module)
    missing = record_types(made, example_inputs)
    if missing:
        raise DiagnosticError([untyped(missing)])
    found = analyse(made, ranges)
    notes = shift_tables(made, found, graph)
    if any(note.fired for note in notes):
        found = analyse(made, ranges)
    findings: list[Diagnostic] = []
    for item in modules(made):
        for use in [use for use in all_index_uses(item) if use.node.graph is item.graph]:
            if is_proved(use, found):
                notes.append(_note(use, f"{interval_of(use, found)} is inside {use.legal}", graph, fired=False))
                continue
            done = rewrite_use(item, use, found, policy)
            if done is None:
                findings.append(violation(use, found, policy, spans))
            else:
                notes.append(_note(use, done, graph, fired=True))
    if findings:
        raise DiagnosticError(findings)
    if any(note.fired for note in notes):
        finish(made)
        left = analyse(made, ranges)
        unproved = [use for use in all_index_uses(made) if not is_proved(use, left)]
        if unproved:
            raise DiagnosticError([violation(use, left, policy, spans) for use in unproved])
    return made, tuple(notes)


def _note(use: IndexUse, what: str, graph: str, *, fired: bool) -> Note:
    operand = getattr(use.operand, "name", use.operand)
    message = f"`{use.node.name}`: index `{operand}` of {use.op} into `{use.table.name}`: {what}"
    return Note(NAME, graph, message, fired, tuple(use.node.meta.get("keys", ())))
