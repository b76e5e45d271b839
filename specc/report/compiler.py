"""What the compiler made of a spec: the program after every pass with its difference, and why passes fired or not."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from specc.backends.printing.origins import Origins
from specc.diagnostics import Span
from specc.driver import backend_of, lower_spec, module_info, spans_of
from specc.ir.printer import print_program
from specc.manager import Note, PassContext, Pipeline
from specc.passes import pipeline_of
from specc.program import DecodeProgram
from specc.report.markup import Html, details, element, joined
from specc.spec import LoadedSpec

CONTEXT = 2
"""Unchanged lines around a difference."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The program after one pass (`lower`: the naive one): its text with comments and without, and the pass's notes."""

    name: str
    changed: bool
    text: str
    plain: str
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class Compiled:
    """All stages of a compile, the module, and the nodes that its statements come from."""

    stages: tuple[Stage, ...]
    source: str
    origins: Origins
    spans: Mapping[str, Span]
    """Of the keys that the spec's own file has, not of overrides."""


def compiled(loaded: LoadedSpec, target: str) -> Compiled:
    """Compile pass by pass; the module is the one that `specc compile` writes. Raises DiagnosticError as that does."""
    spans = {key: span for key, span in spans_of(loaded).items() if span.file == loaded.source.file}
    program = lower_spec(loaded, target)
    pipeline = pipeline_of(loaded.spec, spans, target)
    pipeline.check_order(program.properties)
    stages = [_stage("lower", True, program, ())]
    context = PassContext(target=target, spans=spans)
    for item in pipeline.passes:
        result = Pipeline((item,)).run(program, context)
        program = result.program
        record = result.records[0]
        stages.append(_stage(item.name, record.changed, program, record.notes))
    origins = Origins()
    info = replace(module_info(loaded, target), origins=origins)
    return Compiled(tuple(stages), backend_of(target).generate(program, info), origins, spans)


def _stage(name: str, changed: bool, program: DecodeProgram, notes: tuple[Note, ...]) -> Stage:
    return Stage(name, changed, print_program(program), print_program(program, comments=False), notes)


def passes_html(stages: Sequence[Stage], spans: Mapping[str, Span]) -> Html:
    """Each pass: what `specc why` says, the difference to the stage before, and the whole text behind a click."""
    parts = []
    for number, stage in enumerate(stages):
        before = stages[number - 1] if number else None
        lines = stage.plain.count("\n")
        added, removed, shown = difference(before.plain, stage.plain) if before else (0, 0, Html(""))
        head = f"{lines} lines"
        if before is not None:
            head = f"+{added} \u2212{removed} lines, {lines} in all" if stage.changed else "changed nothing"
        title = joined([element("code", f"{number:02d} {stage.name}"), element("span", f" {head}", class_="unit")])
        body = [notes_html(stage.notes, spans)]
        if before is not None and stage.changed:
            body.append(details("difference to the stage before", shown, is_open=added + removed <= 60))
        body.append(details("whole program", element("pre", element("code", stage.text), tabindex="0")))
        parts.append(details(title, *body, id=f"pass-{number}", class_="pass"))
    return joined(parts)


def notes_html(notes: Sequence[Note], spans: Mapping[str, Span]) -> Html:
    """The notes of a pass, with links to the lines of the spec that they speak of."""
    items = []
    for note in notes:
        fired = element("strong", "fired" if note.fired else "did not fire", class_="fired" if note.fired else "missed")
        items.append(element("li", fired, f": {note.graph}: {note.message} ", spec_link(note.keys, spans)))
    return element("ul", *items, class_="notes") if items else Html("")


def spec_link(keys: Sequence[str], spans: Mapping[str, Span]) -> Html:
    """A link to the line of the spec that the first known key stands in."""
    for key in keys:
        if key in spans:
            return element("a", f"{key}, line {spans[key].line}", href=f"#spec-{spans[key].line}", class_="to-spec")
    return Html("")


def difference(before: str, after: str) -> tuple[int, int, Html]:
    """(lines added, lines removed, unified difference as HTML)."""
    kinds = {"+": "added", "-": "removed", "@": "place"}
    added = removed = 0
    lines = []
    found = difflib.unified_diff(before.splitlines(), after.splitlines(), n=CONTEXT, lineterm="")
    for line in list(found)[2:]:  # without the names of the files
        added += line.startswith("+")
        removed += line.startswith("-")
        kind = kinds.get(line[:1])
        lines.append(element("span", line, class_=kind) if kind else element("span", line))
    return added, removed, element("pre", element("code", joined(lines, "\n")), class_="difference", tabindex="0")


def spec_html(source: str) -> Html:
    """The spec's text with numbered lines."""
    lines = [
        element("span", line, id=f"spec-{number}", class_="numbered", data_line=number)
        for number, line in enumerate(source.splitlines(), 1)
    ]
    return element("pre", element("code", joined(lines, "\n")), class_="listing", tabindex="0")
