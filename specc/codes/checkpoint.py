"""SPC4xx: checkpoints, fetching and running."""

from __future__ import annotations

from specc.codes.entry import Code

CHECKPOINT_CODES: tuple[Code, ...] = ()
