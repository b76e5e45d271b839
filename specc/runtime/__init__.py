"""What runs around generated modules on the host: fetching, tokenizing, prompts, generation, traces."""

from __future__ import annotations
