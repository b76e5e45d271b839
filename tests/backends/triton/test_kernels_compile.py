"""Configurations of the table compile for sm_90 without a GPU and spill nothing; T = 64 still does and is left out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
GROUPS = ("tree 16", "tree 32", "pending 16", "walk", "commit", "conv")


def printed(module: str, *words: object) -> Any:
    """What a module prints in a process of its own: kernels of this one are the interpreter's."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", f"tests.backends.triton.{module}", *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("keys", [128, 256])
@pytest.mark.parametrize("group", GROUPS)
def test_configurations_spill_nothing(group: str, keys: int) -> None:
    found = printed("compiled_kernels", group, keys)
    assert found
    assert {name: used for name, used in found.items() if used["spills"]} == {}
    assert all(16 <= used["registers"] <= 255 and used["shared"] <= 232448 for used in found.values())
