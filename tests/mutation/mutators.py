"""Seeded faults in Python source: every place where an expression or a statement can be made wrong, one at a time.

Nothing is changed where a change can't be observed: docstrings, annotations, messages, notes, names of nodes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

COMPARE = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
BINARY = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.BitAnd: ast.BitOr}
# The ops that programs are built of: an op against one with the same operands.
OPS = {
    "logical_and": "logical_or",
    "logical_or": "logical_and",
    "lt": "le",
    "le": "lt",
    "gt": "ge",
    "ge": "gt",
    "eq": "ne",
    "ne": "eq",
    "add": "sub",
    "sub": "add",
    "mul": "add",
    "minimum": "maximum",
    "maximum": "minimum",
    "argmax": "argmin",
    "cumsum": "cumprod",
    "clamp_min": "clamp_max",
    "clamp_max": "clamp_min",
}
# Calls whose arguments are text for people.
TALK = {
    "Note",
    "note",
    "error",
    "Diagnostic",
    "Refused",
    "ValueError",
    "KeyError",
    "TypeError",
    "RuntimeError",
    "miss",
    "fail",
}
SILENT_KEYWORDS = {"name", "keys", "doc", "help", "message", "label"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault: `before` at `line` and `column` (from 1) of `path` becomes `after`; `start`, `end` in the text."""

    path: str
    line: int
    column: int
    kind: str
    before: str
    after: str
    start: int
    end: int

    def apply(self, text: str) -> str:
        """The file with the fault."""
        return text[: self.start] + self.after + text[self.end :]

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column} {self.kind}: {self.before} -> {self.after}"


class _Places(ast.NodeVisitor):
    def __init__(self) -> None:
        self.found: list[tuple[str, ast.AST, str]] = []

    def add(self, kind: str, node: ast.AST, new: str) -> None:
        self.found.append((kind, node, new))

    def generic_visit(self, node: ast.AST) -> None:
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    self.visit(child)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        return

    def visit_Raise(self, node: ast.Raise) -> None:
        return

    def visit_Assert(self, node: ast.Assert) -> None:
        return

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for child in node.body:
            if isinstance(child, ast.FunctionDef):
                self.visit(child)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for child in node.body:
            self.visit(child)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            return
        if isinstance(node.value, ast.Call) and _name(node.value.func) not in TALK:
            self.add("statement dropped", node, "pass")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if _name(node.func) in TALK:
            return
        self.visit(node.func)
        for argument in node.args:
            self.visit(argument)
        for keyword in node.keywords:
            if keyword.arg not in SILENT_KEYWORDS:
                self.visit(keyword.value)
        plain = [argument for argument in node.args if not isinstance(argument, ast.Starred)]
        if len(plain) == len(node.args) >= 3 and _is_where(node):
            changed = ast.Call(node.func, [*node.args[:-2], node.args[-1], node.args[-2]], node.keywords)
            self.add("branches of where swapped", node, ast.unparse(changed))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        inner = node.value
        if isinstance(inner, ast.Attribute) and _name(inner.value) == "aten" and inner.attr in OPS:
            self.add("op", node, f"aten.{OPS[inner.attr]}.{node.attr}")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1 and type(node.ops[0]) in COMPARE:
            changed = ast.Compare(node.left, [COMPARE[type(node.ops[0])]()], node.comparators)
            self.add("comparison", node, ast.unparse(changed))
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in BINARY and not _is_text(node):
            self.add("arithmetic", node, f"({ast.unparse(ast.BinOp(node.left, BINARY[type(node.op)](), node.right))})")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self.add("and/or", node, f"({ast.unparse(ast.BoolOp(other, node.values))})")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, (ast.Not, ast.Invert)):
            self.add("negation dropped", node, f"({ast.unparse(node.operand)})")
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        self.add("condition negated", node.test, f"(not ({ast.unparse(node.test)}))")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.add("flag", node, str(not node.value))
        elif isinstance(node.value, int):
            self.add("number", node, str(node.value + 1))


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _is_where(node: ast.Call) -> bool:
    texts = [ast.unparse(node.func), *(ast.unparse(argument) for argument in node.args[:1])]
    return any("where" in text for text in texts)


def _is_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in (node.left, node.right)
    )


def mutants(path: Path, root: Path) -> Iterator[Mutant]:
    """Every single fault of a file, in source order; texts that don't parse afterwards are left out."""
    text = path.read_text(encoding="utf-8")
    offsets = [0]
    for line in text.encode().split(b"\n"):
        offsets.append(offsets[-1] + len(line) + 1)
    data = text.encode()
    places = _Places()
    places.visit(ast.parse(text))
    for kind, node, new in places.found:
        start = offsets[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        end = offsets[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
        before = data[start:end].decode()
        first = len(data[:start].decode())
        made = Mutant(
            str(path.relative_to(root)),
            node.lineno,
            node.col_offset + 1,
            kind,
            before,
            new,
            first,
            first + len(before),  # type: ignore[attr-defined]
        )
        try:
            ast.parse(made.apply(text))
        except SyntaxError:
            continue
        yield made
