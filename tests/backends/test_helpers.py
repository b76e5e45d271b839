"""What a generated module's helpers carry with them: what a constant is, and nothing that is not referred to."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from specc.backends.printing.helpers import HelperSources, source_file
from specc.backends.printing.specialise import specialise

SOURCE = '''"""A module."""
# Two of them.
PAIR = 2
LEAST: int = 8
"""Rows at least:

as many as a product has.
"""
BARE = 3

"""No constant stands right above this text."""


# Of the function.
def rows(x):
    """Rows of x."""
    return max(x, LEAST) * PAIR + BARE
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of an importable module with SOURCE."""
    name = "helpers_under_test"
    (tmp_path / f"{name}.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("specc.backends.printing.helpers.PACKAGE", name)
    yield name
    sys.modules.pop(name, None)
    source_file.cache_clear()


def test_a_constant_comes_with_its_comment_and_the_text_below_it(module: str) -> None:
    sources = HelperSources()
    sources.add_definition(module, "rows")
    assert "# Two of them.\nPAIR = 2" in sources.texts
    assert 'LEAST: int = 8\n"""Rows at least:\n\nas many as a product has.\n"""' in sources.texts
    assert sources.texts[-1].startswith("def rows(x):\n")


def test_a_constant_with_another_value_keeps_its_text(module: str) -> None:
    sources = HelperSources(replaced={(module, "LEAST"): "16", (module, "PAIR"): "4"})
    sources.add_definition(module, "rows")
    assert "# Two of them.\nPAIR = 4" in sources.texts
    assert any(text.startswith('LEAST: int = 16\n"""Rows at least:') for text in sources.texts)


KEPT = '''
SIZE = 4
"""Elements."""


def f(x):
    return x + SIZE


def run(x):
    return f(x)
'''
SPARE = '''
# Only the class below reads it.
WIDTH: int = 3
"""Of what is gone."""


class Gone:
    width: int = WIDTH


'''


def test_constants_and_classes_that_nothing_refers_to_go_with_their_texts() -> None:
    made = specialise(SPARE + KEPT, {"SIZE", "WIDTH", "Gone", "f"})
    assert made.strip() == KEPT.strip()


def test_a_constant_of_the_interface_stays() -> None:
    assert specialise(SPARE + KEPT, {"SIZE", "f"}) == SPARE + KEPT
