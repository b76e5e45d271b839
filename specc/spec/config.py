"""Geometry sections: the resolved, typed form of `target.config` and `draft.config` for each family.

Names and defaults are those of the family's Hugging Face configuration (gated_deltanet:
flash-linear-attention's).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from specc.models.bigram import BigramGeometry
from specc.models.geometry import (
    EagleGeometry,
    Geometry,
    RopeScaling,
    gated_deltanet_geometry,
    qwen3_next_geometry,
)
from specc.spec.base import Count, Epsilon, Positions, Section, Theta, Vocabulary, Width


class RopeScalingConfig(Section):
    """Llama-3 frequency scaling."""

    rope_type: Literal["llama3"] = "llama3"
    factor: Annotated[float, Field(ge=1, le=1e6)]
    low_freq_factor: Annotated[float, Field(gt=0, le=1e6)]
    high_freq_factor: Annotated[float, Field(gt=0, le=1e6)]
    original_max_position_embeddings: Positions

    def resolved(self) -> RopeScaling:
        return RopeScaling(
            factor=self.factor,
            low_freq_factor=self.low_freq_factor,
            high_freq_factor=self.high_freq_factor,
            original_max_position_embeddings=self.original_max_position_embeddings,
        )


class TransformerConfig(Section):
    """A llama-like decoder: families llama, qwen3 and pangu."""

    num_hidden_layers: Count
    hidden_size: Width
    num_attention_heads: Count
    num_key_value_heads: Count = Field(description="default: num_attention_heads")
    head_dim: Annotated[int, Field(ge=2, le=4096)] = Field(
        description="default: hidden_size / num_attention_heads (llama, pangu), 128 (qwen3)"
    )
    intermediate_size: Width
    vocab_size: Vocabulary
    max_position_embeddings: Positions = 2048
    rope_theta: Theta = 10000.0
    rope_scaling: RopeScalingConfig | None = Field(
        default=None, description="llama3 scaling, or null; `rope_parameters` is read as well"
    )
    rms_norm_eps: Epsilon = 1e-6
    tie_word_embeddings: bool = False
    attention_bias: bool = Field(
        default=False, description="bias on q, k, v and o; default: false (llama, qwen3), true (pangu)"
    )
    mlp_bias: bool = False

    def geometry(self, family: str) -> Geometry:
        """The geometry of `family` with these sizes."""
        return Geometry(
            family=family,
            num_hidden_layers=self.num_hidden_layers,
            hidden_size=self.hidden_size,
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            intermediate_size=self.intermediate_size,
            vocab_size=self.vocab_size,
            max_position_embeddings=self.max_position_embeddings,
            rope_theta=self.rope_theta,
            rope_scaling=None if self.rope_scaling is None else self.rope_scaling.resolved(),
            rms_norm_eps=self.rms_norm_eps,
            tie_word_embeddings=self.tie_word_embeddings,
            qkv_bias=self.attention_bias,
            o_bias=self.attention_bias,
            mlp_bias=self.mlp_bias,
            qk_norm=family == "qwen3",
        )


class GatedDeltaNetConfig(Section):
    """A Gated DeltaNet decoder in flash-linear-attention's layout."""

    num_hidden_layers: Count
    hidden_size: Width
    num_heads: Count
    num_v_heads: Count = Field(description="a multiple of num_heads; default: num_heads")
    head_dim: Annotated[int, Field(ge=1, le=4096)] = Field(description="K, of the keys; V is head_dim x expand_v")
    expand_v: Annotated[float, Field(gt=0, le=16)] = 2.0
    conv_size: Annotated[int, Field(ge=1, le=16)] = 4
    conv_bias: bool = False
    use_gate: bool = True
    use_short_conv: bool = True
    allow_neg_eigval: bool = Field(default=False, description="beta in (0, 2) instead of (0, 1)")
    intermediate_size: Width = Field(
        description="default: 2/3 x hidden_ratio (4) x hidden_size, up to the next multiple of 256"
    )
    vocab_size: Vocabulary
    max_position_embeddings: Positions = 2048
    norm_eps: Epsilon = 1e-6
    tie_word_embeddings: bool = False

    def geometry(self, family: str = "gated_deltanet") -> Geometry:
        """The geometry with these sizes; `family` is always gated_deltanet. Raises ValueError where they do not fit."""
        return gated_deltanet_geometry(self.model_dump())


class Qwen3NextConfig(Section):
    """The hybrid: gated attention in some layers, Gated DeltaNet in the others, dense MLPs or mixtures of experts."""

    num_hidden_layers: Count
    hidden_size: Width
    num_attention_heads: Count
    num_key_value_heads: Count = 2
    head_dim: Annotated[int, Field(ge=2, le=4096)] = 256
    partial_rotary_factor: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.25, description="share of head_dim that is rotated; `rope_parameters` is read as well"
    )
    full_attention_interval: Count = 4
    layer_types: Annotated[tuple[Literal["linear_attention", "full_attention"], ...], Field(max_length=4096)] = Field(
        description="one per layer; default: full_attention in the last of every full_attention_interval layers"
    )
    linear_conv_kernel_dim: Annotated[int, Field(ge=1, le=16)] = 4
    linear_key_head_dim: Annotated[int, Field(ge=1, le=4096)] = 128
    linear_value_head_dim: Annotated[int, Field(ge=1, le=4096)] = 128
    linear_num_key_heads: Count = 16
    linear_num_value_heads: Count = 32
    intermediate_size: Width
    num_experts: Annotated[int, Field(ge=0, le=65536)] = 512
    num_experts_per_tok: Annotated[int, Field(ge=1, le=1024)] = 10
    moe_intermediate_size: Width = 512
    shared_expert_intermediate_size: Width = 512
    decoder_sparse_step: Count = 1
    mlp_only_layers: Annotated[tuple[Annotated[int, Field(ge=0, lt=4096)], ...], Field(max_length=4096)] = Field(
        default=(), description="layers with a dense MLP although decoder_sparse_step says experts"
    )
    norm_topk_prob: bool = True
    vocab_size: Vocabulary
    max_position_embeddings: Positions = 32768
    rope_theta: Theta = 10000.0
    rms_norm_eps: Epsilon = 1e-6
    tie_word_embeddings: bool = False
    attention_bias: bool = False

    def geometry(self, family: str = "qwen3_next") -> Geometry:
        """The geometry with these sizes; `family` is always qwen3_next. Raises ValueError where they do not fit."""
        return qwen3_next_geometry(self.model_dump())


class EagleConfig(Section):
    """An EAGLE-3 head: one decoder layer over 2 x hidden_size. Every key defaults to the target's."""

    hidden_size: Width
    intermediate_size: Width
    num_attention_heads: Count
    num_key_value_heads: Count
    head_dim: Annotated[int, Field(ge=2, le=4096)]
    draft_vocab_size: Vocabulary = Field(description="rows of the head's lm_head; default: the target's vocab_size")
    max_position_embeddings: Positions
    rope_theta: Theta = 10000.0
    rope_scaling: RopeScalingConfig | None = None
    rms_norm_eps: Epsilon = 1e-6
    attention_bias: bool = False
    mlp_bias: bool = False

    def geometry(self, target_hidden_size: int, vocab_size: int, feature_sizes: tuple[int, ...]) -> EagleGeometry:
        """The head's geometry on a target of these sizes."""
        return EagleGeometry(
            target_hidden_size=target_hidden_size,
            feature_sizes=feature_sizes,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            vocab_size=vocab_size,
            draft_vocab_size=self.draft_vocab_size,
            max_position_embeddings=self.max_position_embeddings,
            rope_theta=self.rope_theta,
            rope_scaling=None if self.rope_scaling is None else self.rope_scaling.resolved(),
            rms_norm_eps=self.rms_norm_eps,
            attention_bias=self.attention_bias,
            mlp_bias=self.mlp_bias,
        )


class BigramConfig(Section):
    """A bigram drafter: two tables of vocab_size rows."""

    vocab_size: Vocabulary = Field(description="default: the target's, which it must equal")
    candidates_per_token: Annotated[int, Field(ge=1, le=1024)] = Field(
        default=8, description="columns of the tables: the tokens that are known to follow each token"
    )

    def geometry(self) -> BigramGeometry:
        """The sizes of the tables."""
        return BigramGeometry(self.vocab_size, self.candidates_per_token)


ModelConfig = TransformerConfig | GatedDeltaNetConfig | Qwen3NextConfig
