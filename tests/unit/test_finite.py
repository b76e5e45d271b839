"""NaN and infinities in a checkpoint are found when it is opened, by the stored name; large numbers are fine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.diagnostics import DiagnosticError
from specc.models.checkpoint import check_values, load_checkpoint, save_checkpoint
from specc.models.families import hugging_face_config
from specc.models.finite import all_finite, finding
from specc.models.random_weights import random_weights
from specc.models.weights import weight_table
from tests.unit.test_checkpoint import GEOMETRY

WRONG = st.sampled_from([float("nan"), float("inf"), -float("inf")])
TYPES = st.sampled_from([torch.float64, torch.float32, torch.float16, torch.bfloat16])
TABLE = weight_table(GEOMETRY)
NORM = "model.layers.1.input_layernorm.weight"


@settings(max_examples=40)
@given(
    dtype=TYPES,
    size=st.integers(1, 70),
    wrong=st.dictionaries(st.integers(0, 69), WRONG, max_size=3),
    large=st.booleans(),
)
def test_one_value_is_enough_and_large_ones_are_not(
    dtype: torch.dtype, size: int, wrong: dict[int, float], large: bool
) -> None:
    values = torch.full((size, 2), torch.finfo(dtype).max if large else 1.0, dtype=dtype)
    placed = {index: value for index, value in wrong.items() if index < size}
    for index, value in placed.items():
        values[index, 1] = value
    assert all_finite(values) == (not placed)
    if placed:
        text = finding(Path("a.safetensors"), "some.weight", values).message
        assert f"`some.weight` of a.safetensors has {len(placed)} values" in text
        assert f"[{min(placed)}, 1]" in text


def test_integers_are_always_finite() -> None:
    assert all_finite(torch.tensor([2**63 - 1]))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_checkpoint_with_such_a_value_is_not_loaded(tmp_path: Path, value: float) -> None:
    weights = random_weights(TABLE, GEOMETRY, 0, torch.float32)
    norms = weights["input_layernorm"]
    assert isinstance(norms, tuple)
    save_checkpoint(tmp_path, weights, TABLE, hugging_face_config(GEOMETRY))
    check_values(tmp_path, TABLE, GEOMETRY.num_hidden_layers)
    norms[1][3] = value
    save_checkpoint(tmp_path, weights, TABLE, hugging_face_config(GEOMETRY))
    with pytest.raises(DiagnosticError) as checked:
        check_values(tmp_path, TABLE, GEOMETRY.num_hidden_layers)
    with pytest.raises(DiagnosticError) as loaded:
        load_checkpoint(tmp_path, TABLE, GEOMETRY, torch.float32)
    for caught in (checked, loaded):
        (found,) = caught.value.diagnostics
        assert found.code == "SPC419"
        assert NORM in found.message
        assert found.help
