"""Second copies and unread values of a module's functions go; what is read, written or called by name stays."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from specc.backends.printing.tidy import tidy

HEAD = """
class tl:
    constexpr = int
    written = []

    @staticmethod
    def load(x):
        return x

    @staticmethod
    def store(x):
        tl.written.append(x)


class triton:
    @staticmethod
    def jit(function):
        return function


"""
COPIES = """
# The first.
@triton.jit
def a_kernel(x_at):
    x = tl.load(x_at)
    return x + 1


def a(x):
    'One.'
    return a_kernel(x)


# The second.
@triton.jit
def b_kernel(y_at):
    y = tl.load(y_at)
    return y + 1


def b(y):
    'Two.'
    return b_kernel(y)


def run(x):
    return a(x) + 10 * b(x)
"""


def tidied(source: str) -> str:
    names = [node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name != "run"]
    return tidy(source, names)


def result(source: str, *arguments: Any) -> Any:
    space: dict[str, Any] = {}
    exec(compile(source, "module", "exec"), space)
    return space["run"](*arguments), space["tl"].written


def test_equal_functions_become_one_through_their_callers() -> None:
    made = tidied(HEAD + COPIES)
    assert result(made, 2) == result(HEAD + COPIES, 2) == (33, [])
    assert "b_kernel" not in made
    assert "def b" not in made
    assert "# The second." not in made
    assert "# The first." in made


def test_functions_that_differ_or_are_called_by_name_stay() -> None:
    source = HEAD + (
        "def a(x, y):\n    return x - y\n\n\ndef b(y, x):\n    return y - x\n\n\n"
        "def run(x):\n    return a(x=x, y=1) + b(y=x, x=3)\n"
    )
    assert tidied(source) == source


@pytest.mark.parametrize("line", ["tl.store(x)", "y = tl.store(x)", "y = helper(x)", "z = 1\n    tl.store(z)"])
def test_effects_stay(line: str) -> None:
    source = HEAD + (
        "@triton.jit\ndef helper(x):\n    tl.store(x)\n    return x\n\n\n"
        f"@triton.jit\ndef kernel(x):\n    {line}\n    return x\n\n\ndef run(x):\n    return kernel(x)\n"
    )
    assert result(tidied(source), 4) == result(source, 4)


def test_values_that_nothing_reads_go_one_after_the_other() -> None:
    source = HEAD + (
        "@triton.jit\ndef twice(x):\n    return x * 2\n\n\n"
        "@triton.jit\ndef kernel(x_at):\n    x = tl.load(x_at)\n    first = twice(x)\n    second = first + 1\n"
        "    return x\n\n\ndef run(x):\n    return kernel(x)\n"
    )
    made = tidied(source)
    assert result(made, 3) == (3, [])
    assert "first" not in made
    assert "second" not in made


@pytest.mark.parametrize(
    ("line", "goes"),
    [
        ("y = tl.load(x)", True),
        ("y = x.to(int)", True),
        ("y = x + 1", True),
        ("y = tl.atomic_add(x, 1)", False),
        ("y = tl.debug_barrier()", False),
        ("y = x.append(1)", False),
        ("y = other.load(x)", False),
        ("y = unknown(x)", False),
        ("y = z = x", False),
        ("x = x + 1", False),
        ("if x:\n        y = 1", False),
    ],
)
def test_an_unread_value_goes_where_nothing_else_comes_of_it(line: str, goes: bool) -> None:
    source = f"@triton.jit\ndef kernel(x):\n    {line}\n    return x\n\n\ndef run(x):\n    return kernel(x)\n"
    assert (line not in tidied(source)) == goes
    assert tidied(source.replace("@triton.jit\n", "")).count(line) == 1, "host code stays"
