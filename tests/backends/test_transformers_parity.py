"""The generated module against transformers in float64, on small random models of every layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from specc.driver import compile_spec
from specc.models.checkpoint import save_checkpoint
from specc.models.families import hugging_face_config
from specc.models.random_weights import random_weights
from specc.models.weights import weight_table
from specc.spec import LoadedSpec, from_mapping
from tests.backends.hf_reference import float64_model, hf_greedy, hf_logits
from tests.backends.reference_support import load_text

BOUND = 1e-10
SIZES: dict[str, Any] = {
    "num_hidden_layers": 3,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "vocab_size": 61,
    "max_position_embeddings": 512,
    "rope_theta": 5000.0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "llama, untied": ("llama", {"tie_word_embeddings": False}),
    "llama, attention bias": ("llama", {"attention_bias": True}),
    "llama, MLP bias": ("llama", {"mlp_bias": True}),
    "llama, llama3 rope scaling": ("llama", {"rope_scaling": LLAMA3}),
    "llama, one head per K/V head": ("llama", {"num_key_value_heads": 4}),
    "qwen3, q and k norm": ("qwen3", {"head_dim": 16}),
    "qwen3, tied": ("qwen3", {"tie_word_embeddings": True}),
    "pangu": ("pangu", {}),
}
TREE = {"method": "prompt_lookup", "tree": "dynamic", "top_k": 2, "num_steps": 3, "num_speculative_tokens": 6}


def spec_of(name: str, draft: dict[str, Any]) -> LoadedSpec:
    family, changes = MODELS[name]
    return from_mapping(
        {
            "specc": 1,
            "name": "parity",
            "target": {"family": family, "config": SIZES | changes},
            "draft": draft,
            "runtime": {"max_batch_size": 2, "max_sequence_length": 256, "dtype": "float64"},
        }
    )


def close(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    return float((ours - theirs).abs().max()) <= BOUND * float(theirs.abs().max())


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_greedy_text_equal_transformers(name: str, tmp_path: Path) -> None:
    loaded = spec_of(name, TREE)
    geometry = loaded.spec.target.geometry
    table = weight_table(geometry)
    weights = random_weights(table, geometry, 7, torch.float64)
    save_checkpoint(tmp_path, weights, table, hugging_face_config(geometry))
    model = float64_model(geometry, weights)
    module = load_text(compile_spec(loaded).source)
    ours = module.load_weights(tmp_path)
    ids = torch.randint(0, geometry.vocab_size, (2, 90), generator=torch.Generator().manual_seed(1))
    wanted = hf_logits(model, ids)
    state = module.init_state(2)
    # The prompt in two chunks, then a tree whose nodes are the text's next tokens: prefill and verify alike.
    state, logits = module.prefill(ours, state, ids[:, :50], torch.tensor([50, 50]))
    assert close(logits, wanted[:, 49])
    state, logits = module.prefill(ours, state, ids[:, 50:80], torch.tensor([30, 30]))
    assert close(logits, wanted[:, 79])
    tokens = torch.cat((ids[:, 80:84], (ids[:, 83:84] + 1) % 61, (ids[:, 82:83] + 1) % 61, ids[:, :1]), dim=1)
    parent = torch.tensor([[-1, 0, 1, 2, 2, 1, 0]]).expand(2, -1)
    _, verified = module.verify(ours, state, tokens, parent, torch.ones(2, 7, dtype=torch.bool))
    assert close(verified.logits[:, :4], wanted[:, 80:84])
    text = module.Decoder(ours).generate(ids[:, :20].tolist(), 40)
    assert text.tokens == hf_greedy(model, ids[:, :20], 40).tolist()
