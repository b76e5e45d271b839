"""Every shipped spec, reduced within its family, holds what design 03 demands; quickly here, in full when slow."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specc.check import Workbench, run
from specc.check.reduce import reduce
from specc.check.variations import MAX_VARIATIONS
from specc.invariants import INVARIANTS
from specc.spec import fingerprint, load
from tests.cells import ALL

SPECS = sorted((Path(__file__).resolve().parents[2] / "specs").glob("*.yaml"))
torch.set_num_threads(1)


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_reduction_stays_in_the_family(path: Path) -> None:
    loaded = load(path)
    small = reduce(loaded)
    old, new = loaded.spec.target.geometry, small.spec.target.geometry
    assert new.num_hidden_layers <= (6 if new.moe or (new.num_attention_heads and new.recurrent) else 2)
    assert new.hidden_size <= 64
    assert small.spec.runtime.dtype == "float64"
    switches = ("family", "tie_word_embeddings", "qkv_bias", "o_bias", "mlp_bias", "qk_norm", "gated_attention")
    assert [getattr(new, name) for name in switches] == [getattr(old, name) for name in switches]
    assert (new.rope_scaling is None) == (old.rope_scaling is None)
    if old.num_attention_heads:
        group = min(old.num_attention_heads // old.num_key_value_heads, 4)
        assert new.num_attention_heads // new.num_key_value_heads == group
    assert {layer.mixer for layer in new.layers} == {layer.mixer for layer in old.layers}
    if old.delta is not None and new.delta is not None:
        kept = ("conv_size", "use_gate", "allow_neg_eigval", "grouped", "conv_bias")
        assert [getattr(new.delta, name) for name in kept] == [getattr(old.delta, name) for name in kept]
        assert (new.delta.num_value_heads > new.delta.num_key_heads) == (
            old.delta.num_value_heads > old.delta.num_key_heads
        )
        assert new.delta.value_dim / new.delta.key_dim == old.delta.value_dim / old.delta.key_dim or old.delta.grouped
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
    geometry = bench.variations[0].loaded.spec.target.geometry
    if geometry.num_attention_heads:
        assert {one.loaded.spec.verify.attention for one in bench.variations} == {"fused", "eager"}
    if geometry.recurrent:
        assert {one.loaded.spec.commit.state for one in bench.variations} == {"snapshots", "replay", "factors"}
        schedules = {one.loaded.spec.verify.recurrence for one in bench.variations}
        assert schedules >= {"replay", "serial", "hybrid", "tree"}
        assert any((one.loaded.spec.commit.window or 0) > 1 for one in bench.variations)
    shapes = {one.loaded.spec.is_chain for one in bench.variations}
    assert shapes == {True, False}


RECURRENT = [path for path in SPECS if load(path).spec.target.geometry.recurrent]
LARGE = [path for path in SPECS if path not in RECURRENT]
JUDGED = ("gdn-15m-tree", "qwen3-next-hybrid")


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in RECURRENT if path.stem not in JUDGED], ids=lambda path: path.stem)
def test_recurrent_spec_holds_in_a_few_examples(path: Path) -> None:
    """The other recurrent specs as they are written; the tests below run these examples for theirs, among others."""
    loaded = load(path)
    report = run(loaded, 12, bench=Workbench.of(loaded, limit=1))
    assert report.ok, report.as_text(path.name)
    assert report.counts["I20"] > 0


# Drafting and accepting in their fullest get all variations and more examples, the others a part of both.
IN_FULL = ("smollm2-rejection", "eagle-pangu")


@pytest.mark.slow
@pytest.mark.parametrize("path", LARGE, ids=lambda path: path.stem)
def test_spec_holds_and_its_examples_count(path: Path) -> None:
    """Examples over all compiled variations, or the first eight; every pass compared in a tenth of them, shares
    of steps met. `specc check` itself runs 200 over all."""
    whole = ALL or path.stem in IN_FULL
    examples = 200 if ALL or path.stem == "smollm2-rejection" else 100 if whole else 40
    loaded = load(path)
    report = run(loaded, examples, bench=None if whole else Workbench.of(loaded, limit=8))
    assert report.ok, report.as_text(path.name)
    assert report.counts["I20"] > 0
    assert report.examples >= examples
    assert len(report.variations) <= MAX_VARIATIONS
    assert min(report.passes.values()) >= examples // 10


@pytest.mark.slow
@pytest.mark.parametrize("name", JUDGED)
def test_recurrent_spec_holds_and_its_examples_count(name: str) -> None:
    """60 examples over the first variations, shares of steps met; `specc check` itself runs 200 over all."""
    loaded = load(SPECS[0].with_name(f"{name}.yaml"))
    report = run(loaded, 60, bench=Workbench.of(loaded, limit=8), judge=True)
    assert report.ok, report.as_text(name)
    assert min(report.passes.values()) >= 6
    untested = {id for id in ("I16", "I17", "I19", "I21", "I22", "I23", "I27") if not report.counts.get(id)}
    assert not untested


def test_twins_are_compared_even_in_short_runs() -> None:
    """I12, I13, I19: the check itself adds examples where its own have compared too few."""
    loaded = load(SPECS[0].with_name("gdn-15m-tree.yaml"))
    bench = Workbench.of(loaded, limit=4)
    numbers = [number for number, one in enumerate(bench.variations) if "chain" in one.name or not number]
    assert len(numbers) == 2
    bench.subject(0)
    report = run(loaded, 2, ["I12", "I13", "I19"], bench=bench, against=["twins"], once=False)
    assert report.ok
    assert min(report.counts.get(id, 0) for id in ("I12", "I13", "I19")) >= 2


def test_recurrent_invariants_are_not_told_of_transformers() -> None:
    """A report says what does not apply to a target without attention, or without recurrence."""
    status = {}
    for name in ("gdn-15m-tree", "smollm2-plain"):
        loaded = load(SPECS[0].with_name(f"{name}.yaml"))
        report = run(loaded, 1, ["I8"], bench=Workbench.of(loaded, limit=1), against=["oracle"], once=False)
        status[name] = {entry.id: report.status(entry) for entry in INVARIANTS}
    assert status["gdn-15m-tree"]["I8"] == "not applicable: kv targets only"
    assert status["gdn-15m-tree"]["I16"] == "not selected"
    assert status["smollm2-plain"]["I16"] == "not applicable: recurrent targets only"
