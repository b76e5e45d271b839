"""Benchmarks, comparisons with other implementations, and the demonstration: scripts that print and keep numbers."""

from __future__ import annotations
