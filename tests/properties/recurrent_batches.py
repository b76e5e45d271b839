"""Batches of recurrent and hybrid modules for the tests of known bug classes: specs by target and commit, and what a
flushed state must hold."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from specc.check import slots
from specc.check.oracle import PlainDecoding
from specc.check.recurrent import window_after
from tests.properties.bug_class_bench import LENGTH, VOCABULARY, Batch, Bench, Edit, compiled, unchanged

CONFIGS = {
    "delta": "{family: gated_deltanet, config: {num_hidden_layers: 2, hidden_size: 16, num_heads: 2, num_v_heads: 4, "
    f"head_dim: 4, expand_v: 1, intermediate_size: 24, vocab_size: {VOCABULARY}, allow_neg_eigval: true}}}}",
    "hybrid": "{family: qwen3_next, config: {num_hidden_layers: 4, layer_types: [linear_attention, full_attention, "
    "linear_attention, full_attention], hidden_size: 16, num_attention_heads: 2, num_key_value_heads: 1, head_dim: 8, "
    "partial_rotary_factor: 0.5, linear_num_key_heads: 2, linear_num_value_heads: 4, linear_key_head_dim: 4, "
    "linear_value_head_dim: 4, num_experts: 0, intermediate_size: 24, max_position_embeddings: 64, "
    f"vocab_size: {VOCABULARY}}}}}",
}
DRAFTS = {
    "tree": "{method: prompt_lookup, tree: dynamic, num_speculative_tokens: 7, num_steps: 3, top_k: 3}",
    "chain": "{method: prompt_lookup, tree: chain, num_speculative_tokens: 3}",
}
COMMITS = {
    "snapshots": ("serial", "{state: snapshots}"),
    "replay": ("replay", "{state: replay}"),
    "factors": ("tree", "{state: factors}"),
    "deferred": ("hybrid", "{state: factors, update: deferred}"),
    "windowed": ("tree", "{state: factors, update: deferred, window: 4}"),
}
"""A schedule with each commit."""
PENDING = ("deferred", "windowed")


@dataclass(frozen=True)
class RecurrentBench(Bench):
    """A bench whose plain decoding is its own target's."""

    @property
    def plain(self) -> PlainDecoding:
        """The target on whole texts; answers are shared by all modules of the same target."""
        return _plain(self.spec.target.geometry.family, self)


_known: dict[str, PlainDecoding] = {}


def _plain(family: str, made: Bench) -> PlainDecoding:
    if family not in _known:
        _known[family] = PlainDecoding(made.spec.target.geometry, made.logical)
    return _known[family]


@cache
def _bench(text: str, edit: Edit) -> RecurrentBench:
    made = compiled(text, edit)
    return RecurrentBench(made.spec, made.source, made.module, made.logical, made.weights)


def bench(target: str, commit: str, edit: Edit = unchanged, draft: str = "tree") -> RecurrentBench:
    """A float64 module: a key of CONFIGS, of COMMITS and of DRAFTS."""
    schedule, how = COMMITS[commit]
    text = f"""specc: 1
name: tiny-{target}
target: {CONFIGS[target]}
draft: {DRAFTS[draft]}
verify: {{recurrence: {schedule}}}
commit: {how}
runtime: {{max_batch_size: 4, max_sequence_length: {LENGTH}, dtype: float64}}
"""
    return _bench(text, edit)


def pending(batch: Batch) -> torch.Tensor:
    """How much of every row waits to be committed [B]."""
    state = batch.state
    return state.pending_factors if hasattr(state, "pending_factors") else state.pending_emitted


def check_states(batch: Batch) -> None:
    """Committed states, windows and K/V rows of every row are those of its text (I16, I27), after a flush of a copy."""
    module, state = batch.bench.module, batch.state
    copy = type(state)(*(value.clone() for value in state))
    _, saved = module.snapshot(copy, list(range(len(batch.texts))))
    for row, text in enumerate(batch.texts):
        assert int(saved.length[row]) == max(len(text) - 1, 0)
        if text:
            check_row(batch.bench, saved, row, text[:-1])


def check_row(made: Bench, state: object, row: int, text: list[int]) -> None:
    """One row of a flushed state."""
    geometry, plain = made.spec.target.geometry, made.plain.forward([text])
    held = {name: getattr(state, name) for name in type(state)._fields}  # type: ignore[attr-defined]
    for name in slots.named(held, (*slots.RECURRENT, *slots.CACHES)):
        layers, role, got = slots.layers_of(name, geometry), slots.role(name), held[name][:, row]
        if role == "state":
            wanted = torch.stack([plain.states[layer][0, -1] for layer in layers])
        elif role == "conv_window":
            wanted = window_after(torch.zeros_like(got), torch.stack([plain.mixed[layer][0] for layer in layers]))
        else:
            rows = plain.keys if role == "k_cache" else plain.values
            wanted, got = torch.stack([rows[layer][0] for layer in layers]), got[:, : len(text)]
        assert torch.allclose(got, wanted, rtol=1e-9, atol=1e-9), f"{name} of row {row}"
