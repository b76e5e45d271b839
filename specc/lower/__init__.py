"""Lowering: spec -> naive, token-major DecodeProgram (`assemble.lower`)."""

from __future__ import annotations
