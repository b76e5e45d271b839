"""SPC0xx: reading the YAML text."""

from __future__ import annotations

from specc.codes.entry import Code

LOADING_CODES: tuple[Code, ...] = ()
