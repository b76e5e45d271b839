"""Every shipped spec, reduced within its family, holds what design 03 demands; quickly here, in full when slow."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specc.check import Workbench, run
from specc.check.reduce import reduce
from specc.check.variations import MAX_VARIATIONS
from specc.spec import fingerprint, load

SPECS = sorted((Path(__file__).resolve().parents[2] / "specs").glob("*.yaml"))
torch.set_num_threads(1)


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_reduction_stays_in_the_family(path: Path) -> None:
    loaded = load(path)
    small = reduce(loaded)
    old, new = loaded.spec.target.geometry, small.spec.target.geometry
    assert new.num_hidden_layers <= 2
    assert new.hidden_size <= 64
    assert small.spec.runtime.dtype == "float64"
    switches = ("family", "tie_word_embeddings", "qkv_bias", "o_bias", "mlp_bias", "qk_norm")
    assert [getattr(new, name) for name in switches] == [getattr(old, name) for name in switches]
    assert (new.rope_scaling is None) == (old.rope_scaling is None)
    group = old.num_attention_heads // old.num_key_value_heads
    assert new.num_attention_heads // new.num_key_value_heads == group
    assert small.spec.is_chain == loaded.spec.is_chain
    for name in ("method", "tree", "top_k"):
        assert getattr(small.spec.draft, name) == getattr(loaded.spec.draft, name)
    assert small.spec.commit == loaded.spec.commit
    assert small.spec.accept.method == loaded.spec.accept.method


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_variations_are_legal_and_different(path: Path) -> None:
    bench = Workbench.of(load(path))
    keys = [fingerprint(one.loaded.spec) for one in bench.variations]
    assert len(set(keys)) == len(keys)
    assert 5 <= len(keys) <= MAX_VARIATIONS
    updates = {one.loaded.spec.commit.update for one in bench.variations}
    assert updates == {"immediate", "deferred"}
    assert {one.loaded.spec.verify.attention for one in bench.variations} == {"fused", "eager"}
    shapes = {one.loaded.spec.is_chain for one in bench.variations}
    assert shapes == {True, False}


@pytest.mark.slow
@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_spec_holds_in_a_few_examples(path: Path) -> None:
    loaded = load(path)
    report = run(loaded, 12, bench=Workbench.of(loaded, limit=1))
    assert report.ok, report.as_text(path.name)
    assert report.counts["I20"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_spec_holds_and_its_examples_count(path: Path) -> None:
    """200 examples over at most 20 compiled variations, every pass compared at least 20 times, shares of steps met."""
    report = run(load(path), 200)
    assert report.ok, report.as_text(path.name)
    assert report.examples >= 200
    assert len(report.variations) <= MAX_VARIATIONS
    assert min(report.passes.values()) >= 20
