"""Properties of the loader: it answers every text with a spec or with coded diagnostics, never otherwise."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from specc.codes import CODES
from specc.codes.entry import SPEC_START
from specc.diagnostics import Diagnostic, SpecError, render_text
from specc.spec import LoadedSpec, Spec, fingerprint, from_mapping, loads, to_mapping
from specc.spec.model import Accept, Backend, Commit, Draft, Runtime, Sampling, Target, Verify
from specc.spec.text import decode

SECTIONS = {
    "draft": Draft,
    "verify": Verify,
    "accept": Accept,
    "commit": Commit,
    "sampling": Sampling,
    "runtime": Runtime,
    "backend": Backend,
    "target": Target,
}
WORDS = sorted(
    {name for model in SECTIONS.values() for name in model.model_fields}
    | {"eagle3", "draft_model", "bigram", "prompt_lookup", "none", "chain", "static", "dynamic", "rejection", "typical"}
    | {"true_q", "target_only", "path_index", "length", "deferred", "factors", "default", "all", "qwen3"}
)
FRAGMENTS = st.sampled_from(
    [
        "{",
        "}",
        "[",
        "]",
        ": ",
        ":",
        ", ",
        "- ",
        "\n",
        "\n  ",
        "&a ",
        "*a",
        "<<: ",
        "!!int ",
        "!x ",
        "'",
        '"',
        "|\n",
        "---\n",
        "1",
        "0",
        "-1",
        "1e9",
        ".nan",
        "~",
        "true",
        "on",
        "09",
        "12:30",
        "# c\n",
        "\t",
        "%YAML 1.1\n",
        "é",
        "\u2028",
        "? ",
        *WORDS,
    ]
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 40),
    st.integers(-(10**30), 10**30),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from(WORDS),
    st.text(max_size=8),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(WORDS) | st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)
STATIC = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), min_size=1, max_size=6)


def attempt(load: Callable[[], LoadedSpec]) -> tuple[Spec | None, tuple[Diagnostic, ...]]:
    """What loading gives: a spec and warnings, or None and errors. Any other exception is a failure."""
    try:
        loaded = load()
    except SpecError as problem:
        return None, problem.diagnostics
    return loaded.spec, loaded.warnings


def answer(text: str, overrides: tuple[str, ...] = ()) -> Spec | None:
    """The spec, or None; either way the findings are registered language codes and printable."""
    spec, found = attempt(lambda: loads(text, "t.yaml", overrides))
    assert (spec is None) == any(item.severity == "error" for item in found)
    assert all(item.code in CODES and item.code[3] in "01" for item in found)
    assert all(char == "\n" or char.isprintable() for char in render_text(found))
    return spec


@given(st.lists(FRAGMENTS, max_size=40))
def test_any_text_is_answered(parts: list[str]) -> None:
    answer(SPEC_START + "".join(parts))
    answer("".join(parts))


@given(st.text(max_size=200))
def test_any_unicode_text_is_answered(text: str) -> None:
    answer(text)


@given(st.binary(max_size=200))
def test_any_bytes_are_answered(data: bytes) -> None:
    try:
        text = decode(data, "t.yaml")
    except SpecError as problem:
        codes = [item.code for item in problem.diagnostics]
    else:
        answer(text)
        return
    assert codes == ["SPC003"]


@st.composite
def mappings(draw: st.DrawFn) -> dict[str, Any]:
    """Specs whose sections have real keys with plausible or wild values."""
    mapping: dict[str, Any] = yaml.safe_load(SPEC_START)
    for name in draw(st.lists(st.sampled_from(sorted(SECTIONS)), unique=True, max_size=4)):
        section = dict(mapping.get(name) or {})
        for key in draw(st.lists(st.sampled_from(sorted(SECTIONS[name].model_fields)), unique=True, max_size=4)):
            section[key] = draw(STATIC if key == "choices" else VALUES)
        mapping[name] = section
    return mapping


@given(mappings())
def test_any_mapping_is_answered_and_what_loads_survives_a_round_trip(mapping: dict[str, Any]) -> None:
    spec, found = attempt(lambda: from_mapping(mapping))
    assert all(item.code in CODES for item in found)
    if spec is None:
        return
    again = from_mapping(to_mapping(spec)).spec
    assert again == spec
    assert fingerprint(again) == fingerprint(spec)


@st.composite
def legal_specs(draw: st.DrawFn) -> dict[str, Any]:
    """Specs of every family, method, tree, acceptance and commit rule that load by construction."""
    family = draw(st.sampled_from(["llama", "qwen3", "pangu", "gated_deltanet", "qwen3_next"]))
    sizes: dict[str, Any] = {"num_hidden_layers": draw(st.integers(1, 40)), "hidden_size": 64, "vocab_size": 256}
    if family == "gated_deltanet":
        sizes |= {"num_heads": 2, "head_dim": 32}
    else:
        sizes |= {"num_attention_heads": 4, "intermediate_size": 128, "max_position_embeddings": 8192}
    method = draw(
        st.sampled_from(["none", "prompt_lookup", "bigram", "draft_model"] + ["eagle3"] * (family != "gated_deltanet"))
    )
    tree = draw(st.sampled_from(["chain", "dynamic", "static"]))
    spec: dict[str, Any] = {"specc": 1, "name": "demo", "target": {"family": family, "config": sizes}}
    draft: dict[str, Any] = {"method": method}
    if method != "none":
        draft["tree"] = tree
        if tree == "dynamic":
            draft |= {"top_k": draw(st.integers(1, 6)), "num_steps": draw(st.integers(1, 6))}
        elif tree == "static":
            draft["choices"] = draw(st.sampled_from([[[0]], [[0], [1]], [[0], [0, 0]], [[0], [2], [2, 1]]]))
    if method == "draft_model":
        sizes = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
        draft |= {"family": draw(st.sampled_from(["llama", "qwen3", "pangu"])), "config": {**sizes, "vocab_size": 256}}
    if method in ("bigram", "draft_model", "eagle3") and tree != "static" and draw(st.booleans()):
        draft["prune"] = {"min_path_log_prob": draw(st.floats(-9, 0))}
    accept = draw(st.sampled_from(["greedy", "rejection", "typical"]))
    spec |= {"draft": draft, "accept": {"method": accept, "lossless": accept != "typical"}}
    spec["sampling"] = {
        "temperature": 0.0 if accept == "greedy" else draw(st.floats(0.1, 2)),
        "seed": draw(st.integers(0, 9)),
    }
    spec["commit"] = {"update": draw(st.sampled_from(["immediate", "deferred"])), "fast_reorder": draw(st.booleans())}
    spec["runtime"] = {"max_sequence_length": draw(st.integers(2, 1000)), "max_batch_size": draw(st.integers(1, 8))}
    spec["passes"] = draw(st.sampled_from(["default", ["dce", {"cse": {"level": 2, "only": ["a", 1.5, True]}}]]))
    return spec


@given(legal_specs(), st.randoms())
def test_legal_specs_load_and_survive_a_round_trip_in_any_key_order(mapping: dict[str, Any], random: Random) -> None:
    loaded = from_mapping(mapping)
    again = from_mapping(to_mapping(loaded.spec))
    assert again.spec == loaded.spec
    shuffled = list(mapping.items())
    random.shuffle(shuffled)
    assert fingerprint(from_mapping(dict(shuffled)).spec) == fingerprint(again.spec) == fingerprint(loaded.spec)


@given(legal_specs())
def test_derived_numbers_of_legal_specs(mapping: dict[str, Any]) -> None:
    spec = from_mapping(mapping).spec
    assert spec.num_nodes == spec.draft.num_speculative_tokens + 1
    assert spec.depth <= spec.draft.num_speculative_tokens
    assert spec.max_path <= spec.num_nodes
    assert not spec.is_chain or spec.max_path == spec.num_nodes
    assert spec.is_chain or spec.commit.kv != "length"


@given(st.lists(st.tuples(st.sampled_from(WORDS), st.lists(FRAGMENTS, max_size=6)), max_size=3))
def test_any_override_is_answered(parts: list[tuple[str, list[str]]]) -> None:
    overrides = tuple(f"draft.{word}={''.join(value)}" for word, value in parts)
    answer(SPEC_START, overrides)


@given(st.text(max_size=12))
def test_only_plain_names_pass(name: str) -> None:
    mapping: dict[str, Any] = yaml.safe_load(SPEC_START)
    mapping["name"] = name
    try:
        spec = from_mapping(mapping).spec
    except SpecError:
        assert not re.fullmatch(r"[a-z][a-z0-9_-]*", name)
    else:
        assert re.fullmatch(r"[a-z][a-z0-9_-]*", spec.name)
        assert spec.name == name


@given(
    st.text(max_size=20)
    | st.sampled_from(["1e3", "0o17", "on", "null", "~", "12:30", " x ", "a\nb", "\x85", "\u2028", "\x00"])
)
def test_any_description_is_kept_as_it_is(text: str) -> None:
    mapping: dict[str, Any] = yaml.safe_load(SPEC_START)
    mapping["description"] = text
    spec = from_mapping(mapping).spec
    assert spec.description == text
    assert to_mapping(spec)["description"] == text


@given(STATIC)
def test_static_choices_are_accepted_exactly_if_they_are_a_sorted_tree(choices: list[list[int]]) -> None:
    paths = [tuple(path) for path in choices]
    legal = paths == sorted(set(paths), key=lambda path: (len(path), path)) and all(
        len(path) == 1 or path[:-1] in paths for path in paths
    )
    spec = answer(SPEC_START + f"draft: {{method: eagle3, tree: static, choices: {choices}}}\n")
    assert (spec is not None) == legal
    if spec is not None:
        parents = [-1, *(0 if len(path) == 1 else paths.index(path[:-1]) + 1 for path in paths)]
        assert all(parent < node for node, parent in enumerate(parents)), "invariant I1 of the tree"
        assert spec.is_chain == (max(parents.count(parent) for parent in parents) == 1)
        assert spec.num_nodes == len(parents)
