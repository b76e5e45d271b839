"""Constants bound in a module's functions: the same results from less code."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specc.backends.printing.specialise import specialise


def specialised(source: str) -> str:
    names = [node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name != "run"]
    return specialise(source, names)


def result(source: str, *arguments: Any) -> Any:
    space: dict[str, Any] = {}
    exec(compile(source, "module", "exec"), space)
    return space["run"](*arguments)


def test_a_constant_is_bound_through_two_calls_and_its_branch_goes() -> None:
    source = """
def inner(x, window, scale=2):
    if window > 0 and x > 0:
        x = x - window
    elif window == -1:
        x = 7
    else:
        # All rows.
        x = x * scale
    return x


def outer(x, window):
    return inner(x, window) + (1 if window is None else 3)


def run(x):
    return outer(x, 0)
"""
    made = specialised(source)
    assert result(made, 5) == result(source, 5) == 13
    assert "window" not in made
    assert "if" not in made
    assert "# All rows." in made


def test_calls_that_differ_keep_the_parameter() -> None:
    source = "def f(x, a, b):\n    return x + a * b\n\n\ndef run(x):\n    return f(x, 1, 4) + f(x, 2, b=4)\n"
    made = specialised(source)
    assert result(made, 1) == result(source, 1)
    assert "def f(x, a):" in made
    assert "f(x, 2)" in made


@pytest.mark.parametrize(
    "other", ["g = f", "def g():\n    return [f][0]", "def g(x):\n    return f(*x)", "def g(x):\n    return f(**x)"]
)
def test_a_function_that_is_used_otherwise_stays_as_it_is(other: str) -> None:
    source = f"def f(a):\n    return a + 1\n\n\n{other}\n\n\ndef run():\n    return f(3)\n"
    assert specialise(source, ["f"]) == source


def test_a_parameter_that_is_assigned_or_shadowed_stays() -> None:
    source = (
        "def f(x, a, b):\n    a = a + 1\n    return a + sum((lambda b: b)(i) for i in range(x)) + b\n\n\n"
        "def run(x):\n    return f(x, 3, 4)\n"
    )
    assert specialised(source) == source


def test_launches_are_calls_too_and_functions_that_nothing_calls_go() -> None:
    source = """
class Kernel:
    def __init__(self, function):
        self.function = function

    def __getitem__(self, grid):
        return self.function


def launched(function):
    return Kernel(function)


@launched
def kernel(x, BLOCK, MASK=False):
    return x + BLOCK if not MASK else helper(x)


def helper(x):
    return x


def run(x):
    return kernel[(1, 2)](x, BLOCK=16)
"""
    made = specialise(source, ["kernel", "helper"])
    assert result(made, 2) == result(source, 2) == 18
    assert "BLOCK" not in made
    assert "helper" not in made
    assert "MASK" not in made


ATOMS = st.sampled_from(["x > 2", "a == 1", "not b", "b", "a > x", "c is None", "a < 3 and b", "x or b", "c == 'k'"])
TESTS = st.recursive(
    ATOMS,
    lambda inner: st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda t: f"({t[0]}) {t[1]} ({t[2]})"),
    max_leaves=3,
)


def statements(depth: int) -> st.SearchStrategy[list[str]]:
    simple = st.sampled_from(["x = x + a", "x = x * 2", "x -= 1 if b else 5", "pass"]).map(lambda line: [line])
    if depth == 0:
        return simple

    def branch(parts: tuple[str, list[str], str | None, list[str], list[str] | None]) -> list[str]:
        test, body, other, otherwise, last = parts
        lines = [f"if {test}:", *(f"    {line}" for line in body)]
        lines += [] if other is None else [f"elif {other}:", *(f"    {line}" for line in otherwise)]
        return lines + ([] if last is None else ["else:", *(f"    {line}" for line in last)])

    inner = statements(depth - 1)
    branches = st.tuples(TESTS, inner, st.none() | TESTS, inner, st.none() | inner).map(branch)
    return st.lists(simple | branches, min_size=1, max_size=3).map(
        lambda parts: [line for part in parts for line in part]
    )


@given(
    statements(2),
    st.integers(-2, 4),
    st.booleans(),
    st.sampled_from(["None", "'k'", "2.5"]),
    st.integers(-3, 6),
    st.integers(-3, 6),
)
def test_the_result_is_the_same(body: list[str], a: int, b: bool, c: str, first: int, second: int) -> None:
    inside = "\n".join(f"    {line}" for line in body)
    source = f"def f(x, a, b, c):\n{inside}\n    return x\n\n\ndef run(x):\n    return f(x, {a}, {b}, c={c})\n"
    made = specialised(source)
    for x in (first, second):
        assert result(made, x) == result(source, x)
    assert "f(x)" in made


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("0 < a < x", "9 < x"),
        ("0 < b < x", "False"),
        ("float(c or 1.0)", "1.0"),
        ("float(a)", "9.0"),
        ("float(a and b)", "0.0"),
        ("x < a < b", "x < 9 < 0"),
        ("b or x", "x"),
        ("x > 1 and x < 9", "x > 1 and x < 9"),
        ("a == 9", "True"),
        ("a != 9", "False"),
        ("a >= 9", "True"),
        ("a > 9", "False"),
        ("a <= 8", "False"),
        ("b < 0", "False"),
        ("c is None", "False"),
        ("c is not None", "True"),
        ('float("inf") > x', 'float("inf") > x'),
    ],
)
def test_values_of_constants_are_worked_out(text: str, left: str) -> None:
    source = f"def f(x, a, b, c):\n    return {text}\n\n\ndef run(x):\n    return f(x, 9, 0, 0.0)\n"
    made = specialised(source)
    assert f"return {left}\n" in made
    for x in (-1, 5, 50):
        assert result(made, x) == result(source, x)


CALL = "\n\n\ndef run(x):\n    return f(x, 0, 1)\n"


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("if x > 3:\n    x = 1\nelif a:\n    x = 2", "if x > 3:\n    x = 1"),
        ("x = 1\nif b:\n    # Why,\n    # and how.\n    x = 2", "x = 1\n# Why,\n# and how.\nx = 2"),
        ("if x > 3:\n    if a:\n        x = 1\n    if a:\n        x = 2", "if x > 3:\n    pass"),
        ("if x > 3:\n    if a:\n        x = 1\n    x = 2", "if x > 3:\n    x = 2"),
        ("if a:\n    x = 1\nelif b:\n    x = 2\nelse:\n    x = 3", "x = 2"),
    ],
)
def test_what_is_left_of_a_branch_is_what_one_would_write(body: str, left: str) -> None:
    def function(parameters: str, lines: str) -> str:
        return f"def f({parameters}):\n" + "".join(f"    {line}\n" for line in lines.split("\n")) + "    return x"

    assert specialise(function("x, a, b", body) + CALL, ["f"]) == function("x", left) + CALL.replace(", 0, 1", "")


@pytest.mark.parametrize("call", ["f(3)", "f(\n        3,\n    )", "f(a=3, )", "f(3, b=2)"])
def test_a_function_may_lose_all_parameters(call: str) -> None:
    made = specialise(f"def f(a, b=2):\n    return a + b\n\n\ndef run():\n    return {call}\n", ["f"])
    assert "def f():\n    return 3 + 2\n" in made
    assert "".join(made.split()).endswith("returnf()")


def test_parameters_go_from_between_others() -> None:
    source = "def f(a, x, b, c, y):\n    return a * x + b * y + c\n\n\ndef run(x):\n    return f(2, x, 3, 4, y=x + 1)\n"
    made = specialise(source, ["f"])
    assert "def f(x, y):\n    return 2 * x + 3 * y + 4\n" in made
    assert made.endswith("return f(x, y=x + 1)\n")
