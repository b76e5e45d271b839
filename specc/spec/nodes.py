"""YAML text to PyYAML's node graph, with a depth limit and syntax errors as diagnostics."""

from __future__ import annotations

from typing import Any

import yaml
from yaml.composer import Composer
from yaml.nodes import Node, ScalarNode, SequenceNode
from yaml.parser import Parser
from yaml.reader import Reader, ReaderError
from yaml.resolver import BaseResolver
from yaml.scanner import Scanner

from specc.diagnostics import Diagnostic, Span, SpecError, error
from specc.spec.source import split_lines

MAX_DEPTH = 24
PLAIN = "plain"
PREFIX = "tag:yaml.org,2002:"


class _TooDeep(yaml.MarkedYAMLError):
    """Raised while composing; a node graph nested beyond MAX_DEPTH would overflow the recursive composer."""


class _Composer(Reader, Scanner, Parser, Composer, BaseResolver):
    """PyYAML's front end without its resolver: unquoted scalars keep the tag `plain` until we read them."""

    def __init__(self, text: str) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)
        Composer.__init__(self)
        BaseResolver.__init__(self)
        self.depth = 0

    def resolve(self, kind: type[Node], value: Any, implicit: Any) -> str:
        if kind is ScalarNode:
            return PLAIN if implicit[0] else PREFIX + "str"
        return PREFIX + ("seq" if kind is SequenceNode else "map")

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _TooDeep(problem_mark=self.next_mark())
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def next_mark(self) -> Any:
        """Where the next event starts."""
        return self.peek_event().start_mark  # type: ignore[no-untyped-call]


class Text:
    """A YAML text and where it stands: the root of spans, line 0 of a file or a part of an override.

    `column_offset` and `line_offset` are 0-based; `source_line` replaces the lines of a part of another text.
    """

    def __init__(
        self,
        text: str,
        file: str,
        line_offset: int = 0,
        column_offset: int = 0,
        source_line: str | None = None,
    ) -> None:
        self.text = text
        self.file = file
        self.lines = split_lines(text)
        self.line_offset = line_offset
        self.column_offset = column_offset
        self.source_line = source_line

    def at(self, line: int, column: int, end_column: int | None = None) -> Span:
        """A span from 0-based line and column; `end_column` None means one character."""
        source = self.source_line
        if source is None:
            source = self.lines[line] if line < len(self.lines) else ""
        end = column + 1 if end_column is None else end_column
        shift = self.column_offset + 1
        return Span(self.file, line + self.line_offset + 1, column + shift, end + shift, source)

    def span(self, node: Node) -> Span:
        """The node's span, cut at the end of its first line and at least one character wide."""
        start, end = node.start_mark, node.end_mark
        stop = end.column if end.line == start.line else len(self.lines[start.line])
        return self.at(start.line, start.column, max(stop, start.column + 1))


def compose_nodes(text: Text) -> tuple[Node | None, list[Diagnostic]]:
    """The node graph of the first document (None if empty). Raises SpecError where the text is not YAML."""
    try:
        composer = _Composer(text.text)
        try:
            if not composer.check_node():
                return None, []
            node = composer.get_node()
            return node, [_several(text, composer.next_mark())] if composer.check_node() else []
        finally:
            composer.dispose()
    except _TooDeep as problem:
        raise SpecError([too_deep(_mark(text, problem.problem_mark))]) from None
    except ReaderError as problem:
        raise SpecError([_bad_character(text, problem)]) from None
    except yaml.MarkedYAMLError as problem:
        raise SpecError([_syntax(text, problem)]) from None


def too_deep(span: Span | None) -> Diagnostic:
    """SPC012."""
    return error(
        "SPC012",
        f"values are nested more than {MAX_DEPTH} deep",
        span,
        label="too deep",
        help="no key of a spec needs more than 5 levels",
    )


def _mark(text: Text, mark: Any) -> Span | None:
    return None if mark is None else text.at(mark.line, mark.column)


def _several(text: Text, mark: Any) -> Diagnostic:
    return error(
        "SPC014",
        "more than one YAML document in the file",
        text.at(mark.line, mark.column, mark.column + 3),
        label="a second document starts here",
        help="one file holds one spec; remove the `---`",
    )


def _bad_character(text: Text, problem: ReaderError) -> Diagnostic:
    before = split_lines(text.text[: problem.position])
    code = problem.character if isinstance(problem.character, int) else ord(problem.character)
    return error(
        "SPC001",
        f"the character U+{code:04X} is not allowed in YAML",
        text.at(len(before) - 1, len(before[-1])),
        label="not allowed",
        help="remove it; in double quotes it can be written as an escape",
    )


def _syntax(text: Text, problem: yaml.MarkedYAMLError) -> Diagnostic:
    what = problem.problem or "it can't be read"
    help_text = "check the brackets, quotes and indentation here and above"
    if "'\\t'" in what:
        help_text = "indent with spaces: YAML does not allow tabs there"
    elif "mapping values are not allowed" in what:
        help_text = "put text that contains `: ` in quotes, and check the indentation"
    elif "undefined alias" in what:
        help_text = "define it first, as in `key: &name value`"
    elif "second occurrence" in what:
        what, help_text = "an anchor of this name stands above", "give one of the two anchors another name"
    notes = []
    if problem.context and problem.context_mark:
        notes = [f"{problem.context}, line {problem.context_mark.line + text.line_offset + 1}"]
    span = _mark(text, problem.problem_mark or problem.context_mark)
    return error("SPC001", f"not valid YAML: {what}", span, label="here", help=help_text, notes=notes)
