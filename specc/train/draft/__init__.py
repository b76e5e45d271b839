"""Training of drafters: text that a target wrote itself, and heads that learn to foresee it."""

from __future__ import annotations
