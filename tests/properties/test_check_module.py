"""`specc.testing.module.check_module`: a user's own test of a generated module."""

from __future__ import annotations

import pytest
import torch

from specc import driver
from specc.check.machines import load_module
from specc.spec import loads
from specc.testing.module import check_module, module_report

SPEC = """\
specc: 1
name: mine
target: {family: llama, config: {num_hidden_layers: 1, hidden_size: 16, num_attention_heads: 2, intermediate_size: 24,
         vocab_size: 23, max_position_embeddings: 64}}
draft: {method: prompt_lookup, tree: dynamic, top_k: 2, num_steps: 3, num_speculative_tokens: 5}
accept: {stop_tokens: [3]}
commit: {update: deferred}
runtime: {dtype: float64, max_batch_size: 3, max_sequence_length: 32}
"""
torch.set_num_threads(1)


@pytest.fixture(scope="module")
def source() -> str:
    return driver.compile_spec(loads(SPEC)).source


def test_right_module_passes(source: str) -> None:
    check_module(load_module(source, "mine"), max_examples=10)
    report = module_report(load_module(source, "mine"), 10)
    assert report.counts["I23"] > 0
    assert report.counts["I27"] > 0


def test_wrong_module_is_refused_with_a_drawing(source: str) -> None:
    assert source.count("parent_row = parent + 1") == 1
    wrong = source.replace("parent_row = parent + 1", "parent_row = parent.clamp(min=0)")
    with pytest.raises(AssertionError, match="does not hold") as caught:
        check_module(load_module(wrong, "wrong"), max_examples=40)
    assert "0:" in str(caught.value)


def test_module_in_low_precision_is_refused(source: str) -> None:
    module = load_module(source.replace('"dtype": "float64"', '"dtype": "float32"', 1), "low")
    with pytest.raises(ValueError, match=r"runtime\.dtype=float64"):
        check_module(module)


def test_module_with_recurrent_state() -> None:
    """States, windows and pending factors of a module that the user has are checked like those of a spec."""
    spec = """\
specc: 1
name: mine
target: {family: gated_deltanet, config: {num_hidden_layers: 2, hidden_size: 16, num_heads: 2, head_dim: 4, expand_v: 1,
         intermediate_size: 24, vocab_size: 23}}
draft: {method: prompt_lookup, tree: dynamic, top_k: 2, num_steps: 3, num_speculative_tokens: 5}
verify: {recurrence: hybrid}
commit: {update: deferred, window: 3}
runtime: {dtype: float64, max_batch_size: 3, max_sequence_length: 32}
"""
    source = driver.compile_spec(loads(spec)).source
    report = module_report(load_module(source, "recurrent"), 8)
    assert report.ok
    assert report.counts["I16"] > 0
    assert source.count("still_pending = torch.where(window_full, nothing_pending") == 1
    wrong = source.replace("torch.where(window_full, nothing_pending", "torch.where(window_full, state.pending_factors")
    with pytest.raises(AssertionError, match="does not hold"):
        check_module(load_module(wrong, "recurrent_wrong"), max_examples=40)
