"""Named faults have a place to be planted at: a line that was rewritten takes its faults along."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutation.named import NAMED, Fault
from tests.mutation.named_recurrent import RECURRENT

ROOT = Path(__file__).resolve().parents[2]
FAULTS = (*NAMED, *RECURRENT)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_planted_in_one_place_and_parses(fault: Fault) -> None:
    text = (ROOT / fault.path).read_text("utf-8")
    assert text.count(fault.old) == 1
    changed = text.replace(fault.old, fault.new)
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text))


def test_names_are_different() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
