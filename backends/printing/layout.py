"""Formats generated source with ruff (a runtime dependency), isolated from any configuration of its user."""

from __future__ import annotations

import subprocess

from ruff import find_ruff_bin  # type: ignore[import-untyped, unused-ignore]

COMMAND = (
    "format",
    "--isolated",
    "--no-cache",
    "--quiet",
    "--target-version",
    "py311",
    "--stdin-filename",
    "module.py",
)


def format_source(source: str) -> str:
    """The source in ruff's default style, so that `ruff format --check` passes. Raises ValueError if it is no Python.

    Raises OSError where the `ruff` executable of the environment can't be run.
    """
    done = subprocess.run(
        [find_ruff_bin(), *COMMAND, "-"], input=source, capture_output=True, text=True, check=False, encoding="utf-8"
    )
    if done.returncode != 0:
        raise ValueError(f"generated source is not valid Python: {done.stderr.strip()}")
    return done.stdout
