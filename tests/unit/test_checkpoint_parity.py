"""Checkpoints written by us load in transformers; the float64 reference is transformers' arithmetic."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from specc.models.checkpoint import load_checkpoint, save_checkpoint, stored_tensors
from specc.models.families import checkpoint_geometry, config_geometry, hugging_face_config
from specc.models.geometry import Geometry, RopeScaling
from specc.models.random_weights import random_weights
from specc.models.weights import weight_table
from tests.backends import hf_reference as hf

LLAMA = Geometry(
    family="llama",
    num_hidden_layers=2,
    hidden_size=32,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    intermediate_size=48,
    vocab_size=97,
    max_position_embeddings=256,
    rope_theta=10000.0,
    rope_scaling=None,
    rms_norm_eps=1e-5,
    tie_word_embeddings=True,
    qkv_bias=False,
    o_bias=False,
    mlp_bias=False,
    qk_norm=False,
)
LLAMA3_SCALING = RopeScaling(8.0, 1.0, 4.0, 64)
GEOMETRIES = {
    "llama-tied": LLAMA,
    "llama-untied": replace(LLAMA, tie_word_embeddings=False),
    "llama-biases": replace(LLAMA, qkv_bias=True, o_bias=True, mlp_bias=True),
    "llama3-scaling": replace(LLAMA, rope_scaling=LLAMA3_SCALING, rope_theta=500000.0),
    "qwen3": replace(LLAMA, family="qwen3", qk_norm=True, head_dim=16, tie_word_embeddings=False),
    "pangu": replace(LLAMA, family="pangu", qkv_bias=True, o_bias=True, tie_word_embeddings=False),
}
each_geometry = pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES.keys())


def _ids(geometry: Geometry, length: int = 40) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(0, geometry.vocab_size, (2, length), generator=generator)


@each_geometry
def test_a_config_gives_its_geometry_back(geometry: Geometry) -> None:
    assert config_geometry(hugging_face_config(geometry)) == geometry


@each_geometry
def test_a_saved_checkpoint_loads_bit_identically(geometry: Geometry, tmp_path: Path) -> None:
    table = weight_table(geometry)
    weights = random_weights(table, geometry, 1, torch.float32)
    for shards in (1, 3):
        folder = tmp_path / str(shards)
        save_checkpoint(folder, weights, table, hugging_face_config(geometry), num_shards=shards)
        assert checkpoint_geometry(folder) == geometry
        loaded = load_checkpoint(folder, table, geometry, torch.float32)
        assert loaded.keys() == weights.keys()
        for name, value in stored_tensors(weights, table).items():
            assert torch.equal(stored_tensors(loaded, table)[name], value), name


@pytest.mark.parametrize("name", ["llama-tied", "llama-biases", "llama3-scaling", "qwen3"])
def test_transformers_loads_our_folder_with_the_same_logits(name: str, tmp_path: Path) -> None:
    geometry = GEOMETRIES[name]
    table = weight_table(geometry)
    weights = random_weights(table, geometry, 2, torch.float32)
    save_checkpoint(tmp_path, weights, table, hugging_face_config(geometry))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="sdpa")
    built = hf.hf_model(geometry, weights, torch.float32)
    assert torch.equal(hf.hf_logits(loaded.eval(), _ids(geometry)), hf.hf_logits(built, _ids(geometry)))


@each_geometry
def test_the_float64_reference_equals_unpatched_transformers_to_float32_accuracy(geometry: Geometry) -> None:
    weights = random_weights(weight_table(geometry), geometry, 4, torch.float32)
    exact = hf.hf_logits(hf.float64_model(geometry, weights), _ids(geometry))
    rounded = hf.hf_logits(hf.hf_model(geometry, weights, torch.float32), _ids(geometry))
    assert exact.dtype == torch.float64
    assert (exact - rounded).abs().max() / exact.abs().max() < 2e-5


@each_geometry
def test_the_float64_reference_is_float64_throughout(geometry: Geometry) -> None:
    """A relative nudge of 1e-12 moves the logits by about that: a float32 step inside would hide or blow it."""
    weights = random_weights(weight_table(geometry), geometry, 5, torch.float64)
    model = hf.float64_model(geometry, weights)
    ids = _ids(geometry)
    nudged = {
        name: tuple(layer * (1 + 1e-12) for layer in value) if isinstance(value, tuple) else value * (1 + 1e-12)
        for name, value in weights.items()
    }
    difference = hf.hf_logits(model, ids) - hf.hf_logits(hf.float64_model(geometry, nudged), ids)
    relative = difference.abs().max() / hf.hf_logits(model, ids).abs().max()
    assert 0 < relative < 1e-10


@each_geometry
def test_the_float64_angles_are_float64(geometry: Geometry) -> None:
    """Only position differences count in rope: moving all positions by 100 moves float64 logits by rounding only."""
    weights = random_weights(weight_table(geometry), geometry, 7, torch.float64)
    model, ids = hf.float64_model(geometry, weights), _ids(geometry)
    positions = torch.arange(ids.shape[1])[None].expand_as(ids)
    with torch.no_grad():
        here = model(input_ids=ids, position_ids=positions, use_cache=False).logits
        there = model(input_ids=ids, position_ids=positions + 100, use_cache=False).logits
    assert (here - there).abs().max() / here.abs().max() < 1e-11


def test_greedy_with_the_cache_equals_greedy_without() -> None:
    geometry = GEOMETRIES["qwen3"]
    model = hf.float64_model(geometry, random_weights(weight_table(geometry), geometry, 6, torch.float64))
    ids = _ids(geometry, 5)
    expected = ids
    for _ in range(12):
        expected = torch.cat([expected, hf.hf_logits(model, expected)[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(hf.hf_greedy(model, ids, 12), expected[:, 5:])


@each_geometry
def test_random_weights_give_varied_greedy_text(geometry: Geometry) -> None:
    """No collapse: 64 greedy tokens after each of two prompts hold many different ones."""
    distinct = []
    for seed in range(4):
        weights = random_weights(weight_table(geometry), geometry, seed, torch.float64)
        text = hf.hf_greedy(hf.float64_model(geometry, weights), _ids(geometry, 8), 64)
        distinct += [len(set(row.tolist())) for row in text]
    assert min(distinct) >= 10, distinct
    assert sum(distinct) / len(distinct) >= 20, distinct
