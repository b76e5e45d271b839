"""Recurrent and hybrid families: config.json read and written, through specs and folders; periods; refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import Qwen3NextConfig

from specc.diagnostics import DiagnosticError, SpecError
from specc.models.families import checkpoint_geometry, config_geometry, hugging_face_config
from specc.models.geometry import DeltaGeometry, Geometry, Layer, MoeGeometry
from specc.spec import from_mapping, to_mapping
from tests.backends.recurrent_models import ATTENTION, DELTA, DELTANET, HYBRID, RECURRENT_MODELS

# The published config.json of Qwen3-Next-80B-A3B-Instruct, and one of a 1.3B Gated DeltaNet: every key that changes
# the program, and some that do not.
PUBLISHED_HYBRID: dict[str, Any] = {
    "architectures": ["Qwen3NextForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "decoder_sparse_step": 1,
    "eos_token_id": 151645,
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 5120,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 262144,
    "mlp_only_layers": [],
    "model_type": "qwen3_next",
    "moe_intermediate_size": 512,
    "norm_topk_prob": True,
    "num_attention_heads": 16,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "num_hidden_layers": 48,
    "num_key_value_heads": 2,
    "output_router_logits": False,
    "partial_rotary_factor": 0.25,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 10000000,
    "router_aux_loss_coef": 0.001,
    "shared_expert_intermediate_size": 512,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
PUBLISHED_DELTANET: dict[str, Any] = {
    "allow_neg_eigval": False,
    "architectures": ["GatedDeltaNetForCausalLM"],
    "attn": None,
    "attn_mode": "chunk",
    "attnres_block_size": None,
    "bos_token_id": 1,
    "conv_size": 4,
    "eos_token_id": 2,
    "expand_v": 1,
    "fuse_cross_entropy": True,
    "fuse_linear_cross_entropy": False,
    "fuse_norm": True,
    "fuse_swiglu": True,
    "head_dim": 256,
    "hidden_act": "swish",
    "hidden_ratio": 4,
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": None,
    "max_position_embeddings": 2048,
    "model_type": "gated_deltanet",
    "norm_eps": 1e-06,
    "num_heads": 8,
    "num_hidden_layers": 24,
    "num_v_heads": None,
    "output_gate_activation": "swish",
    "pad_token_id": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_gate": True,
    "use_l2warp": False,
    "use_short_conv": True,
    "vocab_size": 32000,
}


def spec_with(family: str, config: dict[str, Any] | None, **sections: Any) -> dict[str, Any]:
    target = {"family": family, "config": config} if config is not None else {"family": family}
    return {"specc": 1, "name": "t", "target": target, **sections}


def test_the_published_hybrid() -> None:
    for geometry in (
        config_geometry(PUBLISHED_HYBRID),
        from_mapping(spec_with("qwen3_next", PUBLISHED_HYBRID)).spec.target.geometry,
    ):
        assert geometry.layer_types == (DELTA, DELTA, DELTA, ATTENTION) * 12
        assert (geometry.period, geometry.layers[:4].count(Layer("delta", True))) == (4, 3)
        assert geometry.delta == DeltaGeometry(16, 32, 128, 128, 4, True, False, 1e-6, grouped=True)
        assert geometry.delta.conv_channels == 8192
        assert geometry.moe == MoeGeometry(512, 10, 512, 512, True)
        assert (geometry.rotary_dim, geometry.rope_theta, geometry.norm_offset) == (64, 1e7, 1.0)
        assert (geometry.qk_norm, geometry.gated_attention, geometry.recurrent) == (True, True, True)


def test_the_published_deltanet() -> None:
    for geometry in (
        config_geometry(PUBLISHED_DELTANET),
        from_mapping(spec_with("gated_deltanet", PUBLISHED_DELTANET)).spec.target.geometry,
    ):
        assert geometry.delta == DeltaGeometry(8, 8, 256, 256, 4, True, False, 1e-6, grouped=False)
        assert geometry.intermediate_size == 5632
        assert (geometry.layer_types, geometry.period) == ((DELTA,) * 24, 1)
        assert (geometry.num_attention_heads, geometry.num_key_value_heads, geometry.head_dim) == (0, 0, 0)


@pytest.mark.parametrize(("ratio", "width"), [(None, 256), (4, 256), (3, 256), (8, 512), (6.5, 512)])
def test_the_mlp_width_follows_the_ratio(ratio: float | None, width: int) -> None:
    config = {"num_hidden_layers": 1, "hidden_size": 65, "num_heads": 2, "head_dim": 8, "vocab_size": 61}
    changed = {**config, "hidden_ratio": ratio, "intermediate_size": None}
    assert from_mapping(spec_with("gated_deltanet", changed)).spec.target.geometry.intermediate_size == width


@st.composite
def deltanets(draw: st.DrawFn) -> Geometry:
    heads, small = draw(st.integers(1, 4)), st.integers(1, 12)
    taps, layers = draw(st.integers(0, 5)), draw(st.integers(1, 5))
    key_dim, epsilon = draw(small), draw(st.sampled_from([1e-6, 1e-5]))
    assert DELTANET.delta is not None
    delta = replace(
        DELTANET.delta,
        num_key_heads=heads,
        num_value_heads=heads * draw(st.integers(1, 3)),
        key_dim=key_dim,
        value_dim=key_dim * draw(st.integers(1, 3)),
        conv_size=taps,
        use_gate=draw(st.booleans()),
        allow_neg_eigval=draw(st.booleans()),
        conv_bias=taps > 0 and draw(st.booleans()),
        norm_eps=epsilon,
    )
    return replace(
        DELTANET,
        num_hidden_layers=layers,
        layer_types=(DELTA,) * layers,
        hidden_size=draw(small),
        intermediate_size=draw(small),
        rms_norm_eps=epsilon,
        tie_word_embeddings=draw(st.booleans()),
        delta=delta,
    )


@st.composite
def hybrids(draw: st.DrawFn) -> Geometry:
    layers, small = draw(st.integers(1, 9)), st.integers(1, 12)
    kinds = draw(st.lists(st.sampled_from([DELTA, ATTENTION]), min_size=layers, max_size=layers))
    sparse = draw(st.lists(st.booleans(), min_size=layers, max_size=layers))
    experts = draw(small)
    moe = MoeGeometry(experts, draw(st.integers(1, experts)), draw(small), draw(small), draw(st.booleans()))
    groups, key_heads = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    head_dim = 2 * draw(st.integers(1, 40))
    bias, epsilon = draw(st.booleans()), draw(st.sampled_from([1e-6, 1e-5]))
    assert HYBRID.delta is not None
    return replace(
        HYBRID,
        num_hidden_layers=layers,
        layer_types=tuple(kinds),
        num_attention_heads=groups * draw(st.integers(1, 3)),
        num_key_value_heads=groups,
        head_dim=head_dim,
        rotary_dim=2 * draw(st.integers(1, head_dim // 2)),
        rms_norm_eps=epsilon,
        qkv_bias=bias,
        o_bias=bias,
        tie_word_embeddings=draw(st.booleans()),
        delta=replace(
            HYBRID.delta,
            num_key_heads=key_heads,
            num_value_heads=key_heads * draw(st.integers(1, 3)),
            key_dim=draw(small),
            value_dim=draw(small),
            conv_size=draw(st.integers(1, 5)),
            norm_eps=epsilon,
        ),
        moe=moe if any(sparse) else None,
        moe_layers=tuple(sparse) if any(sparse) else (),
    )


@given(st.one_of(deltanets(), hybrids()))
def test_a_config_gives_its_geometry_back(geometry: Geometry) -> None:
    """As a folder's config.json, in a spec, in the spec's resolved form, and as transformers rewrites it."""
    config = json.loads(json.dumps(hugging_face_config(geometry)))
    assert config_geometry(config) == geometry
    loaded = from_mapping(spec_with(geometry.family, config))
    assert loaded.spec.target.geometry == geometry
    resolved = to_mapping(loaded.spec)
    del resolved["backend"]  # written out, it asks for the contracts of every backend
    assert from_mapping(resolved).spec == loaded.spec
    if geometry.family == "qwen3_next":
        rewritten = Qwen3NextConfig(**config).to_dict()
        assert "rope_theta" not in rewritten, "transformers moves the rope settings"
        assert config_geometry(rewritten) == geometry
        moved = {"rope_parameters", "layer_types", "mlp_only_layers"}
        again = {key: value for key, value in rewritten.items() if key in config or key in moved}
        assert from_mapping(spec_with("qwen3_next", again)).spec.target.geometry == geometry


@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(44, 30), (46, 26), (86, 62), (4096, 4094), (16, 16)])
def test_every_rotated_part_has_a_factor(head_dim: int, rotary_dim: int) -> None:
    """Readers take int(head_dim * factor), and 44 * (30 / 44) is less than 30 in floating point."""
    geometry = replace(HYBRID, head_dim=head_dim, rotary_dim=rotary_dim)
    config = hugging_face_config(geometry)
    assert config_geometry(config).rotary_dim == rotary_dim
    theirs = Qwen3NextConfig(**config).rope_parameters["partial_rotary_factor"]
    assert int(head_dim * theirs) == rotary_dim


@given(hybrids())
def test_the_period_is_the_smallest_that_repeats(geometry: Geometry) -> None:
    layers, period = geometry.layers, geometry.period
    repeats = [
        size
        for size in range(1, len(layers) + 1)
        if len(layers) % size == 0 and all(layers[i] == layers[i % size] for i in range(len(layers)))
    ]
    assert period == repeats[0]


@pytest.mark.parametrize("name", RECURRENT_MODELS)
def test_a_folder_gives_the_spec_its_geometry(name: str, tmp_path: Path) -> None:
    geometry = RECURRENT_MODELS[name]
    (tmp_path / "config.json").write_text(json.dumps(hugging_face_config(geometry)))
    assert checkpoint_geometry(tmp_path) == geometry
    raw = spec_with(geometry.family, None)
    raw["target"]["checkpoint"] = str(tmp_path)
    assert from_mapping(raw).spec.target.geometry == geometry


def test_layer_types_win_over_the_interval() -> None:
    kinds = ["full_attention", "linear_attention"]
    config = hugging_face_config(HYBRID) | {"num_hidden_layers": 2, "layer_types": kinds, "full_attention_interval": 1}
    assert config_geometry(config).layer_types == (ATTENTION, DELTA)
    assert from_mapping(spec_with("qwen3_next", config)).spec.target.geometry.layer_types == (ATTENTION, DELTA)
    del config["layer_types"]
    assert config_geometry(config).layer_types == (ATTENTION, ATTENTION)


@pytest.mark.parametrize(
    ("step", "dense", "experts", "expected"),
    [
        (1, [], 4, (True,) * 4),
        (2, [], 4, (False, True, False, True)),
        (2, [1], 4, (False, False, False, True)),
        (1, [0, 3], 4, (False, True, True, False)),
        (1, [], 0, ()),
        (5, [], 4, ()),
    ],
)
def test_which_layers_have_experts(step: int, dense: list[int], experts: int, expected: tuple[bool, ...]) -> None:
    config = hugging_face_config(HYBRID) | {"decoder_sparse_step": step, "mlp_only_layers": dense}
    config |= {"num_experts": experts, "num_experts_per_tok": 2}
    geometry = config_geometry(config)
    assert (geometry.moe_layers, geometry.moe is None) == (expected, not expected)
    assert from_mapping(spec_with("qwen3_next", config)).spec.target.geometry == geometry


HYBRID_FAULTS: dict[str, Any] = {
    "layer_types": ["linear_attention", "sliding_attention"] * 2,
    "hidden_act": "gelu",
    "num_key_value_heads": 3,
    "linear_num_value_heads": 3,
    "linear_num_key_heads": 0,
    "linear_conv_kernel_dim": 0,
    "partial_rotary_factor": 0.2,
    "head_dim": 0,
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0},
    "quantization_config": {"quant_method": "fp8"},
    "num_hidden_layers": 1 << 30,
}
DELTANET_FAULTS: dict[str, Any] = {
    "attn": {"layers": [0], "num_heads": 2},
    "attnres_block_size": 2,
    "output_gate_activation": "sigmoid",
    "hidden_act": "powlu",
    "num_v_heads": 3,
    "num_heads": 0,
    "expand_v": 0.3,
    "conv_size": 0,
    "hidden_ratio": -4,
}


@pytest.mark.parametrize(
    ("geometry", "key", "value"),
    [
        *((HYBRID, key, value) for key, value in HYBRID_FAULTS.items()),
        *((DELTANET, key, value) for key, value in DELTANET_FAULTS.items()),
        (HYBRID, "partial_rotary_factor", float("inf")),
        (HYBRID, "layer_types", 7),
        (HYBRID, "layer_types", [{}] * 4),
        (HYBRID, "mlp_only_layers", 7),
        (HYBRID, "rope_parameters", 7),
        (DELTANET, "expand_v", float("nan")),
        (DELTANET, "expand_v", [1]),
    ],
)
def test_configs_that_would_be_computed_otherwise_are_refused(geometry: Geometry, key: str, value: Any) -> None:
    config = hugging_face_config(geometry)
    assert config_geometry(config) == geometry
    with pytest.raises(DiagnosticError) as caught:
        config_geometry(config | {"num_experts": 4, "num_experts_per_tok": 2, key: value})
    assert {item.code for item in caught.value.diagnostics} == {"SPC402"}


@pytest.mark.parametrize(
    ("family", "changes", "sections", "codes"),
    [
        ("qwen3_next", {"layer_types": ["linear_attention"]}, {}, ["SPC106"]),
        ("qwen3_next", {"mlp_only_layers": [0, 4, 9]}, {}, ["SPC106", "SPC106"]),
        ("qwen3_next", {"mlp_only_layers": [-1]}, {}, ["SPC024"]),
        ("qwen3_next", {"num_experts": 2, "num_experts_per_tok": 3}, {}, ["SPC107"]),
        ("qwen3_next", {"num_experts": 2, "num_experts_per_tok": 0}, {}, ["SPC024"]),
        ("qwen3_next", {"partial_rotary_factor": 0.2}, {}, ["SPC105"]),
        ("qwen3_next", {"partial_rotary_factor": 0.05}, {}, ["SPC105"]),
        ("qwen3_next", {"linear_num_value_heads": 3}, {}, ["SPC104"]),
        ("qwen3_next", {"num_key_value_heads": 3}, {}, ["SPC104"]),
        ("qwen3_next", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, {}, ["SPC103"]),
        ("gated_deltanet", {"num_v_heads": 3}, {}, ["SPC104"]),
        ("gated_deltanet", {"num_v_heads": 1}, {}, ["SPC104"]),
        ("gated_deltanet", {"expand_v": 0.3}, {}, ["SPC104"]),
        ("gated_deltanet", {"attn": {"layers": [0]}}, {}, ["SPC103"]),
        ("gated_deltanet", {"attnres_block_size": 2}, {}, ["SPC103"]),
        ("gated_deltanet", {"output_gate_activation": "sigmoid"}, {}, ["SPC103"]),
        ("gated_deltanet", {"hidden_ratio": "4"}, {}, ["SPC103"]),
        ("gated_deltanet", {}, {"runtime": {"dtype": "float64", "state_dtype": "float32"}}, ["SPC143"]),
        ("gated_deltanet", {}, {"commit": {"state": "snapshots", "update": "deferred"}}, ["SPC142"]),
        ("gated_deltanet", {}, {"commit": {"window": 2}}, ["SPC100"]),
        ("qwen3", {}, {"commit": {"update": "deferred", "window": 2}}, ["SPC100"]),
    ],
)
def test_specs_that_make_no_sense_are_refused_with_their_codes(
    family: str, changes: dict[str, Any], sections: dict[str, Any], codes: list[str]
) -> None:
    dense = replace(HYBRID, family="qwen3", layer_types=(), delta=None, rotary_dim=0)
    geometry = {"gated_deltanet": DELTANET, "qwen3_next": HYBRID, "qwen3": dense}[family]
    base = hugging_face_config(geometry)
    with pytest.raises(SpecError) as caught:
        from_mapping(spec_with(family, base | changes, **sections))
    assert [item.code for item in caught.value.diagnostics] == codes


@pytest.mark.parametrize(
    ("runtime", "expected"),
    [({}, "float32"), ({"dtype": "float64"}, "float64"), ({"dtype": "float32", "state_dtype": "float64"}, "float64")],
)
def test_the_state_is_as_wide_as_a_float64_model(runtime: dict[str, str], expected: str) -> None:
    raw = spec_with("gated_deltanet", hugging_face_config(DELTANET), runtime=runtime)
    assert from_mapping(raw).spec.runtime.state_dtype == expected
