"""Configurations of the table compile for sm_90 without a GPU and spill nothing; T = 64 still does and is left out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
GROUPS = ("tree 16", "tree 32", "pending 16", "walk", "commit", "conv")


@pytest.mark.slow
@pytest.mark.parametrize("keys", [128, 256])
@pytest.mark.parametrize("group", GROUPS)
def test_configurations_spill_nothing(group: str, keys: int) -> None:
    """In a process of its own: kernels of this one are the interpreter's."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    words = [sys.executable, "-m", "tests.backends.triton.compiled_kernels", group, str(keys)]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found
    assert {name: used for name, used in found.items() if used["spills"]} == {}
    assert all(16 <= used["registers"] <= 255 and used["shared"] <= 232448 for used in found.values())
