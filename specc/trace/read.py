"""Reads and checks trace files: every line that is broken is named, with its number and what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from specc.diagnostics import Diagnostic, DiagnosticError, Span, error
from specc.trace.schema import FAMILY, SCHEMA, Step

MAX_FINDINGS = 10
SHOWN = 120
RECORDS = f"each line is a record of {SCHEMA}: see TRACE.md"
"""Characters of a broken line that a diagnostic quotes."""
IDENTITY = ("seed", "spec", "pipeline")


@dataclass(frozen=True, slots=True)
class Trace:
    """A whole trace file: its steps as they happened, and the same by request number."""

    path: Path
    steps: tuple[Step, ...]
    requests: dict[int, list[Step]] = field(default_factory=dict)

    def name(self, request: int) -> str:
        """The prompt's name of a request."""
        return self.requests[request][0].name

    def tokens(self, request: int) -> list[int]:
        """The text of a request: all that its steps emitted."""
        return [token for step in self.requests[request] for token in step.emitted]


@dataclass(slots=True)
class _Reader:
    """The state of one reading: what was found wrong, and what the lines so far agree on."""

    path: Path
    findings: list[Diagnostic] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    requests: dict[int, list[Step]] = field(default_factory=dict)

    def blame(self, code: str, number: int, line: str, message: str, help: str = "") -> None:
        shown = line if len(line) <= SHOWN else line[:SHOWN] + "..."
        span = Span(str(self.path), number, 1, len(shown) + 1, shown)
        self.findings.append(error(code, f"line {number}: {message}", span, help=help))

    def take(self, number: int, line: str, last_is_cut: bool) -> None:
        """Check one line and keep its record."""
        try:
            record = json.loads(line, parse_constant=_refuse)
        except (ValueError, RecursionError) as problem:
            if last_is_cut:
                remedy = "the file was cut off while it was written or copied; the lines before it are whole"
                self.blame("SPC482", number, line, "the file ends within this line", remedy)
            else:
                self.blame("SPC481", number, line, f"this is not JSON: {problem}", RECORDS)
            return
        version = record.get("schema") if isinstance(record, dict) else None
        if isinstance(version, str) and version.startswith(FAMILY) and version != SCHEMA:
            remedy = f"this specc reads {SCHEMA}; use the version that wrote the file"
            self.blame("SPC483", number, line, f"the schema is `{version[:SHOWN]}`", remedy)
            return
        try:
            step = Step.model_validate(record)
        except ValidationError as problem:
            self.blame("SPC481", number, line, _said(problem), RECORDS)
            return
        contradiction = self._contradiction(step)
        if contradiction:
            self.blame("SPC484", number, line, contradiction, "the file holds lines of several runs, or has lost some")
            return
        self.steps.append(step)
        self.requests.setdefault(step.request, []).append(step)

    def _contradiction(self, step: Step) -> str:
        """How a line does not go with those before it."""
        if self.steps:
            first = self.steps[0]
            for key in IDENTITY:
                if getattr(step, key) != getattr(first, key):
                    return f"`{key}` is {getattr(step, key)!r}, on line 1 it is {getattr(first, key)!r}"
        before = self.requests.get(step.request, [])
        if step.step != len(before):
            return f"request {step.request} goes on with step {step.step}; its step {len(before)} has not come"
        if before and step.name != before[0].name:
            return f"request {step.request} is called `{step.name}`, and `{before[0].name}` before"
        if step.step and before[-1].bonus != step.drafted[0]:
            root = f"the root of request {step.request} is token {step.drafted[0]}"
            return f"{root}, but the last token emitted is {before[-1].bonus}"
        return ""


def read_trace(path: Path) -> Trace:
    """The checked content of a trace file.

    Raises DiagnosticError: SPC480 for a file that can't be read or has no line, SPC481 for lines that are no records,
    SPC482 where the file was cut off, SPC483 for another version of the schema, SPC484 for lines that contradict
    others. At most ten findings are listed.
    """
    text = _text(path)
    reader = _Reader(path)
    lines = text.split("\n")
    whole = lines.pop() == "" if lines else True
    if not whole:
        lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if len(reader.findings) >= MAX_FINDINGS:
            break
        reader.take(number, line, last_is_cut=not whole and number == len(lines))
    if not reader.findings and not reader.steps:
        remedy = "`specc run SPEC … --trace FILE` writes one line for every step"
        reader.findings.append(error("SPC480", f"`{path}` has no lines", help=remedy))
    if reader.findings:
        raise DiagnosticError(reader.findings)
    return Trace(path, tuple(reader.steps), reader.requests)


def _text(path: Path) -> str:
    remedy = "give a file that `specc run … --trace FILE` has written"
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as problem:
        raise DiagnosticError([error("SPC480", f"can't read `{path}`: {problem.strerror}", help=remedy)]) from None
    except UnicodeDecodeError as problem:
        message = f"`{path}` is not UTF-8 text: byte {problem.start}"
        raise DiagnosticError([error("SPC480", message, help=remedy)]) from None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a number of JSON")


def _said(problem: ValidationError) -> str:
    """The first things that are wrong with a record, in one line."""
    said = []
    for item in problem.errors(include_url=False, include_context=False, include_input=False)[:3]:
        place = "`" + ".".join(str(part) for part in item["loc"]) + "`: " if item["loc"] else ""
        said.append(place + item["msg"].removeprefix("Value error, ").replace("Field required", "the key is missing"))
    return "; ".join(said)


def batch_steps(steps: Sequence[Step]) -> Iterator[list[Step]]:
    """Consecutive records that are rows of one step of a batch: the same step number, the same timing, other requests.

    A step's timing is the whole batch's and stands in the line of each row, so it counts once for such a group.
    """
    group: list[Step] = []
    for step in steps:
        first = group[0] if group else None
        same = first is not None and (step.step, step.timing) == (first.step, first.timing)
        if first is not None and (not same or any(step.request == other.request for other in group)):
            yield group
            group = []
        group.append(step)
    if group:
        yield group
