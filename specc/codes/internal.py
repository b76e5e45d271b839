"""SPC9xx: errors of the compiler itself."""

from __future__ import annotations

from specc.codes.entry import Code

INTERNAL_CODES: tuple[Code, ...] = ()
