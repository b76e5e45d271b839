"""Target families: geometry, weight names, checkpoint loading."""

from __future__ import annotations
