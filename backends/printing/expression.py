"""Source expressions with their precedence, so that parentheses appear only where they are needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LOWEST, COMPARE, OR, XOR, AND, SHIFT, ADD, MUL, UNARY, ATOM = range(10)


@dataclass(frozen=True, slots=True)
class Expr:
    """Source text and how tightly it binds. `size` counts the operations inside (a limit for inlining)."""

    text: str
    level: int = ATOM
    size: int = 0

    def at(self, level: int) -> str:
        """The text, in parentheses if it binds less tightly than `level`."""
        return self.text if self.level >= level else f"({self.text})"


def infix(operator: str, level: int, left: Expr, right: Expr) -> Expr:
    """`left operator right`, left-associative; comparisons never chain."""
    first = left.at(level + 1 if level == COMPARE else level)
    return Expr(f"{first} {operator} {right.at(level + 1)}", level, left.size + right.size + 1)


def prefix(operator: str, operand: Expr) -> Expr:
    """`-x`, `~x`."""
    return Expr(f"{operator}{operand.at(UNARY)}", UNARY, operand.size + 1)


def call(function: str, arguments: Sequence[Expr], keywords: Sequence[tuple[str, Expr]] = ()) -> Expr:
    """`function(arguments, key=value)`."""
    parts = [argument.text for argument in arguments] + [f"{name}={item.text}" for name, item in keywords]
    size = 1 + sum(item.size for item in arguments) + sum(item.size for _, item in keywords)
    return Expr(f"{function}({', '.join(parts)})", ATOM, size)


def method(receiver: Expr, name: str, arguments: Sequence[Expr], keywords: Sequence[tuple[str, Expr]] = ()) -> Expr:
    """`receiver.name(arguments)`."""
    made = call(f"{receiver.at(ATOM)}.{name}", arguments, keywords)
    return Expr(made.text, ATOM, made.size + receiver.size)


def subscript(receiver: Expr, indices: Sequence[Expr]) -> Expr:
    """`receiver[indices]`."""
    inside = ", ".join(index.text for index in indices)
    size = 1 + receiver.size + sum(index.size for index in indices)
    return Expr(f"{receiver.at(ATOM)}[{inside}]", ATOM, size)


def listing(items: Sequence[Expr]) -> Expr:
    """`[a, b]`."""
    return Expr("[" + ", ".join(item.text for item in items) + "]", ATOM, sum(item.size for item in items))
