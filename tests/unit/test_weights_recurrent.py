"""Weights of recurrent and hybrid models: names and shapes against the public layouts, loading, random weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

from specc.diagnostics import DiagnosticError
from specc.lower.declare import declare_weights
from specc.models.checkpoint import check_checkpoint, load_checkpoint, stored_tensors
from specc.models.families import hugging_face_config
from specc.models.geometry import Geometry
from specc.models.random_weights import TIME_STEP, _decay
from specc.models.weights import weight_table
from tests.backends import fla_reference as fla
from tests.backends import hf_reference as hf
from tests.backends.recurrent_models import (
    DELTA,
    DELTANET,
    DELTANETS,
    EXPERTS,
    HYBRID,
    HYBRIDS,
    RECURRENT_MODELS,
    weights_of_model,
    write_model,
)

each_model = pytest.mark.parametrize("geometry", RECURRENT_MODELS.values(), ids=RECURRENT_MODELS.keys())
each_hybrid = pytest.mark.parametrize("geometry", HYBRIDS.values(), ids=HYBRIDS.keys())


def shapes_of_table(geometry: Geometry) -> dict[str, tuple[int, ...]]:
    """Every checkpoint tensor of the table with its shape; no name twice."""
    parts = [
        part
        for entry in weight_table(geometry)
        for layer in entry.layers(geometry.num_hidden_layers)
        for part in entry.parts(layer)
    ]
    names = [part.name for part in parts]
    assert len(set(names)) == len(names)
    return {part.name: part.shape for part in parts}


def experts_apart(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """transformers' joined expert parameters under the names of checkpoints: one matrix per expert and projection."""
    found: dict[str, torch.Tensor] = {}
    for name, value in state.items():
        folder, _, last = name.rpartition(".")
        if not folder.endswith(".experts"):
            found[name] = value
            continue
        projections = ("gate_proj", "up_proj") if last == "gate_up_proj" else (last,)
        for expert, matrix in enumerate(value):
            for projection, part in zip(projections, matrix.chunk(len(projections)), strict=True):
                found[f"{folder}.{expert}.{projection}.weight"] = part
    return found


@each_hybrid
def test_the_table_is_the_state_dict_of_transformers(geometry: Geometry) -> None:
    model = Qwen3NextForCausalLM(Qwen3NextConfig(**hugging_face_config(geometry)))
    theirs = {name: tuple(value.shape) for name, value in experts_apart(model.state_dict()).items()}
    if geometry.tie_word_embeddings:
        del theirs["lm_head.weight"]
    assert shapes_of_table(geometry) == theirs


@each_hybrid
def test_what_transformers_saves_loads_with_its_values(geometry: Geometry, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Qwen3NextForCausalLM(Qwen3NextConfig(**hugging_face_config(geometry)))
    model.save_pretrained(tmp_path)
    assert set(load_file(tmp_path / "model.safetensors")) == set(shapes_of_table(geometry))
    table = weight_table(geometry)
    stored = stored_tensors(load_checkpoint(tmp_path, table, geometry, torch.float32), table)
    theirs = experts_apart(model.state_dict())
    assert all(torch.equal(value, theirs[name]) for name, value in stored.items())
    assert len(stored) == len(theirs) - geometry.tie_word_embeddings


def test_the_table_holds_the_names_of_flash_linear_attention() -> None:
    geometry = replace(DELTANETS["deltanet, convolution with bias"], num_hidden_layers=1, layer_types=(DELTA,))
    names = """
        model.embeddings.weight [61,32]
        model.layers.0.attn_norm.weight [32]
        model.layers.0.attn.q_proj.weight [16,32]
        model.layers.0.attn.k_proj.weight [16,32]
        model.layers.0.attn.v_proj.weight [32,32]
        model.layers.0.attn.a_proj.weight [2,32]
        model.layers.0.attn.b_proj.weight [2,32]
        model.layers.0.attn.g_proj.weight [32,32]
        model.layers.0.attn.q_conv1d.weight [16,1,4]
        model.layers.0.attn.k_conv1d.weight [16,1,4]
        model.layers.0.attn.v_conv1d.weight [32,1,4]
        model.layers.0.attn.q_conv1d.bias [16]
        model.layers.0.attn.k_conv1d.bias [16]
        model.layers.0.attn.v_conv1d.bias [32]
        model.layers.0.attn.A_log [2]
        model.layers.0.attn.dt_bias [2]
        model.layers.0.attn.o_norm.weight [16]
        model.layers.0.attn.o_proj.weight [32,32]
        model.layers.0.mlp_norm.weight [32]
        model.layers.0.mlp.gate_proj.weight [48,32]
        model.layers.0.mlp.up_proj.weight [48,32]
        model.layers.0.mlp.down_proj.weight [32,48]
        model.norm.weight [32]
        lm_head.weight [61,32]
    """
    expected = dict(line.split() for line in names.strip().splitlines())
    assert {name: str(list(shape)).replace(" ", "") for name, shape in shapes_of_table(geometry).items()} == expected


@pytest.mark.parametrize("geometry", DELTANETS.values(), ids=DELTANETS.keys())
def test_the_peer_in_that_layout_loads_our_checkpoints_and_we_load_its(geometry: Geometry, tmp_path: Path) -> None:
    write_model(geometry, tmp_path / "ours")
    peer = fla.load(tmp_path / "ours")
    peer.save(tmp_path / "theirs")
    table = weight_table(geometry)
    ours = load_checkpoint(tmp_path / "ours", table, geometry, torch.float64)
    theirs = load_checkpoint(tmp_path / "theirs", table, geometry, torch.float64)
    for name, value in stored_tensors(ours, table).items():
        assert torch.equal(value, stored_tensors(theirs, table)[name]), name
    logits = peer(torch.arange(12)[None])
    assert torch.equal(logits, fla.load(tmp_path / "theirs")(torch.arange(12)[None]))
    assert float(logits.std()) > 1


def test_joined_tensors_have_the_order_that_the_layers_read(tmp_path: Path) -> None:
    """Expert after expert, gate before up; convolutions of q, k, v. With another order the sizes would fit as well."""
    geometry = HYBRIDS["hybrid, experts"]
    model = Qwen3NextForCausalLM(Qwen3NextConfig(**hugging_face_config(geometry)))
    model.save_pretrained(tmp_path / "hybrid")
    loaded = load_checkpoint(tmp_path / "hybrid", weight_table(geometry), geometry, torch.float32)
    for layer, block in enumerate(model.model.layers):
        position, index = layer % 2, layer // 2
        assert torch.equal(loaded[f"l{position}_experts_gate_up"][index], block.mlp.experts.gate_up_proj.flatten(0, 1))
        assert torch.equal(loaded[f"l{position}_experts_down"][index], block.mlp.experts.down_proj.flatten(0, 1))
    geometry = DELTANETS["deltanet, convolution with bias"]
    weights = write_model(geometry, tmp_path / "deltanet")
    for index, block in enumerate(fla.load(tmp_path / "deltanet").model.layers):
        parts = [getattr(block.attn, f"{letter}_conv1d") for letter in "qkv"]
        assert torch.equal(weights["conv"][index], torch.cat([part.weight for part in parts]))
        assert torch.equal(weights["conv_bias"][index], torch.cat([part.bias for part in parts]))


@each_model
def test_every_layer_is_in_one_position(geometry: Geometry) -> None:
    """Weights of position j are prefixed `l{j}_`, have L / P tensors, and together cover each layer once."""
    table, period, count = weight_table(geometry), geometry.period, geometry.num_hidden_layers
    declared = declare_weights(table, count, torch.float32)
    for entry in (entry for entry in table if entry.per_layer):
        assert (entry.name == entry.role) == (period == 1)
        assert entry.name in (entry.role, f"l{entry.first_layer}_{entry.role}")
        weight = declared[entry.name]
        assert (weight.layers, weight.layer_step) == (count // period, period)
        names = [name for index in range(count // period) for name in weight.tensor_names(index)]
        assert tuple(names) == entry.checkpoint_names(count)
    norms = [entry for entry in table if entry.role == "input_layernorm"]
    assert sorted(layer for entry in norms for layer in entry.layers(count)) == list(range(count))


@each_model
def test_a_saved_model_loads_under_its_logical_names(geometry: Geometry, tmp_path: Path) -> None:
    weights = write_model(geometry, tmp_path)
    loaded = load_checkpoint(tmp_path, weight_table(geometry), geometry, torch.float64)
    assert loaded.keys() == weights.keys()
    for name, value in weights.items():
        pairs = zip(value, loaded[name], strict=True) if isinstance(value, tuple) else [(value, loaded[name])]
        assert all(torch.equal(a, b) for a, b in pairs), name


def damaged(folder: Path, **changes: Any) -> None:
    tensors = load_file(folder / "model.safetensors")
    for name, value in changes.items():
        tensors.pop(name, None)
        if value is not None:
            tensors[name] = value
    save_file(tensors, folder / "model.safetensors")


MIXED = HYBRIDS["hybrid, irregular"]


@pytest.mark.parametrize(
    ("changes", "codes"),
    [
        ({"model.layers.2.mlp.experts.4.up_proj.weight": None}, ["SPC406"]),
        ({"model.layers.1.mlp.experts.0.up_proj.weight": torch.zeros(12, 32)}, ["SPC407"]),
        ({"model.layers.0.mlp.experts.5.up_proj.weight": torch.zeros(12, 32)}, ["SPC407"]),
        ({"model.layers.0.mlp.experts.1.up_proj.weight": torch.zeros(13, 32)}, ["SPC408"]),
        ({"model.layers.0.linear_attn.conv1d.weight": torch.zeros(64, 4)}, ["SPC408"]),
        ({"model.layers.3.self_attn.q_proj.weight": torch.zeros(64, 32)}, ["SPC408"]),
        ({"model.layers.0.linear_attn.A_log": torch.zeros(4, dtype=torch.int64)}, ["SPC409"]),
        ({"model.layers.0.self_attn.q_proj.weight": torch.zeros(64, 32)}, ["SPC407"]),
        ({"mtp.fc.weight": torch.zeros(32, 64), "mtp.layers.0.mlp.gate.weight": torch.zeros(5, 32)}, []),
    ],
)
def test_wrong_checkpoints_are_refused(changes: dict[str, Any], codes: list[str], tmp_path: Path) -> None:
    write_model(MIXED, tmp_path, dtype=torch.float32)
    damaged(tmp_path, **changes)
    if not codes:
        check_checkpoint(tmp_path, weight_table(MIXED), MIXED.num_hidden_layers)
        return
    with pytest.raises(DiagnosticError) as caught:
        check_checkpoint(tmp_path, weight_table(MIXED), MIXED.num_hidden_layers)
    assert [item.code for item in caught.value.diagnostics] == codes


def test_the_peer_is_plain_transformers_to_float32_accuracy() -> None:
    geometry = MIXED
    narrow = weights_of_model(geometry, dtype=torch.float32)
    ids = torch.randint(0, 61, (2, 70), generator=torch.Generator().manual_seed(5))
    plain = hf.hf_logits(hf.hf_model(geometry, narrow, torch.float32), ids).double()
    wide = hf.hf_logits(hf.float64_model(geometry, weights_of_model(geometry)), ids)
    assert wide.dtype == torch.float64
    assert (plain - wide).abs().max() / wide.abs().max() < 2e-5


@each_hybrid
def test_the_peer_computes_in_float64_throughout(geometry: Geometry) -> None:
    """Its chunked form and its recurrent form, with the cache, agree far below float32's accuracy."""
    model = hf.float64_model(geometry, weights_of_model(geometry))
    ids = torch.randint(0, 61, (1, 70), generator=torch.Generator().manual_seed(5))
    whole = hf.hf_logits(model, ids)
    cache = hf.DynamicCache(config=model.config)
    steps = (ids[:, :65], *ids[:, 65:].split(1, dim=1))
    with torch.no_grad():
        parts = [model(input_ids=step, cache=cache, use_cache=True).logits for step in steps]
    assert (torch.cat(parts, dim=1) - whole).abs().max() / whole.abs().max() < 1e-12


def test_heads_decay_from_slowly_to_fast() -> None:
    """Without input (a = 0) the heads of one layer keep from almost all of the state per token to less than half."""
    assert DELTANET.delta is not None
    wide = replace(DELTANET, delta=replace(DELTANET.delta, num_key_heads=8, num_value_heads=8))
    for seed in range(4):
        weights = weights_of_model(wide, seed)
        for a_log, dt_bias in zip(weights["a_log"], weights["dt_bias"], strict=True):
            kept = torch.exp(-a_log.exp() * torch.nn.functional.softplus(dt_bias))
            assert float(kept.max()) > 0.98
            assert float(kept.min()) < 0.9
            assert bool(((kept > 0) & (kept < 1)).all())


def test_time_steps_and_gains_lie_where_they_are_meant_to() -> None:
    """softplus(dt_bias) is log-uniform in TIME_STEP; norms scale by about 1, offsets or not."""
    uniform = torch.linspace(0, 1, 5, dtype=torch.float64)
    low, high = TIME_STEP
    steps = torch.nn.functional.softplus(_decay("dt_bias", uniform))
    assert torch.allclose(steps, low * (high / low) ** uniform, rtol=1e-12)
    hybrid, deltanet = weights_of_model(HYBRID), weights_of_model(DELTANET)
    for gain in (*deltanet["input_layernorm"], *(1 + w for w in hybrid["l0_input_layernorm"]), *hybrid["l0_o_norm"]):
        assert 0.8 < float(gain.mean()) < 1.2


def test_random_weights_belong_to_layers_whatever_the_period_is() -> None:
    """The same layers with another period are the same model: only the logical names differ."""
    regular = replace(HYBRID, moe=EXPERTS, moe_layers=(True,) * 4)
    assert regular.period == 2
    doubled = replace(regular, num_hidden_layers=2, layer_types=regular.layer_types[:2], moe_layers=(True,) * 2)
    assert doubled.period == 2
    single = replace(regular, num_hidden_layers=1, layer_types=regular.layer_types[:1], moe_layers=(True,))
    assert single.period == 1
    whole = stored_tensors(weights_of_model(regular), weight_table(regular))
    for smaller in (doubled, single):
        for name, value in stored_tensors(weights_of_model(smaller), weight_table(smaller)).items():
            assert torch.equal(value, whole[name]), name
