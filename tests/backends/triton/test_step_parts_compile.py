"""The kernels around attention, products and recurrences compile for sm_90 without a GPU, and spill nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.backends.triton.conftest import NOT_HERE

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
@pytest.mark.skipif(bool(NOT_HERE), reason=NOT_HERE)
@pytest.mark.parametrize("group", ["rows", "49152", "151936"])
def test_nothing_spills(group: str) -> None:
    """In a process of its own: kernels of this one are the interpreter's."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    words = [sys.executable, "-m", "tests.backends.triton.compiled_step_parts", group]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) > 8
    assert {name: used for name, used in found.items() if used["spills"]} == {}
    assert all(8 <= used["registers"] <= 255 and used["shared"] <= 232448 for used in found.values())
