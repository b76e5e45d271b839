"""The final programs of eight shipped specs, as text: a change of lowering or passes shows up here to be read.

After a change that is meant: python tests/golden/test_golden.py
"""

from __future__ import annotations

from pathlib import Path

import pytest

from specc.driver import lower_spec, run_passes
from specc.ir.printer import print_program
from specc.spec import load

HERE = Path(__file__).resolve().parent
SPECS = HERE.parents[1] / "specs"
NAMES = (
    "eagle-pangu",
    "gdn-15m-tree",
    "pangu-chain",
    "qwen3-dynamic-tree",
    "qwen3-next-hybrid",
    "smollm2-plain",
    "smollm2-prompt-lookup-tree",
    "smollm2-rejection",
)


def text_of(name: str) -> str:
    """The program after all passes."""
    loaded = load(SPECS / f"{name}.yaml")
    return print_program(run_passes(loaded, lower_spec(loaded)).program)


@pytest.mark.parametrize("name", NAMES)
def test_final_program_is_the_recorded_one(name: str) -> None:
    assert text_of(name) == (HERE / f"{name}.ir").read_text(encoding="utf-8")


if __name__ == "__main__":
    for each in NAMES:
        (HERE / f"{each}.ir").write_text(text_of(each), encoding="utf-8")
