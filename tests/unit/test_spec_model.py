"""Resolved specs: defaults, derived numbers, geometry from configs and checkpoints, overrides, fingerprints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from specc.codes.entry import SPEC_START
from specc.diagnostics import SpecError
from specc.models.geometry import RopeScaling
from specc.spec import LoadedSpec, Spec, fingerprint, from_mapping, load, loads, to_mapping
from specc.spec.compose import compose
from specc.spec.nodes import Text
from specc.spec.overrides import apply_overrides

SPECS = sorted((Path(__file__).resolve().parents[2] / "specs").glob("*.yaml"))
SIZES = {
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 512,
}


def draft(text: str, *overrides: str) -> Spec:
    return loads(SPEC_START + f"draft: {{{text}}}\n", "t.yaml", overrides).spec


def target(family: str, **config: Any) -> Spec:
    return from_mapping({"specc": 1, "name": "t", "target": {"family": family, "config": {**SIZES, **config}}}).spec


def codes(text: str, *overrides: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        loads(text, "t.yaml", overrides)
    return [item.code for item in caught.value.diagnostics]


@pytest.mark.parametrize(
    ("text", "tokens", "steps", "top_k", "chain", "max_path"),
    [
        ("method: none", 0, 0, 1, True, 1),
        ("method: prompt_lookup", 4, 4, 1, True, 5),
        ("method: prompt_lookup, num_steps: 6", 6, 6, 1, True, 7),
        ("method: prompt_lookup, num_speculative_tokens: 3", 3, 3, 1, True, 4),
        ("method: eagle3, tree: dynamic", 15, 5, 4, False, 6),
        ("method: eagle3, tree: dynamic, top_k: 2, num_steps: 2", 6, 2, 2, False, 3),
        ("method: eagle3, tree: dynamic, top_k: 1, num_steps: 3", 3, 3, 1, True, 4),
        ("method: eagle3, tree: dynamic, top_k: 1, num_steps: 7, num_speculative_tokens: 4", 4, 7, 1, True, 5),
        ("method: prompt_lookup, tree: dynamic, top_k: 3, num_steps: 4", 12, 4, 3, False, 5),
        ("method: eagle3, tree: static, choices: [[0], [2], [0, 1]]", 3, 2, 3, False, 3),
        ("method: eagle3, tree: static, choices: [[0], [0, 0], [0, 0, 0]]", 3, 3, 1, True, 4),
        ("method: eagle3, tree: static, choices: [[0], [1]]", 2, 1, 2, False, 2),
        ("method: eagle3, tree: static, choices: [[1]]", 1, 1, 2, True, 2),
        ("method: eagle3, tree: dynamic, num_speculative_tokens: 1", 1, 5, 4, True, 2),
    ],
)
def test_draft_sizes(text: str, tokens: int, steps: int, top_k: int, chain: bool, max_path: int) -> None:
    spec = draft(text)
    assert (spec.draft.num_speculative_tokens, spec.draft.num_steps, spec.draft.top_k) == (tokens, steps, top_k)
    assert (spec.num_nodes, spec.is_chain, spec.max_path) == (tokens + 1, chain, max_path)
    assert spec.depth == max_path - 1


@pytest.mark.parametrize(
    ("text", "kv"),
    [
        ("draft: {method: prompt_lookup}\n", "length"),
        ("draft: {method: eagle3, tree: dynamic}\n", "path_index"),
        ("draft: {method: prompt_lookup}\ncommit: {update: deferred}\n", "path_index"),
    ],
)
def test_commit_default_follows_the_tree(text: str, kv: str) -> None:
    assert loads(SPEC_START + text).spec.commit.kv == kv


def test_method_defaults_of_accept() -> None:
    spec = loads(SPEC_START + "accept: {method: rejection}\nsampling: {temperature: 1.0}\n").spec
    assert spec.accept.rule == "target_only"
    spec = loads(SPEC_START + "accept: {method: typical, lossless: false}\nsampling: {temperature: 1}\n").spec
    assert spec.accept.typical is not None
    assert (spec.accept.typical.epsilon, spec.accept.typical.alpha) == (0.3, 0.09)


def test_sequence_length_default_leaves_room_for_the_tree() -> None:
    assert loads(SPEC_START).spec.runtime.max_sequence_length == 511
    assert draft("method: prompt_lookup, num_steps: 8").runtime.max_sequence_length == 503
    assert codes(SPEC_START + "runtime: {max_sequence_length: 512}\n") == ["SPC150"]
    assert loads(SPEC_START + "runtime: {max_sequence_length: 511}\n").spec.runtime.max_sequence_length == 511


@pytest.mark.parametrize(
    ("family", "bias", "qk_norm"), [("llama", False, False), ("qwen3", False, True), ("pangu", True, False)]
)
def test_bias_and_norm_defaults_per_family(family: str, bias: bool, qk_norm: bool) -> None:
    geometry = target(family).target.geometry
    assert (geometry.qkv_bias, geometry.o_bias, geometry.mlp_bias, geometry.qk_norm) == (bias, bias, False, qk_norm)
    assert geometry.head_dim == (128 if family == "qwen3" else 16)
    assert geometry.num_key_value_heads == 4


def test_bias_keys_of_families() -> None:
    assert target("llama", attention_bias=True).target.geometry.o_bias
    assert not target("pangu", bias=False).target.geometry.qkv_bias
    with pytest.raises(SpecError, match="SPC020"):
        target("llama", bias=True)


@pytest.mark.parametrize("style", ["rope_scaling", "rope_parameters", "legacy"])
def test_both_styles_of_rope_settings(style: str) -> None:
    scaling: dict[str, Any] = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    }
    if style == "rope_parameters":
        config: dict[str, Any] = {"rope_parameters": {**scaling, "rope_type": "llama3", "rope_theta": 5e5}}
    else:
        key = "type" if style == "legacy" else "rope_type"
        config = {"rope_scaling": {**scaling, key: "llama3"}, "rope_theta": 5e5}
    geometry = target("llama", **config).target.geometry
    assert geometry.rope_theta == 5e5
    assert geometry.rope_scaling == RopeScaling(8.0, 1.0, 4.0, 128)


def test_default_rope_type_is_no_scaling() -> None:
    geometry = target("llama", rope_parameters={"rope_type": "default", "rope_theta": 1e6}).target.geometry
    assert (geometry.rope_theta, geometry.rope_scaling) == (1e6, None)


def test_checkpoint_gives_the_same_spec_as_its_sizes_written_down(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    extra = {"model_type": "llama", "torch_dtype": "bfloat16", "hidden_act": "silu", "some_future_key": [1]}
    (folder / "config.json").write_text(json.dumps({**SIZES, **extra}), encoding="utf-8")
    path = tmp_path / "spec.yaml"
    path.write_text("specc: 1\nname: t\ntarget: {family: llama, checkpoint: model}\n", encoding="utf-8")
    loaded = load(path)
    written = target("llama")
    assert loaded.spec.target.config == written.target.config
    assert loaded.target_folder == folder
    assert fingerprint(loaded.spec) == fingerprint(written)


def test_eagle_head_takes_the_targets_sizes() -> None:
    spec = draft("method: eagle3, config: {draft_vocab_size: 100}")
    geometry = spec.eagle_geometry
    assert geometry is not None
    assert (geometry.hidden_size, geometry.num_attention_heads, geometry.head_dim) == (64, 4, 16)
    assert (geometry.draft_vocab_size, geometry.vocab_size, geometry.feature_sizes) == (100, 256, (64, 64))
    default = draft("method: eagle3").eagle_geometry
    assert default is not None
    assert default.draft_vocab_size == 256


def test_eagle_head_of_another_width_needs_its_own_heads() -> None:
    geometry = draft("method: eagle3, config: {hidden_size: 32, num_attention_heads: 2}").eagle_geometry
    assert geometry is not None
    assert (geometry.target_hidden_size, geometry.hidden_size) == (64, 32)
    assert (geometry.num_key_value_heads, geometry.head_dim) == (2, 16)
    assert set(codes(SPEC_START + "draft: {method: eagle3, config: {hidden_size: 32}}\n")) == {"SPC021"}


def test_eagle_feature_layers_default_to_the_published_ones() -> None:
    text = SPEC_START.replace("num_hidden_layers: 2", "num_hidden_layers: 30") + "draft: {method: eagle3}\n"
    spec = loads(text).spec
    assert spec.draft.aux_hidden_state_layer_ids == (2, 15, 27)
    assert spec.draft.aux_hidden_state_of == "input"


def test_draft_model_family_defaults_to_the_targets() -> None:
    sizes = ", ".join(f"{key}: {value}" for key, value in {**SIZES, "vocab_size": 256}.items())
    spec = draft(f"method: draft_model, config: {{{sizes}}}")
    assert spec.draft_geometry is not None
    assert spec.draft_geometry.family == "llama"
    spec = draft(f"method: draft_model, family: qwen3, config: {{{sizes}}}")
    assert spec.draft_geometry is not None
    assert spec.draft_geometry.qk_norm


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_shipped_spec_loads_without_warnings_and_survives_a_round_trip(path: Path) -> None:
    loaded = load(path)
    assert loaded.warnings == ()
    assert loaded.spec.name == path.stem
    assert loaded.spec.description
    assert path.read_text(encoding="utf-8").startswith("# yaml-language-server: $schema=")
    again = from_mapping(to_mapping(loaded.spec))
    assert again.spec == loaded.spec
    assert fingerprint(again.spec) == fingerprint(loaded.spec)


def test_shipped_specs_have_distinct_fingerprints() -> None:
    assert len({fingerprint(load(path).spec) for path in SPECS}) == len(SPECS) >= 10


def test_overrides_act_like_text_and_point_at_themselves() -> None:
    loaded = loads(
        SPEC_START, "t.yaml", ["sampling.seed=3", "draft={method: prompt_lookup, num_steps: 2}", "sampling.seed=0x10"]
    )
    assert loaded.spec.sampling.seed == 16
    assert loaded.spec.draft.num_speculative_tokens == 2
    span = loaded.source.span("draft", "num_steps")
    assert span is not None
    assert (span.file, span.line, span.column, span.end_column) == ("--set", 2, 42, 43)
    assert loaded.source.span("sampling", "seed").line == 3  # type: ignore[union-attr]
    assert loaded.source.span("target", "family").file == "t.yaml"  # type: ignore[union-attr]


def test_override_heals_a_broken_key_and_null_takes_one_away() -> None:
    text = SPEC_START + "sampling: {seed: 010}\ncommit: {state: factors}\n"
    assert codes(text) == ["SPC009", "SPC100"]
    assert codes(text, "commit.state=null") == ["SPC009"]
    healed = SPEC_START + "sampling: {seed: 8}\ncommit: {state: factors}\n"
    assert loads(healed, "t.yaml", ["commit.state="]).spec.commit.state is None


def test_override_of_list_items() -> None:
    loaded = loads(
        SPEC_START + "accept: {stop_tokens: [1, 2]}\n", "t.yaml", ["accept.stop_tokens.1=5", "accept.stop_tokens.2=6"]
    )
    assert loaded.spec.accept.stop_tokens == (1, 5, 6)


def test_override_replaces_a_section_with_its_places() -> None:
    text = SPEC_START + "sampling: {seed: 3, top_p: 0.5}\n"
    loaded = loads(text, "t.yaml", ["sampling={top_k: 0}"])
    assert loaded.spec.sampling.seed == 0
    assert loaded.source.has("sampling", "top_k")
    assert not loaded.source.has("sampling", "seed")


def test_overrides_leave_their_input_alone() -> None:
    composed = compose(Text("a: {b: [1]}\n", "t.yaml"))
    assert apply_overrides(composed, ["a.b.0=2", "a.c=3"]).value == {"a": {"b": [2], "c": 3}}
    assert composed.value == {"a": {"b": [1]}}


def test_overrides_do_not_reach_through_aliases() -> None:
    text = SPEC_START + "a: &a {seed: 1}\nsampling: *a\n"
    assert "SPC020" in codes(text, "sampling.seed=2")
    shared = SPEC_START.replace("config: {", "config: &c {") + "draft: {method: draft_model, config: *c}\n"
    loaded = loads(shared, "t.yaml", ["draft.config.num_hidden_layers=1"])
    assert loaded.spec.draft_geometry is not None
    assert loaded.spec.draft_geometry.num_hidden_layers == 1
    assert loaded.spec.target.geometry.num_hidden_layers == 2


@pytest.mark.parametrize(
    "override", ["sampling.seed=1", "draft.num_steps=3", "name=other", "target.config.vocab_size=300"]
)
def test_fingerprint_changes_with_meaning(override: str) -> None:
    text = SPEC_START + "draft: {method: prompt_lookup}\n"
    assert fingerprint(loads(text).spec) != fingerprint(loads(text, overrides=[override]).spec)


def test_fingerprint_ignores_description_order_paths_and_written_defaults() -> None:
    first = SPEC_START + "draft: {method: eagle3, checkpoint: null}\nnumerics: exact\n"
    head, tail = SPEC_START.split("target:", 1)
    second = "numerics: exact\ndescription: other\ntarget:" + tail + head + "draft: {tree: chain, method: eagle3}\n"
    assert fingerprint(loads(first).spec) == fingerprint(loads(second).spec)


def test_fingerprint_ignores_the_order_of_pass_options() -> None:
    first, second = (loads(SPEC_START + f"passes: [{{dce: {{{text}}}}}]\n") for text in ("a: 1, b: 2", "b: 2, a: 1"))
    assert fingerprint(first.spec) == fingerprint(second.spec)


def test_fingerprint_is_stable_across_processes_and_hash_seeds() -> None:
    program = (
        "import sys; from pathlib import Path; from specc.spec import load, fingerprint; "
        "print(fingerprint(load(Path(sys.argv[1])).spec))"
    )
    path = str(SPECS[0])
    results = set()
    for seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", program, path],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            cwd=SPECS[0].parents[1],
        )
        results.add(done.stdout.strip())
    assert results == {fingerprint(load(SPECS[0]).spec)}


def test_a_loaded_spec_can_not_be_changed() -> None:
    loaded: LoadedSpec = loads(SPEC_START)
    with pytest.raises(ValueError, match="frozen"):
        loaded.spec.draft.top_k = 2  # type: ignore[misc]


def test_half_a_character_is_refused() -> None:
    with pytest.raises(SpecError) as caught:
        loads('specc: 1\nname: half\ndescription: "\\ud800"\ntarget: {family: llama}\n')
    assert "SPC022" in {item.code for item in caught.value.diagnostics}
    assert all(item.render().encode() for item in caught.value.diagnostics)
