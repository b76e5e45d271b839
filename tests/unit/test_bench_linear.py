"""The benchmark of linear layers: its models have the sizes that the floors are stated for, its tiles are legal."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from specc.backends.triton.ops.linear import LINEAR, MANY
from specc.bench.gpu_timing import RATE
from specc.bench.linear_cases import MODELS, Gemm, Model, candidates, chosen

FLOORS = {"gdn-1.3b": 651, "llama-3.2-1b": 575, "smollm2": 63}
"""Microseconds of reading all weights at 4.3 TB/s (design 05)."""
LAYERS = [(model, gemm) for model in MODELS.values() for gemm in (*model.gemms, model.head)]


@pytest.mark.parametrize("name", FLOORS)
def test_models_have_the_sizes_that_floors_are_stated_for(name: str) -> None:
    assert MODELS[name].bytes / RATE * 1e6 == pytest.approx(FLOORS[name], rel=0.01)


@pytest.mark.parametrize(("model", "gemm"), LAYERS, ids=[f"{model.name} {gemm.name}" for model, gemm in LAYERS])
def test_every_layer_has_a_measured_configuration_and_legal_others(model: Model, gemm: Gemm) -> None:
    assert gemm in (*model.gemms, model.head)
    assert (gemm.hidden, gemm.features, gemm.gated) in LINEAR
    assert chosen(gemm) == LINEAR[gemm.hidden, gemm.features, gemm.gated]
    tried = candidates(gemm)
    assert len(set(tried)) == len(tried) > 3
    for config in tried:
        assert config.stages or config.once(gemm.hidden)
        assert config.kw in (1, config.warps)


@pytest.mark.parametrize(("model", "gemm"), LAYERS, ids=[f"{model.name} {gemm.name}" for model, gemm in LAYERS])
def test_every_layer_but_heads_has_one_for_many_rows(model: Model, gemm: Gemm) -> None:
    config = chosen(gemm, 128)
    assert config == MANY.get((gemm.hidden, gemm.features, gemm.gated))
    assert (config is None) == (gemm is model.head)
    tried = candidates(gemm, 128)
    assert len(set(tried)) == len(tried) > 2
    assert config is None or config in tried
