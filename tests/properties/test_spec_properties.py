"""Properties of the loader: it answers every text with a spec or with coded diagnostics, never otherwise."""

from __future__ import annotations

import re
from collections.abc import Callable
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
    | {"eagle3", "draft_model", "prompt_lookup", "none", "chain", "static", "dynamic", "rejection", "typical"}
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
