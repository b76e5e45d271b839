"""The resolved geometry of a transformer target, independent of where it was read from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Llama-3 frequency scaling (Hugging Face `rope_scaling` with `rope_type: llama3`)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes and switches of a llama-like decoder. Names follow Hugging Face `config.json`.

    `qkv_bias`, `o_bias`, `mlp_bias` say which linear layers carry a bias; `qk_norm` says that q and k are
    RMS-normalised per head before rope (qwen3).
    """

    family: str
    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    rope_theta: float
    rope_scaling: RopeScaling | None
    rms_norm_eps: float
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool


@dataclass(frozen=True, slots=True)
class EagleGeometry:
    """Sizes of an EAGLE-3 head (arXiv:2503.01840): fc over target features, then one decoder layer.

    `fc` maps num_aux_layers * target_hidden_size to hidden_size; q, k and v read 2 * hidden_size (the token
    embedding beside the feature); lm_head has draft_vocab_size rows, of vocab_size target tokens.
    """

    target_hidden_size: int
    num_aux_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    max_position_embeddings: int
    rope_theta: float
    rope_scaling: RopeScaling | None
    rms_norm_eps: float
    attention_bias: bool
    mlp_bias: bool


def _scaling(config: Mapping[str, Any]) -> RopeScaling | None:
    raw = config.get("rope_scaling") or config.get("rope_parameters")
    if not raw:
        return None
    kind = raw.get("rope_type", raw.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise ValueError(f"rope_scaling type {kind!r} is not supported (default and llama3 are)")
    return RopeScaling(
        factor=float(raw["factor"]),
        low_freq_factor=float(raw["low_freq_factor"]),
        high_freq_factor=float(raw["high_freq_factor"]),
        original_max_position_embeddings=int(raw["original_max_position_embeddings"]),
    )


def transformer_geometry(family: str, config: Mapping[str, Any]) -> Geometry:
    """Geometry from a Hugging Face style config mapping of family `llama`, `qwen3` or `pangu`.

    Raises KeyError for a missing size and ValueError for a value that the family does not support.
    """
    heads = int(config["num_attention_heads"])
    hidden = int(config["hidden_size"])
    parameters = config.get("rope_parameters") or {}
    bias = bool(config.get("attention_bias", config.get("bias", family == "pangu")))
    return Geometry(
        family=family,
        num_hidden_layers=int(config["num_hidden_layers"]),
        hidden_size=hidden,
        num_attention_heads=heads,
        num_key_value_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or (128 if family == "qwen3" else hidden // heads)),
        intermediate_size=int(config["intermediate_size"]),
        vocab_size=int(config["vocab_size"]),
        max_position_embeddings=int(config.get("max_position_embeddings", 2048)),
        rope_theta=float(config.get("rope_theta") or parameters.get("rope_theta") or 10000.0),
        rope_scaling=_scaling(config),
        rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=bool(config.get("mlp_bias", False)),
        qk_norm=family == "qwen3",
    )
