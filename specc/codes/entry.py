"""The record that describes one diagnostic code."""

from __future__ import annotations

from dataclasses import dataclass

SPEC_START = """\
specc: 1
name: demo
target: {family: llama, config: {num_hidden_layers: 2, hidden_size: 64, num_attention_heads: 4,
         intermediate_size: 128, vocab_size: 256, max_position_embeddings: 512}}
"""
"""The first lines of examples: a small, valid spec by itself."""


@dataclass(frozen=True, slots=True)
class Code:
    """A code, a one-line title, and the explanation that `specc explain` prints.

    `example` is a minimal text that raises the code: a spec for SPC0xx and SPC1xx (with `--set` overrides where
    given), else a spec, command or IR text.
    """

    code: str
    title: str
    explanation: str
    example: str = ""
    overrides: tuple[str, ...] = ()
