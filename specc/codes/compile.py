"""SPC2xx: a valid spec that this compiler refuses."""

from __future__ import annotations

from specc.codes.entry import Code

COMPILE_CODES: tuple[Code, ...] = ()
