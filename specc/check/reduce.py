"""A spec's geometry reduced within its family, so that hundreds of examples run in float64 on one core.

What is kept: the family and its switches (biases, q/k norm, tied head, rope scaling), the ratio of query to KV heads,
whether head_dim is hidden_size / heads, the draft method, the tree and its numbers. What shrinks: layers (at most 2),
widths (hidden_size at most 64), the vocabulary, positions and the sequence length.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specc.spec import LoadedSpec, from_mapping, to_mapping

VOCABULARY = 61
DRAFT_VOCABULARY = 41
HEAD_DIM = 8
POSITIONS = 256
SEQUENCE_LENGTH = 40
MAX_NODES = 16
MAX_DEPTH = 6
LAYERS = 2
MAX_BATCH_SIZE = 4096
"""Enough for the chi-square test, which runs thousands of rows at once."""
ROPE_ORIGINAL = 16
"""`original_max_position_embeddings` of llama3 scaling: within the sequence, so that all three bands occur."""


def _model(config: dict[str, Any], layers: int) -> dict[str, Any]:
    """A small configuration of the same family and switches."""
    small = dict(config)
    heads, shared = config["num_attention_heads"], config["num_key_value_heads"]
    group = min(heads // shared, 4)
    key_value_heads = 2 if shared > 1 else 1
    small["num_hidden_layers"] = min(layers, config["num_hidden_layers"])
    small["num_attention_heads"], small["num_key_value_heads"] = group * key_value_heads, key_value_heads
    small["head_dim"] = HEAD_DIM
    square = config["head_dim"] * heads == config["hidden_size"]
    small["hidden_size"] = group * key_value_heads * HEAD_DIM if square else group * key_value_heads * HEAD_DIM + 8
    small["intermediate_size"] = small["hidden_size"] + 24
    small["max_position_embeddings"] = POSITIONS
    small["vocab_size"] = VOCABULARY
    if small.get("rope_scaling"):
        small["rope_scaling"] = {**small["rope_scaling"], "original_max_position_embeddings": ROPE_ORIGINAL}
    return small


def _head(config: Mapping[str, Any], target: Mapping[str, Any]) -> dict[str, Any]:
    """A small EAGLE-3 head on the reduced target; a smaller draft vocabulary stays smaller."""
    small = dict(config)
    for key in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"):
        small[key] = target[key]
    small["max_position_embeddings"] = POSITIONS
    small["draft_vocab_size"] = DRAFT_VOCABULARY
    if small.get("rope_scaling"):
        small["rope_scaling"] = {**small["rope_scaling"], "original_max_position_embeddings": ROPE_ORIGINAL}
    return small


def _draft(draft: dict[str, Any], old: Mapping[str, Any], target: Mapping[str, Any]) -> dict[str, Any]:
    small = {key: value for key, value in draft.items() if key != "checkpoint"}
    if draft["method"] == "draft_model":
        # The target's sizes, so that a noisy copy of its weights can draft; fewer layers where the spec has fewer.
        fewer = draft["config"]["num_hidden_layers"] < old["num_hidden_layers"]
        small["config"] = _model(draft["config"], 1 if fewer else LAYERS)
        same = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size")
        small["config"] |= {key: target[key] for key in same}
    if draft["method"] == "eagle3":
        small["config"] = _head(draft["config"], target)
        layers = target["num_hidden_layers"]
        wanted = len(draft["aux_hidden_state_layer_ids"])
        small["aux_hidden_state_layer_ids"] = list(range(min(layers, wanted)))
    small["num_steps"] = min(draft["num_steps"], MAX_DEPTH)
    small["num_speculative_tokens"] = min(draft["num_speculative_tokens"], MAX_NODES - 1)
    if draft["tree"] == "static":
        small["choices"] = [path for path in draft["choices"] if len(path) <= MAX_DEPTH][: MAX_NODES - 1]
        small["num_speculative_tokens"] = len(small["choices"])
        small["num_steps"] = max(len(path) for path in small["choices"])
    elif draft["tree"] == "chain":
        small["num_speculative_tokens"] = small["num_steps"] = min(small["num_steps"], small["num_speculative_tokens"])
    return small


def reduced_mapping(loaded: LoadedSpec) -> dict[str, Any]:
    """The reduced spec as plain values."""
    mapping = to_mapping(loaded.spec)
    mapping.pop("backend", None)
    target = mapping["target"]
    old = dict(target["config"])
    target["config"] = _model(old, LAYERS)
    mapping["draft"] = _draft(mapping["draft"], old, target["config"])
    accept = mapping["accept"]
    accept["stop_tokens"] = [2 + 7 * number for number in range(min(len(accept.get("stop_tokens", ())), 3))]
    sampling = mapping["sampling"]
    if sampling.get("top_k"):
        sampling["top_k"] = min(sampling["top_k"], 12)
    runtime = mapping["runtime"]
    runtime |= {"dtype": "float64", "state_dtype": "float64"}
    runtime["max_sequence_length"] = min(SEQUENCE_LENGTH, runtime["max_sequence_length"])
    runtime["max_batch_size"] = MAX_BATCH_SIZE
    return mapping


def reduce(loaded: LoadedSpec) -> LoadedSpec:
    """The reduced spec, loaded. Raises SpecError where the reduction itself is not a legal spec."""
    return from_mapping(reduced_mapping(loaded))
