"""JSON Schema (Draft 7) of the language, for editors: completion, hover texts, and the simple mistakes.

It is generated from the models. What depends on `method` or `family` is said by `if`/`then`, whose messages
editors show at the wrong key; `oneOf` would only say that nothing matched.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel

from specc.invariants import INVARIANT_NAMES
from specc.spec.config import BigramConfig, EagleConfig, GatedDeltaNetConfig, Qwen3NextConfig, TransformerConfig
from specc.spec.geometry_input import IGNORED_KEYS
from specc.spec.model import Spec
from specc.spec.names import PASS_NAMES, TRANSFORMER_FAMILIES

JsonObject = dict[str, Any]

_EXTRA_CONFIG_KEYS = (
    "rope_parameters", "rope_scaling", "hidden_act", "sliding_window", "use_sliding_window", "layer_types", "bias",
    "hidden_ratio", "attn", "attnres_block_size", "output_gate_activation",
)  # fmt: skip
_REQUIRED_CONFIG: Mapping[type[BaseModel], tuple[str, ...]] = {
    TransformerConfig: (
        "num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size",
    ),
    GatedDeltaNetConfig: ("num_hidden_layers", "hidden_size", "num_heads", "head_dim", "vocab_size"),
    Qwen3NextConfig: (
        "num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size",
    ),
    EagleConfig: (),
    BigramConfig: (),
}  # fmt: skip
_CONFIG_BY_FAMILY: Mapping[str, type[BaseModel]] = {
    **dict.fromkeys(sorted(TRANSFORMER_FAMILIES), TransformerConfig),
    "gated_deltanet": GatedDeltaNetConfig,
    "qwen3_next": Qwen3NextConfig,
}
_DRAFT_MODEL_KEYS = ("checkpoint", "config", "window", "prune")
_TREE_KEYS = ("method", "tree", "num_speculative_tokens", "num_steps", "top_k", "choices")
_DRAFT_KEYS: Mapping[str, tuple[str, ...]] = {
    "none": ("method",),
    "prompt_lookup": (*_TREE_KEYS, "ngram"),
    "draft_model": (*_TREE_KEYS, *_DRAFT_MODEL_KEYS, "family"),
    "bigram": (*_TREE_KEYS, "checkpoint", "config", "prune"),
    "eagle3": (*_TREE_KEYS, *_DRAFT_MODEL_KEYS, "aux_hidden_state_layer_ids", "aux_hidden_state_of"),
}


def json_schema() -> JsonObject:
    """The schema as plain values."""
    schema = Spec.model_json_schema(ref_template="#/definitions/{model}")
    definitions: JsonObject = schema.pop("$defs")
    for model, required in _REQUIRED_CONFIG.items():
        definitions[model.__name__] = _config(model, required)
    target, draft = definitions["Target"], definitions["Draft"]
    target["properties"]["config"] = {"type": "object"}
    target["allOf"] = [
        _when("family", family, {"config": _reference(model.__name__)}) for family, model in _CONFIG_BY_FAMILY.items()
    ]
    target["anyOf"] = [{"required": ["config"]}, {"required": ["checkpoint"]}]
    draft["properties"]["config"] = {"type": "object"}
    _say_any(draft["properties"]["aux_hidden_state_of"])
    draft["required"] = ["method"]
    draft["allOf"] = list(_draft_rules(draft["properties"]))
    definitions["Accept"]["allOf"] = list(_accept_rules())
    properties = schema["properties"]
    properties["passes"] = _passes()
    properties["invariants"] = _word_or_list("all", {"enum": list(INVARIANT_NAMES)})
    definitions.pop("PassEntry", None)
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "specc decoding spec, version 1",
        **{key: value for key, value in schema.items() if key not in ("title", "description")},
        "definitions": definitions,
    }


def schema_text() -> str:
    """The schema as JSON, ending with a newline; what `specc schema` prints and the package ships."""
    return json.dumps(json_schema(), indent=2, sort_keys=True, ensure_ascii=True) + "\n"


def _config(model: type[BaseModel], required: Iterable[str]) -> JsonObject:
    schema = model.model_json_schema(ref_template="#/definitions/{model}")
    schema.pop("$defs", None)
    schema["required"] = list(required)
    for key, value in schema["properties"].items():
        if key not in required and isinstance(value.get("type"), str):
            value["type"] = [value["type"], "null"]  # config.json files say null for a default
    for key in (*_EXTRA_CONFIG_KEYS, *sorted(IGNORED_KEYS)):
        schema["properties"].setdefault(key, True)
    if model is EagleConfig:
        for key in ("vocab_size", "num_hidden_layers", "target_hidden_size", "tie_word_embeddings"):
            schema["properties"].setdefault(key, True)
    if "rope_scaling" in schema["properties"]:
        schema["properties"]["rope_scaling"] = {"type": ["object", "null"]}
    return schema


def _draft_rules(properties: Iterable[str]) -> Iterable[JsonObject]:
    for method, keys in _DRAFT_KEYS.items():
        yield _when("method", method, {key: {"const": None} for key in properties if key not in keys})
    yield _when("method", "eagle3", {"config": _reference("EagleConfig")})
    yield _when("method", "draft_model", {"config": _reference("TransformerConfig")})
    yield _when("method", "bigram", {"config": _reference("BigramConfig")})
    rule = _when("method", "draft_model", {})
    rule["then"] = {"anyOf": [{"required": ["config"]}, {"required": ["checkpoint"]}]}
    yield rule
    rule = _when("tree", "static", {"choices": {"type": "array"}})
    rule["then"]["required"] = ["choices"]
    yield rule
    yield _when("tree", "chain", {"top_k": {"const": 1}})


def _accept_rules() -> Iterable[JsonObject]:
    rule = _when("method", "typical", {"lossless": {"const": False}})
    rule["then"]["required"] = ["lossless"]
    yield rule
    for method in ("greedy", "rejection"):
        yield _when("method", method, {"typical": {"const": None}})
    for method in ("greedy", "typical"):
        yield _when("method", method, {"rule": {"const": None}})


def _when(key: str, value: str, properties: JsonObject) -> JsonObject:
    """`if` the key is written with this value, `then` these properties."""
    condition = {"properties": {key: {"const": value}}, "required": [key]}
    return {"if": condition, "then": {"properties": properties}}


def _say_any(value: JsonObject) -> None:
    """`oneOf` of a nullable union as alternatives beside null."""
    value["anyOf"] = [option for part in value["anyOf"] for option in part.get("oneOf", [part])]


def _reference(name: str) -> JsonObject:
    return {"anyOf": [{"$ref": f"#/definitions/{name}"}, {"type": "null"}]}


def _passes() -> JsonObject:
    options = {"type": ["object", "null"]}
    item = {
        "anyOf": [
            {"enum": list(PASS_NAMES)},
            {
                "type": "object",
                "properties": dict.fromkeys(PASS_NAMES, options),
                "additionalProperties": False,
                "minProperties": 1,
                "maxProperties": 1,
            },
        ]
    }
    return _word_or_list("default", item)


def _word_or_list(word: str, item: JsonObject) -> JsonObject:
    return {"anyOf": [{"const": word}, {"type": "array", "items": item}], "default": word}
