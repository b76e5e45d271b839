"""SPC3xx: index analysis, IR text and verifier."""

from __future__ import annotations

from specc.codes.entry import Code

IR_CODES: tuple[Code, ...] = ()
