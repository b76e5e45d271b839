"""Passes and pipelines: what a pass requires, establishes and preserves is checked, not believed.

A pass is a frozen dataclass whose fields are its options. A `Pipeline` refuses a wrong order before it runs, and
after every pass it verifies the IR, checks the predicates of what the pass establishes on the pass's *result*, and
checks that `changed` tells the truth (I28).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from specc.diagnostics import Diagnostic, DiagnosticError, Span, error
from specc.ir.printer import fingerprint, print_program
from specc.ir.verifier import verify
from specc.output import make_folder, write_text
from specc.program import BUFFERED, DEFERRED, INDEX_SAFE, LAYER_MAJOR, NPU_LEGAL, TREE_MASKED, DecodeProgram

ALL_PROPERTIES = frozenset({INDEX_SAFE, TREE_MASKED, LAYER_MAJOR, DEFERRED, BUFFERED, NPU_LEGAL})
Predicate = Callable[[DecodeProgram], Sequence[str]]
PREDICATES: dict[str, Predicate] = {}


def predicate(name: str) -> Callable[[Predicate], Predicate]:
    """Register the decorated function as the check of property `name`: it returns the reasons why it does not hold.

    Stands in the file of the pass that establishes the property.
    """

    def register(function: Predicate) -> Predicate:
        PREDICATES[name] = function
        return function

    return register


@dataclass(frozen=True, slots=True)
class Note:
    """What a pass did, or why a near-miss did not fire (`fired` False). Printed by `specc why`.

    `graph` names the step graph, `keys` are the dotted spec keys of the nodes concerned.
    """

    pass_name: str
    graph: str
    message: str
    fired: bool = True
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PassResult:
    """A pass's program, whether it differs from the input (other than in comments), and notes."""

    program: DecodeProgram
    changed: bool
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class PassContext:
    """What a run of a pipeline is told. `spans` maps dotted spec keys to places in the YAML."""

    verify: bool = True
    dump: Path | None = None
    target: str = "reference"
    spans: Mapping[str, Span] = field(default_factory=dict)

    def span(self, keys: Sequence[str]) -> Span | None:
        """The place of the first of `keys` that the spec has."""
        return next((self.spans[key] for key in keys if key in self.spans), None)


@dataclass(frozen=True, slots=True)
class Pass(ABC):
    """One program transformation. Subclasses are frozen dataclasses; their fields are the pass's options.

    Properties of the result are (those held before & `preserves`) | `establishes`; a pass that changes nothing
    loses nothing.
    """

    name: ClassVar[str]
    requires: ClassVar[frozenset[str]] = frozenset()
    establishes: ClassVar[frozenset[str]] = frozenset()
    preserves: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def run(self, program: DecodeProgram, ctx: PassContext) -> PassResult:
        """The transformed program; `program` itself must not be changed (clone modules before editing)."""


@dataclass(frozen=True, slots=True)
class PassRecord:
    """What happened in one pass: times in seconds, notes, and the fingerprint of its result."""

    name: str
    changed: bool
    seconds: float
    check_seconds: float
    notes: tuple[Note, ...]
    fingerprint: str


@dataclass(frozen=True, slots=True)
class PipelineResult:
    """The final program and one record per pass."""

    program: DecodeProgram
    records: tuple[PassRecord, ...]

    def notes(self, pass_name: str) -> tuple[Note, ...]:
        """The notes of one pass (all its occurrences)."""
        return tuple(note for record in self.records if record.name == pass_name for note in record.notes)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Passes in order."""

    passes: tuple[Pass, ...]

    def check_order(
        self,
        properties: frozenset[str] = frozenset(),
        span: Span | None = None,
        available: Iterable[type[Pass]] = (),
    ) -> None:
        """Raise DiagnosticError (SPC250) where a pass requires what is not there, for all passes at once.

        `span` is where the passes were listed, `available` those that could be added.
        """
        known = tuple(available)
        held, lost_by = set(properties), dict[str, str]()
        findings: list[Diagnostic] = []
        for item in self.passes:
            for name in sorted(item.requires - held):
                finding = self._order_error(item, name, lost_by.get(name), known)
                findings.append(replace(finding, span=span, label="in this list" if span else ""))
            lost_by |= dict.fromkeys(held - item.preserves - item.establishes, item.name)
            held = (held & item.preserves) | item.establishes
        if findings:
            raise DiagnosticError(findings)

    def _order_error(self, item: Pass, name: str, lost_by: str | None, available: Sequence[type[Pass]]) -> Diagnostic:
        makers = [other.name for other in self.passes if name in other.establishes]
        why = f"`{lost_by}` loses it before" if lost_by else "no pass before it establishes it"
        others = [other.name for other in available if name in other.establishes]
        remedy = "add a pass that establishes it, or drop this one"
        if makers or others:
            remedy = f"put `{makers[0]}` before it" if makers else f"add `{others[0]}` before it, or drop this one"
        if lost_by and makers:
            remedy = f"put `{item.name}` between `{makers[0]}` and `{lost_by}`"
        return error("SPC250", f"pass `{item.name}` requires {name}, but {why}", help=remedy)

    def run(
        self, program: DecodeProgram, ctx: PassContext | None = None, *, until: str | None = None
    ) -> PipelineResult:
        """Run the passes on `program` (up to and including the pass `until`).

        Raises DiagnosticError: SPC250 for a wrong order, SPC251 where `until` is not in the pipeline, SPC3xx from the
        verifier, SPC91x where a pass breaks its word.
        """
        ctx = ctx or PassContext()
        self.check_order(program.properties)
        chosen = self._until(until)
        checker = _Checker(ctx)
        checker.verify(program, "lower")
        _dump(ctx, 0, "lower", program)
        mark, records = _mark(program), list[PassRecord]()
        for number, item in enumerate(chosen, 1):
            started = time.perf_counter()
            result = item.run(program, ctx)
            ended = time.perf_counter()
            after = _mark(result.program)
            if result.changed != (after != mark):
                raise DiagnosticError([_changed_error(item, result.changed)])
            if result.changed and _mark(program) != mark:
                raise DiagnosticError([error("SPC912", f"pass `{item.name}` edited the program that it was given")])
            kept = (program.properties & item.preserves) if result.changed else program.properties
            program = replace(result.program, properties=kept | item.establishes)
            checker.verify(program, item.name)
            if ctx.verify:
                last = number == len(chosen)
                check_properties(program, program.properties if last else item.establishes, item.name)
            _dump(ctx, number, item.name, program)
            checked = time.perf_counter() - ended
            records.append(PassRecord(item.name, result.changed, ended - started, checked, result.notes, after))
            mark = after
        return PipelineResult(program, tuple(records))

    def _until(self, until: str | None) -> tuple[Pass, ...]:
        if until is None or until == "lower":
            return self.passes if until is None else ()
        names = [item.name for item in self.passes]
        if until not in names:
            known = ", ".join(f"`{name}`" for name in ["lower", *names])
            raise DiagnosticError([error("SPC251", f"no pass `{until}` in this pipeline", help=f"it has {known}")])
        return self.passes[: len(names) - names[::-1].index(until)]


class _Checker:
    """Verifies a program after each pass; graphs whose text and level are as before are not looked into again."""

    def __init__(self, ctx: PassContext) -> None:
        self.ctx = ctx
        self.seen: dict[str, tuple[bool, str]] = {}

    def verify(self, program: DecodeProgram, after: str) -> None:
        if not self.ctx.verify:
            return
        buffered = BUFFERED in program.properties
        now = {name: (buffered, fingerprint(graph)) for name, graph in program.graphs.items()}
        changed = [name for name, state in now.items() if self.seen.get(name) != state]
        verify(program, after=after, spans=self.ctx.spans, only=changed)
        self.seen = now


def check_properties(program: DecodeProgram, names: frozenset[str], after: str) -> None:
    """Raise DiagnosticError (SPC910) where the predicate of one of `names` does not hold."""
    findings = []
    for name in sorted(names):
        if name not in PREDICATES:
            raise ValueError(f"property {name} has no predicate; register one with @predicate({name})")
        reasons = tuple(PREDICATES[name](program))
        if reasons:
            findings.append(error("SPC910", f"{name} does not hold after pass `{after}`", notes=reasons))
    if findings:
        raise DiagnosticError(findings)


def _mark(program: DecodeProgram) -> str:
    """Fingerprint of a program without its properties, which the pipeline sets."""
    return fingerprint(replace(program, properties=frozenset()))


def _changed_error(item: Pass, changed: bool) -> Diagnostic:
    said, is_so = ("changed", "equal") if changed else ("unchanged", "different")
    return error("SPC911", f"pass `{item.name}` says that the program is {said}, but its fingerprint is {is_so}")


def _dump(ctx: PassContext, number: int, name: str, program: DecodeProgram) -> None:
    if ctx.dump is None:
        return
    make_folder(ctx.dump)
    if number == 0:  # another pipeline's dump would lie between this one's
        for stale in ctx.dump.glob("[0-9][0-9]-*.ir"):
            stale.unlink(missing_ok=True)
    write_text(ctx.dump / f"{number:02d}-{name}.ir", print_program(program))
