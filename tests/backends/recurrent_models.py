"""Small random models of the recurrent and hybrid families: geometries for parity tests, checkpoint folders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from specc.models.checkpoint import Weights, save_checkpoint
from specc.models.families import hugging_face_config
from specc.models.geometry import DeltaGeometry, Geometry, LayerType, MoeGeometry
from specc.models.random_weights import random_weights
from specc.models.weights import weight_table

DELTA: LayerType = "delta"
ATTENTION: LayerType = "attention"

DELTANET = Geometry(
    family="gated_deltanet",
    num_hidden_layers=3,
    hidden_size=32,
    num_attention_heads=0,
    num_key_value_heads=0,
    head_dim=0,
    intermediate_size=48,
    vocab_size=61,
    max_position_embeddings=512,
    rope_theta=10000.0,
    rope_scaling=None,
    rms_norm_eps=1e-6,
    tie_word_embeddings=False,
    qkv_bias=False,
    o_bias=False,
    mlp_bias=False,
    qk_norm=False,
    layer_types=(DELTA,) * 3,
    delta=DeltaGeometry(
        num_key_heads=2,
        num_value_heads=2,
        key_dim=8,
        value_dim=16,
        conv_size=4,
        use_gate=True,
        allow_neg_eigval=False,
        norm_eps=1e-6,
        grouped=False,
    ),
)


def _deltanet(**switches: object) -> Geometry:
    assert DELTANET.delta is not None
    return replace(DELTANET, delta=replace(DELTANET.delta, **switches))  # type: ignore[arg-type]


DELTANETS: dict[str, Geometry] = {
    "deltanet, values twice as wide": DELTANET,
    "deltanet, tied": replace(DELTANET, tie_word_embeddings=True),
    "deltanet, two value heads per key head": _deltanet(num_value_heads=4, value_dim=8),
    "deltanet, negative eigenvalues": _deltanet(allow_neg_eigval=True),
    "deltanet, no gate": _deltanet(use_gate=False),
    "deltanet, convolution with bias": _deltanet(conv_bias=True),
    "deltanet, no convolution": _deltanet(conv_size=0),
    "deltanet, two taps": _deltanet(conv_size=2),
    "deltanet, one tap": _deltanet(conv_size=1),
}

HYBRID = Geometry(
    family="qwen3_next",
    num_hidden_layers=4,
    hidden_size=32,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    intermediate_size=48,
    vocab_size=61,
    max_position_embeddings=512,
    rope_theta=5000.0,
    rope_scaling=None,
    rms_norm_eps=1e-6,
    tie_word_embeddings=False,
    qkv_bias=False,
    o_bias=False,
    mlp_bias=False,
    qk_norm=True,
    layer_types=(DELTA, ATTENTION) * 2,
    delta=DeltaGeometry(
        num_key_heads=2,
        num_value_heads=4,
        key_dim=8,
        value_dim=8,
        conv_size=4,
        use_gate=True,
        allow_neg_eigval=False,
        norm_eps=1e-6,
        grouped=True,
    ),
    rotary_dim=4,
    gated_attention=True,
    norm_offset=1.0,
)
EXPERTS = MoeGeometry(
    num_experts=5, num_experts_per_tok=2, intermediate_size=12, shared_intermediate_size=20, norm_topk_prob=True
)

HYBRIDS: dict[str, Geometry] = {
    "hybrid, dense": HYBRID,
    "hybrid, dense, tied": replace(HYBRID, tie_word_embeddings=True),
    "hybrid, experts": replace(HYBRID, moe=EXPERTS, moe_layers=(True,) * 4),
    "hybrid, experts as they are": replace(HYBRID, moe=replace(EXPERTS, norm_topk_prob=False), moe_layers=(True,) * 4),
    # Layers 0, 1, 2 recurrent as in the published model; experts in some layers, in no regular pattern.
    "hybrid, irregular": replace(
        HYBRID,
        layer_types=(DELTA, DELTA, DELTA, ATTENTION),
        moe=EXPERTS,
        moe_layers=(True, False, True, True),
        qkv_bias=True,
        o_bias=True,
    ),
}
RECURRENT_MODELS: dict[str, Geometry] = DELTANETS | HYBRIDS


def weights_of_model(geometry: Geometry, seed: int = 7, dtype: torch.dtype = torch.float64) -> Weights:
    """The model's random weights by logical name."""
    return random_weights(weight_table(geometry), geometry, seed, dtype)


def write_model(geometry: Geometry, folder: Path, seed: int = 7, dtype: torch.dtype = torch.float64) -> Weights:
    """A checkpoint folder of the model (config.json and safetensors under public names); the weights written."""
    weights = weights_of_model(geometry, seed, dtype)
    config = hugging_face_config(geometry, str(dtype).removeprefix("torch."))
    save_checkpoint(folder, weights, weight_table(geometry), config)
    return weights
