"""Loading checkpoints: only safetensors, everything checked before allocation, every finding at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from specc.diagnostics import DiagnosticError
from specc.models.checkpoint import checkpoint_headers, load_checkpoint, save_checkpoint, stored_tensors
from specc.models.families import FAMILIES, checkpoint_geometry, config_geometry, hugging_face_config
from specc.models.geometry import Geometry
from specc.models.random_weights import random_weights
from specc.models.safetensors_header import read_header
from specc.models.weights import eagle3_weight_table, weight_table

GEOMETRY = Geometry(
    family="llama",
    num_hidden_layers=2,
    hidden_size=16,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=8,
    intermediate_size=24,
    vocab_size=31,
    max_position_embeddings=64,
    rope_theta=10000.0,
    rope_scaling=None,
    rms_norm_eps=1e-5,
    tie_word_embeddings=False,
    qkv_bias=False,
    o_bias=False,
    mlp_bias=False,
    qk_norm=False,
)
TABLE = weight_table(GEOMETRY)
TIED = replace(GEOMETRY, tie_word_embeddings=True)


def _codes(caught: pytest.ExceptionInfo[DiagnosticError]) -> list[str]:
    return [item.code for item in caught.value.diagnostics]


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    return stored_tensors(random_weights(TABLE, GEOMETRY, 0, torch.float32), TABLE)


def _write(folder: Path, tensors: dict[str, torch.Tensor], config: dict[str, Any] | None = None) -> None:
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config or hugging_face_config(GEOMETRY)))


def _load(folder: Path, geometry: Geometry = GEOMETRY) -> dict[str, Any]:
    return load_checkpoint(folder, weight_table(geometry), geometry, torch.float32)


def test_the_tables_hold_the_names_of_the_public_layouts() -> None:
    names = {name for entry in TABLE for name in entry.checkpoint_names(1)}
    assert names == {
        "model.embed_tokens.weight",
        "model.layers.0.input_layernorm.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.self_attn.k_proj.weight",
        "model.layers.0.self_attn.v_proj.weight",
        "model.layers.0.self_attn.o_proj.weight",
        "model.layers.0.post_attention_layernorm.weight",
        "model.layers.0.mlp.gate_proj.weight",
        "model.layers.0.mlp.up_proj.weight",
        "model.layers.0.mlp.down_proj.weight",
        "model.norm.weight",
        "lm_head.weight",
    }
    switched = replace(GEOMETRY, qkv_bias=True, o_bias=True, mlp_bias=True, qk_norm=True, tie_word_embeddings=True)
    logical = {entry.name for entry in weight_table(switched)}
    biases = {f"{name}_proj_bias" for name in ("q", "k", "v", "o", "gate", "up", "down")}
    assert logical == {entry.name for entry in TABLE} - {"lm_head"} | biases | {"q_norm", "k_norm"}


def test_the_eagle3_table_reads_embedding_and_feature_side_by_side() -> None:
    table = eagle3_weight_table(GEOMETRY, draft_vocab_size=12, target_vocab_size=31, features=60)
    shapes = {entry.checkpoint_name: entry.shape for entry in table}
    assert shapes["fc.weight"] == (16, 60)
    assert shapes["midlayer.self_attn.q_proj.weight"] == (16, 32)
    assert shapes["midlayer.self_attn.k_proj.weight"] == (8, 32)
    assert shapes["midlayer.self_attn.o_proj.weight"] == (16, 16)
    assert shapes["midlayer.hidden_norm.weight"] == shapes["midlayer.input_layernorm.weight"] == (16,)
    assert (shapes["lm_head.weight"], shapes["d2t"], shapes["t2d"]) == ((12, 16), (12,), (31,))
    assert {entry.name for entry in table if entry.optional} == {"embed_tokens"}
    same = eagle3_weight_table(GEOMETRY, draft_vocab_size=31)
    assert {entry.name for entry in same if entry.optional} == {"embed_tokens", "d2t", "t2d"}


@pytest.mark.parametrize("other_names", [False, True])
def test_an_eagle3_head_loads_under_both_public_names_with_its_tables(tmp_path: Path, other_names: bool) -> None:
    table = eagle3_weight_table(GEOMETRY, draft_vocab_size=12, target_vocab_size=31)
    weights = random_weights(table, GEOMETRY, 3, torch.float32)
    stored = stored_tensors(weights, table)
    if other_names:
        stored = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in stored.items()}
    save_file(stored, tmp_path / "model.safetensors")
    loaded = load_checkpoint(tmp_path, table, GEOMETRY, torch.float64)
    assert "embed_tokens" not in loaded
    d2t, t2d, fc = loaded["d2t"], loaded["t2d"], loaded["fc"]
    assert isinstance(d2t, torch.Tensor)
    assert isinstance(t2d, torch.Tensor)
    assert isinstance(fc, torch.Tensor)
    assert (d2t.dtype, t2d.dtype, fc.dtype) == (torch.int64, torch.bool, torch.float64)
    assert torch.equal((torch.arange(12) + d2t), t2d.nonzero().ravel())


def test_random_weights_do_not_depend_on_the_rest_of_the_table() -> None:
    whole = random_weights(TABLE, GEOMETRY, 5, torch.float64)
    part = random_weights(TABLE[3:5], GEOMETRY, 5, torch.float64)
    other = random_weights(TABLE, GEOMETRY, 6, torch.float64)
    for name, layers in part.items():
        assert all(torch.equal(a, b) for a, b in zip(layers, whole[name], strict=True))
        assert not any(torch.equal(a, b) for a, b in zip(layers, other[name], strict=True))
    first, second = whole["q_proj"]
    assert not torch.equal(first, second)


def test_every_finding_is_reported_at_once(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    del tensors["model.layers.1.mlp.up_proj.weight"]
    tensors["model.norm.weight"] = torch.ones(17)
    tensors["model.layers.0.self_attn.q_proj.weight"] = torch.ones(16, 16, dtype=torch.int8)
    tensors["model.layers.0.self_attn.q_proj.bias"] = torch.ones(16)
    _write(tmp_path, tensors)
    with pytest.raises(DiagnosticError) as caught:
        _load(tmp_path)
    assert sorted(_codes(caught)) == ["SPC406", "SPC407", "SPC408", "SPC409"]
    text = str(caught.value)
    for name in ("layers.1.mlp.up_proj.weight", "model.norm.weight", "[17]", "[16]", "q_proj.bias", "I8"):
        assert name in text


def test_fewer_layers_in_the_spec_than_in_the_checkpoint_is_an_error(
    tmp_path: Path, tensors: dict[str, torch.Tensor]
) -> None:
    _write(tmp_path, tensors)
    with pytest.raises(DiagnosticError) as caught:
        _load(tmp_path, replace(GEOMETRY, num_hidden_layers=1))
    assert _codes(caught) == ["SPC407"]


def test_shapes_are_checked_before_anything_is_read(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """A header that promises 2^50 bytes is refused by its arithmetic, without an allocation."""
    _write(tmp_path, tensors)
    header = {"model.norm.weight": {"dtype": "F32", "shape": [1 << 48], "data_offsets": [0, 1 << 50]}}
    text = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(DiagnosticError) as caught:
        _load(tmp_path)
    assert _codes(caught) == ["SPC404"]


def test_a_tied_checkpoint_may_store_its_head_again_but_not_another_one(
    tmp_path: Path, tensors: dict[str, torch.Tensor]
) -> None:
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    _write(tmp_path, tensors)
    assert "lm_head" not in _load(tmp_path, TIED)
    tensors["lm_head.weight"][3, 3] += 1
    _write(tmp_path, tensors)
    with pytest.raises(DiagnosticError) as caught:
        _load(tmp_path, TIED)
    assert _codes(caught) == ["SPC407"]
    assert "tie_word_embeddings" in str(caught.value)


def test_old_rotary_buffers_are_ignored(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    _write(tmp_path, tensors)
    _load(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "weights.ckpt"])
def test_pickle_is_never_opened(tmp_path: Path, name: str) -> None:
    # A FIFO-like trap is not needed: the file is no pickle at all, so opening it as one would fail differently.
    (tmp_path / name).write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(DiagnosticError) as caught:
        _load(tmp_path)
    assert _codes(caught) == ["SPC403"]
    assert "pickle is never read" in str(caught.value)


def _index(folder: Path, weight_map: object) -> None:
    (folder / "model.safetensors").unlink(missing_ok=True)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize("name", ["../outside.safetensors", "sub/../../outside.safetensors", "link.safetensors"])
def test_index_paths_stay_inside_the_folder(tmp_path: Path, tensors: dict[str, torch.Tensor], name: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    save_file(tensors, tmp_path / "outside.safetensors")
    (folder / "link.safetensors").symlink_to(tmp_path / "outside.safetensors")
    _index(folder, dict.fromkeys(tensors, name))
    with pytest.raises(DiagnosticError) as caught:
        _load(folder)
    assert _codes(caught) == ["SPC405"]
    _index(folder, dict.fromkeys(tensors, str(tmp_path / "outside.safetensors")))
    with pytest.raises(DiagnosticError) as caught:
        _load(folder)
    assert _codes(caught) == ["SPC405"]


def test_a_single_file_that_links_out_of_the_folder_is_refused(
    tmp_path: Path, tensors: dict[str, torch.Tensor]
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    save_file(tensors, tmp_path / "outside.safetensors")
    (folder / "model.safetensors").symlink_to(tmp_path / "outside.safetensors")
    with pytest.raises(DiagnosticError) as caught:
        _load(folder)
    assert _codes(caught) == ["SPC405"]


def test_the_hubs_own_cache_layout_is_read(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    snapshot = tmp_path / "models--a--b" / "snapshots" / "0123"
    blobs = tmp_path / "models--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    save_file(tensors, blobs / "abc")
    (snapshot / "model.safetensors").symlink_to(Path("../../blobs/abc"))
    assert len(_load(snapshot)) == len(TABLE)


def test_links_within_the_folder_are_fine(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    save_file(tensors, tmp_path / "real.safetensors")
    (tmp_path / "link.safetensors").symlink_to("real.safetensors")
    _index(tmp_path, dict.fromkeys(tensors, "link.safetensors"))
    assert len(_load(tmp_path)) == len(TABLE)


@pytest.mark.parametrize(
    "weight_map",
    [[], {"a": 1}, None, {"model.norm.weight": "absent.safetensors"}, {"model.extra": "real.safetensors"}],
    ids=["list", "number", "null", "no such file", "not in the file"],
)
def test_a_malformed_index_is_a_diagnostic(
    tmp_path: Path, tensors: dict[str, torch.Tensor], weight_map: object
) -> None:
    save_file(tensors, tmp_path / "real.safetensors")
    _index(tmp_path, weight_map)
    with pytest.raises(DiagnosticError) as caught:
        _load(tmp_path)
    assert _codes(caught) == ["SPC404"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_file_is_a_diagnostic_or_loads_but_never_crashes(tmp_path: Path, data: st.DataObject) -> None:
    weights = random_weights(TABLE[:2], GEOMETRY, 0, torch.float16)
    save_checkpoint(tmp_path, weights, TABLE[:2], {})
    path = tmp_path / "model.safetensors"
    content = bytearray(path.read_bytes())
    header_end = 8 + int.from_bytes(content[:8], "little")
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    else:
        content[data.draw(st.integers(0, header_end - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    codes: set[str] = set()
    try:
        load_checkpoint(tmp_path, TABLE[:2], GEOMETRY, torch.float32)
    except DiagnosticError as refused:
        codes = {item.code for item in refused.diagnostics}
    assert codes <= {"SPC404", "SPC406", "SPC407", "SPC408", "SPC409"}


def test_tensors_that_share_bytes_are_refused(tmp_path: Path) -> None:
    norm = {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]}
    names = [name for entry in TABLE if entry.shape == (16,) for name in entry.checkpoint_names(2)]
    text = json.dumps(dict.fromkeys(names, norm)).encode()
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + b"\0" * 64)
    norms = tuple(entry for entry in TABLE if entry.shape == (16,))
    with pytest.raises(DiagnosticError) as caught:
        load_checkpoint(tmp_path, norms, GEOMETRY, torch.float32)
    assert _codes(caught) == ["SPC404"]


@pytest.mark.parametrize(
    ("shape", "offsets"),
    [([1 << 48], [0, 4]), ([1], [0, 8]), ([1], [4, 0]), ([1], [4, 8]), ([-1], [0, 4]), ([1.0], [0, 4]), ([1], [0])],
)
def test_a_header_whose_bytes_do_not_fit_is_refused_by_arithmetic(
    tmp_path: Path, shape: list[float], offsets: list[int]
) -> None:
    text = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": offsets}}).encode()
    (tmp_path / "x").write_bytes(len(text).to_bytes(8, "little") + text + b"\0" * 4)
    with pytest.raises(DiagnosticError) as caught:
        read_header(tmp_path / "x")
    assert _codes(caught) == ["SPC404"]


def test_duplicate_names_in_a_header_are_refused(tmp_path: Path) -> None:
    entry = '{"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}'
    text = f'{{"a": {entry}, "a": {entry}}}'.encode()
    (tmp_path / "x").write_bytes(len(text).to_bytes(8, "little") + text + b"\0" * 4)
    with pytest.raises(DiagnosticError, match="occurs twice"):
        read_header(tmp_path / "x")


def test_a_missing_folder_is_a_diagnostic(tmp_path: Path) -> None:
    for reader in (checkpoint_headers, checkpoint_geometry):
        with pytest.raises(DiagnosticError) as caught:
            reader(tmp_path / "absent")
        assert _codes(caught) == ["SPC401"]


def _with(**changes: object) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda config: {**config, **changes}


@pytest.mark.parametrize(
    "change",
    [
        _with(model_type="gpt2"),
        _with(hidden_act="gelu"),
        _with(hidden_size="16"),
        _with(hidden_size=-16),
        _with(vocab_size=1 << 40),
        _with(num_hidden_layers=True),
        _with(use_sliding_window=True),
        _with(layer_types=["full_attention", "sliding_attention"]),
        _with(partial_rotary_factor=0.5),
        _with(rope_scaling={"rope_type": "yarn", "factor": 2.0}),
        _with(rope_scaling={"rope_type": "llama3", "factor": 2.0}),
        _with(quantization_config={"quant_method": "gptq"}),
        _with(num_attention_heads=3, num_key_value_heads=2),
        _with(head_dim=7),
        lambda config: {key: value for key, value in config.items() if key != "intermediate_size"},
    ],
)
def test_configs_that_would_be_computed_otherwise_are_refused(
    change: Callable[[dict[str, Any]], dict[str, Any]],
) -> None:
    config = hugging_face_config(GEOMETRY)
    assert config_geometry(config) == GEOMETRY
    with pytest.raises(DiagnosticError) as caught:
        config_geometry(change(config))
    assert set(_codes(caught)) == {"SPC402"}


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, "\xff"], ids=["empty", "list", "cut", "deep", "bytes"])
def test_a_malformed_config_is_a_diagnostic(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(DiagnosticError) as caught:
        checkpoint_geometry(tmp_path)
    assert _codes(caught) == ["SPC401"]


def test_every_transformer_family_round_trips_its_config() -> None:
    for name in sorted(set(FAMILIES) - {"gated_deltanet", "qwen3_next"}):
        biased = name == "pangu"
        geometry = replace(GEOMETRY, family=name, qk_norm=name == "qwen3", qkv_bias=biased, o_bias=biased)
        assert config_geometry(hugging_face_config(geometry)) == geometry
