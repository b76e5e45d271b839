"""Coded diagnostics: what is wrong, where, and what to do about it.

Every user-facing error of the compiler is a `Diagnostic` with a code of `specc.codes`; code that refuses its
input raises `DiagnosticError` with all the diagnostics it found. This module imports nothing of the compiler,
so that every part can use it.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["error", "warning", "note"]

TAB_WIDTH = 4
MAX_LINE_WIDTH = 160
MAX_SHOWN = 50


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A place in a text: 1-based line and columns, counted in characters; `end_column` is exclusive.

    `source_line` is the text of that line, kept so that a diagnostic can be printed without the file; it
    takes no part in comparison. A span of several lines is cut at the end of its first line.
    """

    file: str
    line: int
    column: int
    end_column: int
    source_line: str | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding. `label` stands under the span's carets, `help` is the remedy, `notes` are background."""

    code: str
    severity: Severity
    message: str
    span: Span | None = None
    label: str = ""
    help: str = ""
    notes: tuple[str, ...] = ()

    def render(self) -> str:
        """The diagnostic as text in rustc's layout, without colours and without a trailing newline."""
        lines = [f"{self.severity}[{self.code}]: {printable(self.message)}"]
        if self.span is not None:
            lines += _snippet(self.span, self.label)
        margin = "  " if self.span is None else " " * (len(str(self.span.line)) + 1)
        if self.help:
            lines += _trailer(margin, "help", self.help)
        for note in self.notes:
            lines += _trailer(margin, "note", note)
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """A JSON-ready mapping; the schema is stable: keys are only ever added."""
        span = None
        if self.span is not None:
            span = {
                "file": self.span.file,
                "line": self.span.line,
                "column": self.span.column,
                "end_column": self.span.end_column,
            }
        return {
            "code": self.code,
            "severity": self.severity,
            "message": self.message,
            "span": span,
            "label": self.label,
            "help": self.help,
            "notes": list(self.notes),
        }


class DiagnosticError(Exception):
    """Raised by any part of the compiler that refuses its input; holds every finding, in source order."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics: tuple[Diagnostic, ...] = tuple(diagnostics)
        if not self.diagnostics:
            raise ValueError("a DiagnosticError needs at least one diagnostic")
        super().__init__(self.diagnostics)

    def __str__(self) -> str:
        return render_text(self.diagnostics)


class SpecError(DiagnosticError):
    """The decoding spec is wrong: SPC0xx (loading) and SPC1xx (meaning)."""


def error(
    code: str,
    message: str,
    span: Span | None = None,
    *,
    label: str = "",
    help: str = "",
    notes: Sequence[str] = (),
) -> Diagnostic:
    """Shorthand for a Diagnostic of severity `error`."""
    return Diagnostic(code, "error", message, span, label, help, tuple(notes))


def warning(
    code: str,
    message: str,
    span: Span | None = None,
    *,
    label: str = "",
    help: str = "",
    notes: Sequence[str] = (),
) -> Diagnostic:
    """Shorthand for a Diagnostic of severity `warning`."""
    return Diagnostic(code, "warning", message, span, label, help, tuple(notes))


def in_source_order(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Stable order by file, line and column; findings without a place come last."""

    def key(item: Diagnostic) -> tuple[bool, str, int, int]:
        span = item.span
        return (True, "", 0, 0) if span is None else (False, span.file, span.line, span.column)

    return sorted(diagnostics, key=key)


def render_text(diagnostics: Iterable[Diagnostic]) -> str:
    """The diagnostics as text (of very many the first ones), separated by blank lines, without a trailing newline."""
    texts = [item.render() for item in diagnostics]
    more = len(texts) - MAX_SHOWN
    return "\n\n".join(texts[:MAX_SHOWN] + ([f"… and {more} more"] if more > 0 else []))


def render_json(diagnostics: Iterable[Diagnostic]) -> str:
    """`{"diagnostics": […]}` on one line, ASCII only."""
    return json.dumps({"diagnostics": [item.as_json() for item in diagnostics]}, sort_keys=True)


def printable(text: str, *, keep: str = "") -> str:
    """`text` with every control, format, surrogate and separator character escaped.

    Messages and source lines quote other people's files: an escape sequence, a carriage return or a
    right-to-left override must not reach the terminal. Characters in `keep` pass unchanged.
    """
    out = []
    for char in text:
        if char in keep or char == " " or unicodedata.category(char)[0] not in "CZ":
            out.append(char)
        else:
            out.append(ascii(char)[1:-1])
    return "".join(out)


def _width(text: str) -> int:
    """Terminal columns of printable text: wide East Asian characters take two, combining marks none."""
    total = 0
    for char in text:
        if unicodedata.combining(char):
            continue
        total += 2 if unicodedata.east_asian_width(char) in "WF" else 1
    return total


def _clean(text: str) -> str:
    return printable(text.replace("\t", " " * TAB_WIDTH))


def _snippet(span: Span, label: str) -> list[str]:
    """The `-->` line, the source line and the carets under it; a very long line is cut around the span."""
    number = str(span.line)
    margin = " " * len(number)
    lines = [f"{margin}--> {printable(span.file)}:{span.line}:{span.column}"]
    if span.source_line is None:
        if label:
            lines.append(f"{margin} = {printable(label)}")
        return lines
    source = span.source_line
    start = min(max(span.column - 1, 0), len(source))
    stop = min(max(span.end_column - 1, start), len(source))
    first = start - 20 if len(source) > MAX_LINE_WIDTH and start > MAX_LINE_WIDTH // 2 else 0
    last = min(len(source), first + MAX_LINE_WIDTH)
    stop = min(stop, last)
    head = ("..." if first else "") + _clean(source[first:start])
    body = _clean(source[start:stop])
    tail = _clean(source[stop:last]) + ("..." if last < len(source) else "")
    carets = " " * _width(head) + "^" * max(1, _width(body))
    lines.append(f"{margin} |")
    lines.append(f"{number} | {head}{body}{tail}".rstrip())
    lines.append(f"{margin} | {carets} {printable(label)}".rstrip())
    return lines


def _trailer(margin: str, kind: str, text: str) -> list[str]:
    """`= help: …`; further lines of the text are indented under the first."""
    first, *rest = printable(text, keep="\n").split("\n")
    indent = " " * (len(margin) + len(kind) + 4)
    return [f"{margin}= {kind}: {first}", *(f"{indent}{line}".rstrip() for line in rest)]
