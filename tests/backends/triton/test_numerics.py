"""`numerics: fast` changes one constant of the module and nothing else; `exact` products are near float32."""

from __future__ import annotations

import re

import pytest

from specc.driver import compile_spec
from specc.spec.load import loads

SPEC = """specc: 1
name: tiny
target: {family: gated_deltanet, config: {num_hidden_layers: 2, hidden_size: 32, num_heads: 2, head_dim: 16,
  expand_v: 1, conv_size: 4, intermediate_size: 48, vocab_size: 23, max_position_embeddings: 64}}
draft: {method: prompt_lookup, tree: dynamic, num_speculative_tokens: 5, num_steps: 3, top_k: 2,
  ngram: {min: 1, max: 3}}
accept: {method: greedy, stop_tokens: [5]}
verify: {recurrence: tree}
commit: {state: factors, update: deferred}
runtime: {max_batch_size: 2, max_sequence_length: 48, dtype: float32}
"""
pytest.importorskip("triton")


def body(text: str) -> list[str]:
    """The module without its spec and hashes."""
    start = text.index("SEED: int")
    return [line for line in text[start:].splitlines() if line.strip()]


def test_fast_sets_one_constant() -> None:
    exact, fast = (
        compile_spec(loads(SPEC + extra), "triton", verify=False).source for extra in ("", "numerics: fast\n")
    )
    changed = [pair for pair in zip(body(exact), body(fast), strict=True) if pair[0] != pair[1]]
    assert changed == [("EXACT = tl.constexpr(True)", "EXACT = tl.constexpr(False)")]
    assert len(re.findall(r"\bEXACT\b", exact)) > 2
