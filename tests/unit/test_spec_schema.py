"""The JSON Schema: shipped file is current, it accepts what the loader accepts, and catches simple mistakes."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from specc.codes.entry import SPEC_START
from specc.spec.compose import compose
from specc.spec.nodes import Text
from specc.spec.schema import json_schema, schema_text
from tests.unit.test_families_recurrent import PUBLISHED_DELTANET, PUBLISHED_HYBRID

SPECS = sorted((Path(__file__).resolve().parents[2] / "specs").glob("*.yaml"))


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft7Validator:
    schema = json_schema()
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


def values(text: str) -> Any:
    return compose(Text(text, "t.yaml")).value


def wrong_paths(validator: jsonschema.Draft7Validator, text: str) -> set[str]:
    return {error.json_path for error in validator.iter_errors(values(text))}


def test_shipped_schema_is_current() -> None:
    shipped = files("specc.spec").joinpath("schema.json").read_text(encoding="utf-8")
    assert shipped == schema_text(), "write specc.spec.schema.schema_text() to specc/spec/schema.json"


def test_schema_speaks_draft_7_only() -> None:
    text = schema_text()
    assert json.loads(text)["$schema"] == "http://json-schema.org/draft-07/schema#"
    for later in ("$defs", "prefixItems", "unevaluatedProperties", "oneOf", "discriminator"):
        assert f'"{later}"' not in text


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_schema_accepts_shipped_specs(validator: jsonschema.Draft7Validator, path: Path) -> None:
    assert wrong_paths(validator, path.read_text(encoding="utf-8")) == set()


@pytest.mark.parametrize(
    ("extra", "place"),
    [
        ("draft: {method: prompt_lookup, num_speculative_token: 4}\n", "$.draft"),
        ("draft: {tree: chain}\n", "$.draft"),
        ("draft: {method: prompt_lookup, window: 8}\n", "$.draft.window"),
        ("draft: {method: eagle3, ngram: {min: 1}}\n", "$.draft.ngram"),
        ("draft: {method: eagle3, tree: static}\n", "$.draft"),
        ("draft: {method: eagle3, tree: chain, top_k: 2}\n", "$.draft.top_k"),
        ("draft: {method: draft_model}\n", "$.draft"),
        ("draft: {method: eagle3, config: {draft_vocab: 3}}\n", "$.draft.config"),
        ("draft: {method: bigram, config: {draft_vocab_size: 3}}\n", "$.draft.config"),
        ("draft: {method: bigram, window: 3}\n", "$.draft.window"),
        ("accept: {method: typical}\n", "$.accept"),
        ("accept: {method: typical, lossless: true}\n", "$.accept.lossless"),
        ("accept: {method: greedy, rule: true_q}\n", "$.accept.rule"),
        ("sampling: {top_p: 1.5}\n", "$.sampling.top_p"),
        ("passes: [layer-mayor]\n", "$.passes"),
        ("invariants: [lossles]\n", "$.invariants"),
        ("drafts: {}\n", "$"),
    ],
)
def test_schema_catches(validator: jsonschema.Draft7Validator, extra: str, place: str) -> None:
    assert wrong_paths(validator, SPEC_START) == set()
    assert place in wrong_paths(validator, SPEC_START + extra)


@pytest.mark.parametrize("config", [PUBLISHED_DELTANET, PUBLISHED_HYBRID], ids=["deltanet", "hybrid"])
def test_schema_accepts_published_configs_as_they_are(
    validator: jsonschema.Draft7Validator, config: dict[str, Any]
) -> None:
    """Nulls included; a required size may not be null."""

    def wrong(config: dict[str, Any]) -> set[str]:
        target = {"family": config["model_type"], "config": config}
        return wrong_paths(validator, json.dumps({"specc": 1, "name": "t", "target": target}))

    assert wrong(config) == set()
    assert wrong(config | {"hidden_size": None})
    assert wrong(config | {"linear_key_heads": 3})


def test_config_follows_the_family(validator: jsonschema.Draft7Validator) -> None:
    text = SPEC_START.replace("family: llama", "family: gated_deltanet")
    assert "$.target.config" in wrong_paths(validator, text)
    text = "specc: 1\nname: t\ntarget: {family: llama}\n"
    assert "$.target" in wrong_paths(validator, text)
