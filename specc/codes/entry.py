"""The record that describes one diagnostic code."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Code:
    """A code, a one-line title, and the explanation that `specc explain` prints.

    `example` is a minimal text that raises the code: a spec for SPC0xx and SPC1xx, else a spec, a command or
    IR text.
    """

    code: str
    title: str
    explanation: str
    example: str = ""
