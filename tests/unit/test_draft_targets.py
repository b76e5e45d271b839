"""Frozen targets against transformers, the training model and generated modules, and decoding against whole texts."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specc.diagnostics import DiagnosticError
from specc.driver import compile_spec
from specc.models.checkpoint import save_checkpoint, stored_tensors
from specc.models.families import hugging_face_config
from specc.models.geometry import AuxFeature, Geometry, gated_deltanet_geometry, transformer_geometry
from specc.models.random_weights import random_weights
from specc.models.weights import weight_table
from specc.runtime.module import import_source
from specc.spec import from_mapping
from specc.train.draft.gated_delta_decode import GatedDeltaTarget
from specc.train.draft.generate import Generator, Limits
from specc.train.draft.llama import LlamaTarget, wide_logits
from specc.train.draft.targets import FrozenTarget, load_target, target_fingerprint
from specc.train.gated_delta import GatedDeltaConfig, GatedDeltaModel
from tests.backends import hf_reference as hf

SIZES: dict[str, Any] = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "vocab_size": 97,
    "max_position_embeddings": 256,
}
SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LLAMAS: dict[str, tuple[str, dict[str, Any]]] = {
    "tied": ("llama", {"tie_word_embeddings": True}),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "scaling": ("llama", {"rope_scaling": SCALING, "rope_theta": 500000.0}),
    "qwen3": ("qwen3", {"head_dim": 16}),
}
DELTA: dict[str, Any] = {
    "num_hidden_layers": 2,
    "hidden_size": 24,
    "num_heads": 2,
    "head_dim": 8,
    "expand_v": 1,
    "intermediate_size": 32,
    "vocab_size": 97,
    "tie_word_embeddings": True,
}
DELTAS: dict[str, dict[str, Any]] = {
    "delta": {},
    "delta-wide": {"expand_v": 2, "num_v_heads": 4, "allow_neg_eigval": True, "tie_word_embeddings": False},
    "delta-bare": {"use_gate": False, "use_short_conv": False},
}


def llama(name: str) -> tuple[Geometry, dict[str, Any]]:
    family, changes = LLAMAS[name]
    geometry = transformer_geometry(family, SIZES | changes)
    return geometry, dict(random_weights(weight_table(geometry), geometry, 1, torch.float32))


def delta(name: str) -> tuple[Geometry, dict[str, Any]]:
    geometry = gated_deltanet_geometry(DELTA | DELTAS[name])
    return geometry, dict(random_weights(weight_table(geometry), geometry, 1, torch.float32))


@functools.cache
def target_of(name: str) -> FrozenTarget:
    if name in DELTAS:
        return GatedDeltaTarget(*delta(name), torch.float32)
    return LlamaTarget(*llama(name))


def ids_of(batch: int, length: int, seed: int = 3) -> Tensor:
    return torch.randint(0, 97, (batch, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", LLAMAS)
def test_llama_equals_transformers(name: str) -> None:
    geometry, weights = llama(name)
    target, ids = LlamaTarget(geometry, weights), ids_of(2, 40)
    with torch.no_grad():
        expected = hf.hf_model(geometry, weights, torch.float32)(ids, output_hidden_states=True)
    hidden = expected.hidden_states
    outputs, final = target.states(ids, [AuxFeature(0, "output")])
    inputs, _ = target.states(ids, [AuxFeature(1, "input"), AuxFeature(0, "input")])
    torch.testing.assert_close(outputs, hidden[1], rtol=0, atol=2e-6)
    torch.testing.assert_close(inputs, torch.cat([hidden[1], hidden[0]], -1), rtol=0, atol=2e-6)
    torch.testing.assert_close(final, hidden[-1], rtol=0, atol=3e-5)
    torch.testing.assert_close(target.logits(final), expected.logits, rtol=0, atol=3e-5)


def test_gated_delta_equals_the_training_model() -> None:
    config = GatedDeltaConfig(97, 24, 2, 2, 8, 32)
    geometry, weights = delta("delta")
    model = GatedDeltaModel(config)
    model.load_state_dict(stored_tensors(weights, weight_table(geometry)))
    seen: list[Tensor] = []
    for block in model.model.layers:
        block.get_submodule("attn.o_proj").register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    ids = ids_of(2, 90)
    with torch.no_grad():
        logits = model(ids)
    target = target_of("delta")
    readouts, final = target.states(ids, [AuxFeature(1, "readout"), AuxFeature(0, "readout")])
    torch.testing.assert_close(readouts, torch.cat(seen[::-1], -1), rtol=0, atol=2e-6)
    torch.testing.assert_close(target.logits(final), logits, rtol=0, atol=2e-5)
    outputs, _ = target.states(ids, [AuxFeature(0, "output")])
    inputs, _ = target.states(ids, [AuxFeature(1, "input")])
    assert torch.equal(outputs, inputs)
    mixed, _ = target.states(ids, [AuxFeature(1, "readout"), AuxFeature(0, "output"), AuxFeature(0, "readout")])
    assert torch.equal(mixed, torch.cat([seen[1], outputs, seen[0]], -1))


@settings(max_examples=12)
@given(
    name=st.sampled_from(["tied", "scaling", "qwen3", *DELTAS]),
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=3),
    padding=st.integers(0, 5),
    steps=st.integers(1, 6),
    seed=st.integers(0, 99),
)
def test_decoding_equals_the_whole_text(name: str, lengths: list[int], padding: int, steps: int, seed: int) -> None:
    target, count = target_of(name), len(lengths)
    ids = ids_of(count, max(lengths) + padding + steps, seed)
    whole = target.logits(target.states(ids, [])[1])
    decoding = target.open(4, 40)
    decoding.prefill(ids_of(4, 9, seed + 1), torch.tensor([9, 2, 5, 9]))  # texts of before leave nothing behind
    rows, at, every = torch.tensor([2, 0, 3][:count]), torch.tensor(lengths), torch.arange(count)
    found = [decoding.prefill(ids[:, : max(lengths) + padding], at, rows)]
    for step in range(steps):
        tokens = torch.zeros(4, dtype=torch.int64).index_copy(0, rows, ids[every, at + step])
        active = torch.zeros(4, dtype=torch.bool).index_fill(0, rows, value=True)
        found.append(decoding.step(tokens, active)[rows])
    for step, logits in enumerate(found):
        torch.testing.assert_close(logits, whole[every, at - 1 + step], rtol=0, atol=2e-4)
    assert decoding.lengths[rows].tolist() == [length + steps for length in lengths]
    assert decoding.lengths[1] == 2


def plain_texts(
    folder: Path, name: str, prompts: Sequence[Sequence[int]], stops: Sequence[int], new: int
) -> list[list[int]]:
    """What the generated module of a plain spec writes, one prompt at a time."""
    family, sizes = ("gated_deltanet", DELTA) if name in DELTAS else (LLAMAS[name][0], SIZES | LLAMAS[name][1])
    loaded = from_mapping(
        {
            "specc": 1,
            "name": "plain",
            "target": {"family": family, "config": sizes},
            "draft": {"method": "none"},
            "accept": {"method": "greedy", "stop_tokens": list(stops)},
            "runtime": {"max_batch_size": 1, "max_sequence_length": 96, "dtype": "float32"},
        }
    )
    module = import_source(compile_spec(loaded, "reference").source, f"draft_target_{name}")
    geometry, weights = delta(name) if name in DELTAS else llama(name)
    save_checkpoint(folder, weights, weight_table(geometry), hugging_face_config(geometry))
    texts = []
    for prompt in prompts:
        decoder = module.Decoder.from_pretrained(folder)
        text = list(decoder.start([prompt], new))
        while len(text) < new and text[-1] not in stops:
            text += decoder.step().emitted[0]
        texts.append(text)
    return texts


@pytest.mark.parametrize("name", ["tied", "delta"])
def test_greedy_texts_are_those_of_the_generated_module(name: str, tmp_path: Path) -> None:
    prompts = [ids_of(1, length, length)[0].tolist() for length in (5, 17, 1, 9, 30)]
    stops = [3, 11]
    # Three rows for five prompts: rows are given on.
    generator = Generator(target_of(name), stops, Limits(3, 24, 30), sampled=False)
    found = generator.run(prompts)
    expected = plain_texts(tmp_path, name, prompts, stops, 24)
    assert [found[number] for number in range(5)] == expected
    assert {len(text) < 24 for text in expected} == {True, False}, "texts that stop and texts that do not are wanted"
    assert generator.run(prompts) == found


def test_half_precision_logits_are_not_rounded() -> None:
    random = torch.Generator().manual_seed(0)
    hidden, head = (torch.randn(size, 16, generator=random).bfloat16() for size in (5, 9))
    assert torch.equal(wide_logits(hidden, head), hidden.float() @ head.float().T)


@pytest.mark.parametrize(("name", "of"), [("tied", "readout"), ("delta", "state")])
def test_features_that_a_model_does_not_have_are_refused(name: str, of: str) -> None:
    with pytest.raises(ValueError, match=of):
        target_of(name).states(ids_of(1, 4), [AuxFeature(0, of)])


def test_folders_are_loaded_and_told_apart(tmp_path: Path) -> None:
    prints = set()
    for name, (geometry, weights) in {"tied": llama("tied"), "delta": delta("delta")}.items():
        folder = tmp_path / name
        save_checkpoint(folder, weights, weight_table(geometry), hugging_face_config(geometry), num_shards=2)
        ids = ids_of(1, 12)
        loaded, built = load_target(folder, "cpu", torch.float32), target_of(name)
        shown = [AuxFeature(0, "output")]
        assert torch.equal(loaded.states(ids, shown)[0], built.states(ids, shown)[0])
        assert (loaded.vocab_size, loaded.hidden_size, loaded.num_layers) == (97, geometry.hidden_size, 2)
        prints.add(target_fingerprint(folder))
        changed = dict(weights) | {"norm": weights["norm"] * 2}
        save_checkpoint(folder, changed, weight_table(geometry), hugging_face_config(geometry), num_shards=2)
        prints.add(target_fingerprint(folder))
    assert len(prints) == 4


def test_families_without_a_frozen_form_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    geometry = replace(llama("tied")[0], family="qwen3_next", gated_attention=True)
    monkeypatch.setattr("specc.train.draft.targets.checkpoint_geometry", lambda folder: geometry)
    with pytest.raises(DiagnosticError) as caught:
        load_target(tmp_path, "cpu", torch.float32)
    assert caught.value.diagnostics[0].code == "SPC477"


def test_steps_that_read_only_some_columns_write_the_same_texts() -> None:
    target = target_of("tied")
    prompts = [ids_of(1, length, length)[0].tolist() for length in (3, 118, 150)]
    generator = Generator(target, [], Limits(2, 20, 150), sampled=False)
    assert generator.decoding.attended_sizes == (128, 176)
    for number, new in generator.run(prompts).items():
        text = torch.tensor([prompts[number] + new])
        logits = target.logits(target.states(text, [])[1])[0]
        assert new == logits[len(prompts[number]) - 1 : -1].argmax(-1).tolist()
