"""Kernel tests run in Triton's interpreter on the CPU; where it can't, they are not collected (see NOT_HERE)."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from specc.testing.triton_interpreter import keep_patches


def not_here() -> str:
    """Why the kernels' tests can't run here; empty if they can."""
    try:
        version = metadata.version("triton")
    except metadata.PackageNotFoundError:
        return "Triton is not installed"
    if tuple(map(int, version.split(".")[:2])) < (3, 7):
        return f"the interpreter of Triton {version} can't loop to a bound read from memory under NumPy 2.4"
    return ""


NOT_HERE = not_here()
ALWAYS = "test_triton_installed.py"
"""Says why the others are missing."""
collect_ignore = [path.name for path in Path(__file__).parent.glob("test_*.py") if NOT_HERE and path.name != ALWAYS]

if not NOT_HERE:
    keep_patches()
