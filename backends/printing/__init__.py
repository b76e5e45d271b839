"""Printing of standalone modules from step graphs: what all backends share. A backend adds a `Dialect`."""

from __future__ import annotations
