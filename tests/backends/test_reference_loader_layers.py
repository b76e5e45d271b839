"""The loader inside a generated module: weights of every P-th layer and weights of many experts."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from specc.backends.printing.declarations import tables, weights_class
from specc.lower.declare import declare_weights
from specc.models.geometry import Geometry
from specc.models.weights import weight_table
from specc.program import DecodeProgram, Weight
from tests.backends.recurrent_models import HYBRIDS, RECURRENT_MODELS, write_model
from tests.backends.reference_support import generate, load_text, program_of

EXPERTS = HYBRIDS["hybrid, experts"]


@pytest.fixture(scope="module")
def generated() -> Any:
    """Any generated module: the loader goes by its table WEIGHTS alone."""
    return load_text(generate(program_of("plain")))


@pytest.fixture
def module(generated: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, whose weights may be replaced by `declare`."""
    monkeypatch.setattr(generated, "WEIGHTS", generated.WEIGHTS)
    monkeypatch.setattr(generated, "Weights", generated.Weights)
    return generated


def declare(module: Any, weights: dict[str, Weight]) -> None:
    """Give the module the table that the backend prints for `weights`."""
    text = tables(DecodeProgram("demo", {}, weights, {}))
    scope = {"torch": torch, "SlotLayout": module.SlotLayout, "WeightLayout": module.WeightLayout}
    exec(text, scope)
    module.WEIGHTS = scope["WEIGHTS"]
    module.Weights = namedtuple("Weights", list(weights))  # type: ignore[misc]


def weights_of(geometry: Geometry) -> dict[str, Weight]:
    return declare_weights(weight_table(geometry), geometry.num_hidden_layers, torch.float64)


@pytest.mark.parametrize("geometry", RECURRENT_MODELS.values(), ids=RECURRENT_MODELS.keys())
def test_every_layer_and_expert_lands_where_it_belongs(module: Any, geometry: Geometry, tmp_path: Path) -> None:
    wanted = write_model(geometry, tmp_path)
    declare(module, weights_of(geometry))
    loaded = module.load_weights(tmp_path)
    assert set(loaded._fields) == set(wanted)
    for name, value in wanted.items():
        ours = getattr(loaded, name)
        pairs = zip(ours, value, strict=True) if isinstance(value, tuple) else [(ours, value)]
        for a, b in pairs:
            assert torch.equal(a, b), name
            # Matrices lie by columns, but for those that are read expert by expert: their rows stay together.
            by_columns = a.dim() == 2 and "experts_" not in name
            assert (a.t() if by_columns else a).is_contiguous(), name


def test_a_pass_may_join_weights_of_one_position(module: Any, tmp_path: Path) -> None:
    wanted = write_model(EXPERTS, tmp_path)
    weights = weights_of(EXPERTS)
    parts = [weights.pop(f"l1_{letter}_proj") for letter in "qkv"]
    rows = sum(part.shape[0] for part in parts)
    sources = tuple(source for part in parts for source in part.sources)
    joined = Weight("l1_qkv_proj", (rows, 32), torch.float64, sources, layers=2, first_layer=1, layer_step=2)
    declare(module, weights | {joined.name: joined})
    loaded = module.load_weights(tmp_path).l1_qkv_proj
    for index, value in enumerate(loaded):
        assert torch.equal(value, torch.cat([wanted[f"l1_{letter}_proj"][index] for letter in "qkv"]))


def test_the_printed_fields_say_which_layers_they_are_for() -> None:
    weights = weights_of(EXPERTS)
    text = weights_class({name: weights[name] for name in ("embed_tokens", "l1_q_proj", "l0_experts_down")})
    assert "l1_q_proj: tuple[Tensor, ...]" in text
    assert "for every 2 layers from layer 1: model.layers.{layer}.self_attn.q_proj.weight" in text
    assert "{layer}.mlp.experts.{expert}.down_proj.weight" in text


def rewrite(folder: Path, changes: dict[str, torch.Tensor | None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    for name, value in changes.items():
        tensors.pop(name, None)
        if value is not None:
            tensors[name] = value
    save_file(tensors, folder / "model.safetensors")


def zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.float64)


MLP = "model.layers.3.mlp."


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({f"{MLP}experts.4.up_proj.weight": None}, "no tensor 'model.layers.3.mlp.experts.4.up_proj.weight'"),
        ({f"{MLP}experts.5.up_proj.weight": zeros(12, 32)}, "experts.5.up_proj.weight' that the spec does not know"),
        ({f"{MLP}experts.1.up_proj.weight": zeros(13, 32)}, "25 rows together, expected 24"),
        ({f"{MLP}experts.1.up_proj.weight": zeros(12, 31)}, "has shape"),
        # All experts together have the right number of rows, but the boundary between two of them is wrong.
        (
            {f"{MLP}experts.0.down_proj.weight": zeros(31, 12), f"{MLP}experts.1.down_proj.weight": zeros(33, 12)},
            "31 rows together, expected 32",
        ),
        ({"model.layers.2.linear_attn.conv1d.weight": zeros(64, 4)}, "has shape"),
        ({"model.layers.2.linear_attn.A_log": None}, "no tensor 'model.layers.2.linear_attn.A_log'"),
        ({"model.layers.2.self_attn.q_proj.weight": zeros(128, 32)}, "that the spec does not know"),
        ({"model.layers.4.input_layernorm.weight": zeros(32)}, "that the spec does not know"),
    ],
)
def test_wrong_checkpoints_are_refused_before_anything_is_read(
    module: Any, changes: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(EXPERTS, tmp_path)
    rewrite(tmp_path, changes)
    declare(module, weights_of(EXPERTS))
    monkeypatch.setattr(module, "read_tensor", lambda *_: pytest.fail("a tensor was read"))
    with pytest.raises(ValueError, match=message):
        module.load_weights(tmp_path)


def test_layers_for_multi_token_prediction_are_left_alone(module: Any, tmp_path: Path) -> None:
    write_model(EXPERTS, tmp_path)
    rewrite(tmp_path, {"mtp.fc.weight": zeros(32, 64), "mtp.layers.0.mlp.gate.weight": zeros(5, 32)})
    declare(module, weights_of(EXPERTS))
    assert "fc" not in module.load_weights(tmp_path)._fields
