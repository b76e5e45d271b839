"""The keys of config.json that a geometry determines, by family: the inverse of `specc.models.geometry`'s readers."""

from __future__ import annotations

from typing import Any

from specc.models.geometry import Geometry, RopeScaling


def written_config(geometry: Geometry) -> dict[str, Any]:
    """All keys but those that name the model's class. Raises ValueError for what the family's configs can't say."""
    if geometry.family == "gated_deltanet":
        return _gated_deltanet(geometry)
    return _qwen3_next(geometry) if geometry.family == "qwen3_next" else _transformer(geometry)


def _common(geometry: Geometry) -> dict[str, Any]:
    return {
        "num_hidden_layers": geometry.num_hidden_layers,
        "hidden_size": geometry.hidden_size,
        "intermediate_size": geometry.intermediate_size,
        "max_position_embeddings": geometry.max_position_embeddings,
        "vocab_size": geometry.vocab_size,
        "tie_word_embeddings": geometry.tie_word_embeddings,
    }


def _attention(geometry: Geometry) -> dict[str, Any]:
    return {
        "num_attention_heads": geometry.num_attention_heads,
        "num_key_value_heads": geometry.num_key_value_heads,
        "head_dim": geometry.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": geometry.rms_norm_eps,
        "rope_theta": geometry.rope_theta,
    }


def _transformer(geometry: Geometry) -> dict[str, Any]:
    if geometry.qkv_bias != geometry.o_bias or geometry.qk_norm != (geometry.family == "qwen3"):
        raise ValueError(f"no {geometry.family} config has these bias and norm switches")
    bias = "bias" if geometry.family == "pangu" else "attention_bias"
    switches = {bias: geometry.qkv_bias, "mlp_bias": geometry.mlp_bias}
    config = {**_common(geometry), **_attention(geometry), **switches}
    return config | scaling_config(geometry.rope_scaling)


def scaling_config(scaling: RopeScaling | None) -> dict[str, Any]:
    """The key `rope_scaling`; nothing where there is none."""
    if scaling is None:
        return {}
    return {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_max_position_embeddings,
        }
    }


def _gated_deltanet(geometry: Geometry) -> dict[str, Any]:
    """flash-linear-attention's keys. `conv_bias` is the layer's argument, which its model leaves at false."""
    delta = geometry.delta
    if delta is None or delta.grouped or delta.norm_eps != geometry.rms_norm_eps or geometry.moe is not None:
        raise ValueError("no gated_deltanet config has these layers")
    expand = delta.value_dim / delta.key_dim
    if delta.key_dim * expand != delta.value_dim:
        raise ValueError(f"no expand_v makes {delta.value_dim} of {delta.key_dim} exactly")
    config = _common(geometry) | {
        "num_heads": delta.num_key_heads,
        "num_v_heads": delta.num_value_heads,
        "head_dim": delta.key_dim,
        "expand_v": expand,
        "use_short_conv": delta.conv_size > 0,
        "use_gate": delta.use_gate,
        "output_gate_activation": "swish",
        "allow_neg_eigval": delta.allow_neg_eigval,
        "hidden_ratio": None,
        "hidden_act": "swish",
        "norm_eps": geometry.rms_norm_eps,
        "attn": None,
    }
    if delta.conv_size:
        config["conv_size"] = delta.conv_size
    if delta.conv_bias:
        config["conv_bias"] = True
    return config


def _qwen3_next(geometry: Geometry) -> dict[str, Any]:
    """transformers' keys, the rope settings at the top level, where all its versions read them."""
    delta, moe = geometry.delta, geometry.moe
    if delta is None or not delta.grouped or geometry.qkv_bias != geometry.o_bias or geometry.mlp_bias:
        raise ValueError("no qwen3_next config has these layers and biases")
    factor = geometry.rotary_dim / geometry.head_dim
    if int(geometry.head_dim * factor) != geometry.rotary_dim:
        # Readers round down, so anything between this and the next whole number says the same.
        factor = (geometry.rotary_dim + 0.5) / geometry.head_dim
    layers = geometry.layers
    config = {**_common(geometry), **_attention(geometry)} | {
        "attention_bias": geometry.qkv_bias,
        "partial_rotary_factor": factor,
        "layer_types": [f"{'linear' if layer.mixer == 'delta' else 'full'}_attention" for layer in layers],
        "linear_conv_kernel_dim": delta.conv_size,
        "linear_key_head_dim": delta.key_dim,
        "linear_value_head_dim": delta.value_dim,
        "linear_num_key_heads": delta.num_key_heads,
        "linear_num_value_heads": delta.num_value_heads,
        "decoder_sparse_step": 1,
        "num_experts": 0 if moe is None else moe.num_experts,
        "mlp_only_layers": [] if moe is None else [index for index, layer in enumerate(layers) if not layer.moe],
    }
    if moe is not None:
        config |= {
            "num_experts_per_tok": moe.num_experts_per_tok,
            "moe_intermediate_size": moe.intermediate_size,
            "shared_expert_intermediate_size": moe.shared_intermediate_size,
            "norm_topk_prob": moe.norm_topk_prob,
        }
    return config
