"""The tables of the EAGLE-Pangu paper on models of ours: `specc bench eagle-pangu`."""

from __future__ import annotations
