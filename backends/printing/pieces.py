"""A module's source in pieces, one for each statement at its top level, for rewriting it round by round.

What one round has edited the next one parses again; all other pieces keep their trees and what was found in them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeVar

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Edit:
    """Characters [start, end) of a piece become `text`."""

    start: int
    end: int
    text: str


Edits = dict[int, list[Edit]]
"""Number of a piece -> its edits."""


def walk(*roots: ast.AST) -> list[ast.AST]:
    """All nodes below, breadth first as by `ast.walk`."""
    found: list[ast.AST] = list(roots)
    for node in found:
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, ast.AST):
                found.append(value)
            elif isinstance(value, list):
                found += [item for item in value if isinstance(item, ast.AST)]
    return found


def called_name(call: ast.Call) -> str | None:
    """`f` of `f(...)` and of a launch `f[grid](...)`."""
    target = called(call)
    return target.id if isinstance(target, ast.Name) else None


def called(call: ast.Call) -> ast.expr:
    """What a call or a launch names."""
    return call.func.value if isinstance(call.func, ast.Subscript) else call.func


def constant_names(statement: ast.stmt) -> list[str]:
    """The names that an assignment at the top level of a module defines."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    if isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def is_documented(above: ast.stmt, statement: ast.stmt) -> bool:
    """Whether `statement` is the string that says what the constant above it is."""
    text = statement.value if isinstance(statement, ast.Expr) else None
    return bool(constant_names(above)) and isinstance(text, ast.Constant) and isinstance(text.value, str)


class Piece:
    """A statement with the blank lines and comments above it (a constant with the string below it); frozen."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._found: dict[Callable[[Piece], Any], Any] = {}

    def once(self, find: Callable[[Piece], Found]) -> Found:
        """What a function finds in this piece; it is asked once."""
        if find not in self._found:
            self._found[find] = find(self)
        made: Found = self._found[find]
        return made

    @cached_property
    def body(self) -> list[ast.stmt]:
        """The statements: one, with a constant's string two, or none where it was deleted."""
        return ast.parse(self.text).body

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree."""
        return walk(*self.body)

    @property
    def definition(self) -> ast.FunctionDef | None:
        """The function that this piece is, if it is one."""
        first = self.body[0] if len(self.body) == 1 else None
        return first if isinstance(first, ast.FunctionDef) else None

    @cached_property
    def calls(self) -> list[tuple[str, ast.Call]]:
        """Calls of named functions."""
        calls = [(called_name(node), node) for node in self.nodes if isinstance(node, ast.Call)]
        return [(name, node) for name, node in calls if name is not None]

    @cached_property
    def reads(self) -> frozenset[str]:
        """All names in it."""
        return frozenset(node.id for node in self.nodes if isinstance(node, ast.Name))

    @cached_property
    def loose(self) -> frozenset[str]:
        """Names that stand elsewhere than in front of a call."""
        known = {id(called(call)) for _, call in self.calls}
        return frozenset(node.id for node in self.nodes if isinstance(node, ast.Name) and id(node) not in known)

    @cached_property
    def lines(self) -> list[str]:
        """The text's lines with their ends."""
        return self.text.splitlines(keepends=True)

    @cached_property
    def starts(self) -> list[int]:
        """The offset of every line, and of the end."""
        starts = [0]
        for line in self.lines:
            starts.append(starts[-1] + len(line))
        return starts

    def with_comment(self, row: int) -> int:
        """The first row of the comment that ends above a 1-based row; the row itself without one."""
        while row > 1 and self.lines[row - 2].startswith("#"):
            row -= 1
        return row

    def offset(self, row: int, column: int) -> int:
        """The offset of a 1-based row and a column in UTF-8 bytes."""
        line = self.lines[row - 1]
        inside = column if line.isascii() else len(line.encode()[:column].decode())
        return self.starts[row - 1] + inside

    def span(self, node: ast.expr | ast.stmt | ast.arg | ast.keyword) -> tuple[int, int]:
        """Start and end of a node."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)


def split(source: str) -> list[Piece]:
    """The pieces of a module; joined they are the source."""
    lines = source.splitlines(keepends=True)
    body = ast.parse(source).body
    apart = [not is_documented(one, two) for one, two in pairwise(body)] + [True]
    ends = [node.end_lineno or 0 for node, last in zip(body, apart, strict=True) if last]
    cuts = [0, *ends, len(lines)]
    texts = ["".join(lines[start:end]) for start, end in pairwise(cuts)]
    return [Piece(text) for text in texts if text]


def joined(pieces: Iterable[Piece]) -> str:
    """The module's source."""
    return "".join(piece.text for piece in pieces)


def functions(pieces: Sequence[Piece], names: frozenset[str]) -> dict[str, tuple[int, Piece, ast.FunctionDef]]:
    """The named functions at the top level with the numbers of their pieces."""
    found = [(number, piece, piece.definition) for number, piece in enumerate(pieces)]
    return {made.name: (number, piece, made) for number, piece, made in found if made and made.name in names}


def apply(source: str, edits: Iterable[Edit]) -> str:
    """The source with the edits made; of edits that overlap, the outermost is."""
    end = 0
    parts: list[str] = []
    for edit in sorted(edits, key=lambda item: (item.start, -item.end)):
        if edit.start < end:
            continue
        parts += [source[end : edit.start], edit.text]
        end = edit.end
    return "".join([*parts, source[end:]])


def edited(pieces: Sequence[Piece], edits: Mapping[int, Iterable[Edit]]) -> list[Piece]:
    """The pieces after a round; those without edits are the same objects."""
    made: list[Piece] = []
    for number, piece in enumerate(pieces):
        text = apply(piece.text, edits[number]) if number in edits else piece.text
        if text:
            made.append(piece if text == piece.text else Piece(text))
    return made


def rounds(
    pieces: list[Piece],
    names: frozenset[str],
    finds: Sequence[Callable[[list[Piece], frozenset[str]], Edits]],
    most: int,
) -> list[Piece]:
    """The pieces after all edits that `finds` ask for in turn, round by round, until there are none."""
    for _ in range(most):
        before = pieces
        for find in finds:
            pieces = edited(pieces, find(pieces, names))
        if pieces == before:
            break
    return pieces
