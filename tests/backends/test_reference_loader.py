"""The loader inside a generated module: reads what transformers writes, refuses everything else in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from specc.driver import compile_spec
from specc.models.checkpoint import save_checkpoint
from specc.models.random_weights import random_weights
from specc.models.weights import eagle3_weight_table, weight_table
from specc.spec import from_mapping
from tests.backends.reference_support import fused_weights, generate, load_text, planned, program_of


def write_checkpoint(module: Any, folder: Path, weights: dict[str, Any], shards: int = 1) -> None:
    """A checkpoint folder with the weights of a program whose weights have one source each."""
    tensors = {}
    for row in module.WEIGHTS:
        value = weights[row.name]
        for layer, part in enumerate(value if row.layers is not None else (value,)):
            tensors[row.sources[0].replace("{layer}", str(layer))] = part.clone()
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return
    names = sorted(tensors)
    files = {name: f"model-{number % shards}.safetensors" for number, name in enumerate(names)}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in names if files[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))


@pytest.fixture(scope="module")
def loadable() -> tuple[Any, Any, dict[str, Any], dict[str, Any]]:
    naive = program_of("plain")
    program = planned(naive)
    plain, fused = load_text(generate(naive)), load_text(generate(program))
    return plain, fused, fused_weights(naive, naive), fused_weights(naive, program)


@pytest.mark.parametrize("shards", [1, 3])
def test_loader_reads_and_concatenates(loadable: Any, shards: int, tmp_path: Path) -> None:
    plain, fused, weights, wanted = loadable
    write_checkpoint(plain, tmp_path, weights, shards)
    loaded = fused.load_weights(tmp_path)
    for name, value in wanted.items():
        ours = getattr(loaded, name)
        pairs = zip(ours, value, strict=True) if isinstance(value, tuple) else [(ours, value)]
        # Matrices are stored by columns, which is what products with few rows want.
        assert all(torch.equal(a, b) and a.t().is_contiguous() for a, b in pairs)
    decoder = fused.Decoder.from_pretrained(tmp_path)
    assert 1 <= len(decoder.generate([[1, 2, 3]], 4, speculative=False).tokens[0]) <= 4


def _rewrite(folder: Path, *, drop: str = "", add: str = "", reshape: str = "") -> None:
    tensors = dict(load_file(folder / "model.safetensors"))
    tensors.pop(drop, None)
    if add:
        tensors[add] = torch.zeros(1)
    if reshape:
        tensors[reshape] = torch.zeros(3, dtype=torch.float64)
    save_file(tensors, folder / "model.safetensors")


def _index(folder: Path, name: str) -> None:
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": name}}))


def _header(folder: Path, header: Any) -> None:
    raw = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "model.safetensors").unlink(), "no model.safetensors"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"abc"), "not a safetensors file"),
        (lambda folder: _rewrite(folder, drop="model.norm.weight"), "no tensor 'model.norm.weight'"),
        (lambda folder: _rewrite(folder, add="model.extra"), "'model.extra' that the spec does not know"),
        (lambda folder: _rewrite(folder, reshape="model.norm.weight"), "3 rows together"),
        (lambda folder: _index(folder, "../model.safetensors"), "outside the checkpoint folder"),
        (lambda folder: _index(folder, "/etc/passwd"), "outside the checkpoint folder"),
        (lambda folder: _index(folder, "absent.safetensors"), "has no file"),
        (lambda folder: _header(folder, {"x": {"dtype": "F64", "shape": [9], "data_offsets": [0, 72]}}), "not fit its"),
        (lambda folder: _header(folder, {"x": {"dtype": "F99", "shape": [1], "data_offsets": [0, 8]}}), "malformed"),
        (lambda folder: _header(folder, {"x": 3}), "malformed"),
        (lambda folder: _header(folder, [1]), "malformed"),
    ],
)
def test_loader_refuses_wrong_checkpoints(loadable: Any, damage: Any, message: str, tmp_path: Path) -> None:
    plain, _, weights, _ = loadable
    write_checkpoint(plain, tmp_path, weights)
    damage(tmp_path)
    with pytest.raises(ValueError, match=message):
        plain.load_weights(tmp_path)


@pytest.mark.parametrize("value", [float("nan"), -float("inf")])
def test_loader_refuses_a_value_that_is_no_finite_number(loadable: Any, value: float, tmp_path: Path) -> None:
    plain, _, weights, _ = loadable
    write_checkpoint(plain, tmp_path, weights)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.norm.weight"][1] = value
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"'model.norm.weight' has values that are no finite numbers"):
        plain.load_weights(tmp_path)


def test_loader_refuses_a_missing_folder(loadable: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        loadable[0].load_weights(tmp_path / "absent")


SIZES = {
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 32,
    "vocab_size": 31,
    "max_position_embeddings": 256,
}


@pytest.fixture(scope="module")
def with_head() -> tuple[Any, Any]:
    """A module with an EAGLE-3 head of 20 draft ids, and its spec."""
    spec = from_mapping(
        {
            "specc": 1,
            "name": "head",
            "target": {"family": "llama", "config": SIZES},
            "draft": {
                "method": "eagle3",
                "num_speculative_tokens": 3,
                "config": {"draft_vocab_size": 20},
                "aux_hidden_state_layer_ids": [0, 1],
                "aux_hidden_state_of": "output",
            },
            "runtime": {"max_sequence_length": 64, "dtype": "float64"},
        }
    )
    return load_text(compile_spec(spec).source), spec.spec


def _head_folder(spec: Any, folder: Path, layer: str, offsets: torch.Tensor) -> dict[str, Any]:
    head = spec.eagle_geometry
    table = eagle3_weight_table(
        spec.target.geometry, draft_vocab_size=head.draft_vocab_size, features=head.features_width
    )
    weights = dict(random_weights(table, spec.target.geometry, 3, torch.float64, include_optional=True))
    weights["d2t"] = offsets
    named = {entry.checkpoint_name.replace("midlayer.", layer): weights[entry.name] for entry in table}
    folder.mkdir()
    save_file({name: value.clone() for name, value in named.items()}, folder / "model.safetensors")
    return weights


def _target_folder(spec: Any, folder: Path) -> None:
    table = weight_table(spec.target.geometry)
    save_checkpoint(folder, random_weights(table, spec.target.geometry, 0, torch.float64), table, {})


@pytest.mark.parametrize("layer", ["midlayer.", "layers.0."])
def test_loader_takes_a_public_head_under_both_names_of_its_layer(with_head: Any, layer: str, tmp_path: Path) -> None:
    module, spec = with_head
    _target_folder(spec, tmp_path / "target")
    weights = _head_folder(spec, tmp_path / "head", layer, torch.arange(20) // 2)
    loaded = module.load_weights(tmp_path / "target", tmp_path / "head")
    assert torch.equal(loaded.draft_o_proj, weights["o_proj"])
    assert torch.equal(loaded.draft_d2t, weights["d2t"])
    assert len(module.Decoder(loaded).generate([[1, 2, 3]], 5).tokens[0]) == 5


@pytest.mark.parametrize(
    "offsets", [torch.zeros(20).long() + 12, torch.tensor([1, 0, *[5] * 18]), -torch.ones(20).long()]
)
def test_loader_refuses_draft_ids_outside_the_vocabulary_or_out_of_order(
    with_head: Any, offsets: torch.Tensor, tmp_path: Path
) -> None:
    module, spec = with_head
    _target_folder(spec, tmp_path / "target")
    _head_folder(spec, tmp_path / "head", "midlayer.", offsets)
    with pytest.raises(ValueError, match="does not map to distinct ids below 31"):
        module.load_weights(tmp_path / "target", tmp_path / "head")
