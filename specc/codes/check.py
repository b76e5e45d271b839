"""SPC5xx: findings of specc check."""

from __future__ import annotations

from specc.codes.entry import Code

CHECK_CODES: tuple[Code, ...] = ()
