"""SPC1xx: the meaning of a spec."""

from __future__ import annotations

from specc.codes.entry import Code

SEMANTIC_CODES: tuple[Code, ...] = ()
