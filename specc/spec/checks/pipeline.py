"""Explicit pass lists."""

from __future__ import annotations

from collections.abc import Iterator

from specc.diagnostics import Diagnostic
from specc.spec.checks.view import View
from specc.spec.names import PASS_NAMES
from specc.spec.suggest import did_you_mean


def pass_names(view: View) -> Iterator[Diagnostic]:
    """Every pass exists (SPC170)."""
    for index, entry in enumerate(view.passes or ()):
        if entry.name not in PASS_NAMES:
            yield view.error(
                "SPC170",
                f"unknown pass `{entry.name}`",
                "passes", index,
                label="no such pass",
                help=did_you_mean(entry.name, PASS_NAMES),
            )  # fmt: skip
