"""Aux features of recurrent targets: what commit gets is what a plain forward pass reads out of the states, or has
before or behind a layer; of each layer what the spec says of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx import Node

from specc.check.oracle import PlainDecoding
from specc.check.weights import logical_weights
from specc.lower import mixers, target
from specc.lower.delta import delta_layer
from specc.spec import from_mapping
from specc.spec.model import Spec
from tests.unit.decoding_fixtures import Decoding

GDN = {
    "family": "gated_deltanet",
    "config": {
        "num_hidden_layers": 3, "hidden_size": 24, "num_heads": 2, "head_dim": 4, "expand_v": 2, "conv_size": 4,
        "intermediate_size": 16, "vocab_size": 31, "max_position_embeddings": 256,
    },
}  # fmt: skip
HYBRID = {
    "family": "qwen3_next",
    "config": {
        "num_hidden_layers": 4, "hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
        "intermediate_size": 16, "vocab_size": 31, "num_experts": 0, "linear_num_key_heads": 1,
        "linear_num_value_heads": 2, "linear_key_head_dim": 4, "linear_value_head_dim": 6,
        "layer_types": ["linear_attention", "full_attention"] * 2, "max_position_embeddings": 256,
    },
}  # fmt: skip
HEAD = {"num_attention_heads": 2, "head_dim": 8, "draft_vocab_size": 17}
PROMPTS = [[3, 1, 4, 1, 5, 9], [2], [6, 5, 3]]


def spec_of(model: dict[str, Any], layers: list[int], of: str | list[str] = "readout") -> Spec:
    draft = {
        "method": "eagle3", "tree": "dynamic", "num_speculative_tokens": 5, "num_steps": 3, "top_k": 2,
        "config": HEAD | {"hidden_size": model["config"]["hidden_size"]},
        "aux_hidden_state_layer_ids": layers, "aux_hidden_state_of": of,
    }  # fmt: skip
    runtime = {"max_batch_size": 4, "max_sequence_length": 64, "dtype": "float64", "state_dtype": "float64"}
    mapping = {"specc": 1, "name": "small", "target": model, "draft": draft, "runtime": runtime}
    return from_mapping(mapping).spec


def listed(spec: Spec) -> list[tuple[int, str]]:
    """Layers and kinds, as they are written."""
    layers, of = spec.draft.aux_hidden_state_layer_ids, spec.draft.aux_hidden_state_of
    assert of is not None
    return list(zip(layers, [of] * len(layers) if isinstance(of, str) else of, strict=True))


def largest_error(spec: Spec) -> float:
    """Of recent_features over a prefill and three steps, against those of whole texts."""
    weights = logical_weights(spec, 1)
    plain = PlainDecoding(spec.target.geometry, weights)
    decoding = Decoding.start(spec, weights, PROMPTS)
    worst = 0.0
    for _ in range(4):
        features, count = decoding.state["recent_features"], decoding.state["recent_count"]
        for row, text in enumerate(decoding.texts):
            seen = plain.forward([text[:-1]])
            kinds = {"readout": seen.readouts, "output": seen.outputs, "input": seen.inputs}
            expected = torch.cat([kinds[of][layer][0] for layer, of in listed(spec)], -1)
            recent = int(count[row])
            worst = max(worst, float((features[row, :recent] - expected[-recent:]).abs().max()))
        decoding.step()
    return worst


@pytest.mark.parametrize(("model", "layers"), [(GDN, [0, 2]), (HYBRID, [2]), (HYBRID, [2, 0])])
def test_features_are_the_readouts_of_the_committed_tokens(model: dict[str, Any], layers: list[int]) -> None:
    spec = spec_of(model, layers)
    head, delta = spec.eagle_geometry, spec.target.geometry.delta
    assert head is not None
    assert delta is not None
    width = delta.num_value_heads * delta.value_dim
    assert head.feature_sizes == (width,) * len(layers)
    assert width != spec.target.geometry.hidden_size
    assert largest_error(spec) < 1e-9


def _ungated(b: Any, *args: Any) -> tuple[Node, Node]:
    """The layer with what lies before its gate as the readout."""
    added, readout = delta_layer(b, *args)
    gated = readout.args[0]
    assert isinstance(gated, Node)
    assert gated.name.startswith("gated")
    return added, b.call(torch.ops.aten.flatten.using_ints, gated.args[0], -2, -1)


def test_a_readout_from_before_the_gate_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixers, "delta_layer", _ungated)
    assert largest_error(spec_of(GDN, [0, 2])) > 1e-2


def test_a_readout_of_another_layer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = target._features

    def shifted(b: Any, ctx: Any, shown: target.Shown) -> Node | None:
        moved = tuple(replace(feature, layer=max(feature.layer - 1, 0)) for feature in ctx.aux)
        return usual(b, replace(ctx, aux=moved), shown)

    monkeypatch.setattr(target, "_features", shifted)
    assert largest_error(spec_of(GDN, [0, 2])) > 1e-2


@settings(max_examples=6)
@given(st.data())
def test_each_layer_shows_what_the_spec_says_of_it(data: st.DataObject) -> None:
    model: dict[str, Any] = data.draw(st.sampled_from([GDN, HYBRID]))
    types = model["config"].get("layer_types", ["linear_attention"] * model["config"]["num_hidden_layers"])
    shows = [(layer, of) for layer in range(len(types)) for of in ("input", "output", "readout")]
    shows = [(layer, of) for layer, of in shows if of != "readout" or types[layer] == "linear_attention"]
    chosen = data.draw(st.lists(st.sampled_from(shows), min_size=1, max_size=4, unique=True))
    spec = spec_of(model, [layer for layer, _ in chosen], [of for _, of in chosen])
    head, geometry = spec.eagle_geometry, spec.target.geometry
    assert head is not None
    assert geometry.delta is not None
    width = geometry.delta.num_value_heads * geometry.delta.value_dim
    assert head.feature_sizes == tuple(width if of == "readout" else geometry.hidden_size for _, of in chosen)
    assert largest_error(spec) < 1e-9


def test_kinds_that_change_places_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer's output in place of another's: widths are the same, so only the values tell."""
    usual = target._features

    def swapped(b: Any, ctx: Any, shown: target.Shown) -> Node | None:
        other = {"input": "output", "output": "input"}
        moved = tuple(replace(feature, of=other.get(feature.of, feature.of)) for feature in ctx.aux)
        return usual(b, replace(ctx, aux=moved), shown)

    spec = spec_of(GDN, [0, 2, 2], ["output", "readout", "input"])
    assert largest_error(spec) < 1e-9
    monkeypatch.setattr(target, "_features", swapped)
    assert largest_error(spec) > 1e-2
