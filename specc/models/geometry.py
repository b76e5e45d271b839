"""The resolved geometry of a transformer target, independent of where it was read from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

LayerType = Literal["attention", "delta"]


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Llama-3 frequency scaling (Hugging Face `rope_scaling` with `rope_type: llama3`)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class DeltaGeometry:
    """Sizes and switches of a Gated DeltaNet layer (Yang et al., 2024).

    `num_key_heads` H, `num_value_heads` HV (a multiple of H), `key_dim` K and `value_dim` V per head; the recurrent
    state is [HV,V,K]. The causal depthwise convolution has `conv_size` W taps (0: none, SiLU only) over
    `conv_channels` channels, in the order q, k, v. `use_gate`: the output norm is multiplied by silu(gate).
    `allow_neg_eigval`: beta in (0, 2). `grouped`: q, k, v, gate come from one projection interleaved per key head, and
    b, a from another (qwen3_next); otherwise every one has its own projection (flash-linear-attention).
    """

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    conv_size: int
    use_gate: bool
    allow_neg_eigval: bool
    norm_eps: float
    grouped: bool
    conv_bias: bool = False

    @property
    def conv_channels(self) -> int:
        """C = 2 H K + HV V."""
        return 2 * self.num_key_heads * self.key_dim + self.num_value_heads * self.value_dim


@dataclass(frozen=True, slots=True)
class MoeGeometry:
    """A mixture of experts with a shared expert (qwen3_next). Router: softmax over all, then the top
    `num_experts_per_tok`, renormalised where `norm_topk_prob`."""

    num_experts: int
    num_experts_per_tok: int
    intermediate_size: int
    shared_intermediate_size: int
    norm_topk_prob: bool


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes and switches of a decoder. Names follow Hugging Face `config.json`.

    `qkv_bias`, `o_bias`, `mlp_bias` say which linear layers carry a bias; `qk_norm` says that q and k are
    RMS-normalised per head before rope (qwen3, qwen3_next). `layer_types` and `moe_layers` have one entry per layer;
    empty: attention everywhere, a dense MLP everywhere. `rotary_dim` leading dims of each head are rotated (0: all).
    `gated_attention`: q_proj also makes a gate per head, and o_proj reads attended * sigmoid(gate).
    `norm_offset` is added to the weights of all RMSNorms but the delta rule's output norm (1 in qwen3_next).
    A model without attention layers has 0 attention heads.
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
    layer_types: tuple[LayerType, ...] = ()
    delta: DeltaGeometry | None = None
    moe: MoeGeometry | None = None
    moe_layers: tuple[bool, ...] = ()
    rotary_dim: int = 0
    gated_attention: bool = False
    norm_offset: float = 0.0

    @property
    def recurrent(self) -> bool:
        """Whether some layer has a recurrent state."""
        return "delta" in self.layer_types

    @property
    def layers(self) -> tuple[Layer, ...]:
        """What each layer is made of."""
        count = self.num_hidden_layers
        types = self.layer_types or ("attention",) * count
        return tuple(map(Layer, types, self.moe_layers or (False,) * count))

    @property
    def period(self) -> int:
        """The smallest P such that the stack is L / P repetitions of its first P layers (P = L: unrolled)."""
        layers = self.layers
        sizes = (size for size in range(1, len(layers) + 1) if len(layers) % size == 0)
        return next(size for size in sizes if layers == layers[:size] * (len(layers) // size))


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's token mixer, and whether its MLP is a mixture of experts."""

    mixer: LayerType
    moe: bool


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
