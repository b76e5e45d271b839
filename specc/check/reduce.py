"""A spec's geometry reduced within its family, so that hundreds of examples run in float64 on one core.

What is kept: the family and its switches (biases, q/k norm, tied head, rope scaling, gates, convolutions), the ratio of
query to KV heads and of value to key heads, whether head_dim is hidden_size / heads, the draft method, the tree and its
numbers. What shrinks: layers (at most 2; of a hybrid the kinds in their order, twice), widths (hidden_size at most 64),
experts, the vocabulary, positions and the sequence length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from specc.spec import LoadedSpec, from_mapping, to_mapping
from specc.spec.names import RECURRENT_FAMILIES

VOCABULARY = 61
DRAFT_VOCABULARY = 41
HEAD_DIM = 8
ASCEND_HEAD_DIM = 16
"""The smallest that an NPU's fused attention takes."""
POSITIONS = 256
SEQUENCE_LENGTH = 40
PAGE, TRITON_PAGE = 5, 16
"""Rows of a page: several for a text; Triton has powers of two from 16 on."""
MAX_NODES = 16
MAX_DEPTH = 6
LAYERS = 2
MAX_BATCH_SIZE = 4096
"""Enough for the chi-square test, which runs thousands of rows at once."""
ROPE_ORIGINAL = 16
"""`original_max_position_embeddings` of llama3 scaling: within the sequence, so that all three bands occur."""


def _delta(config: Mapping[str, Any]) -> dict[str, Any]:
    """A small Gated DeltaNet: two key heads, K = V = 4 or as near as `expand_v` allows."""
    small = dict(config)
    share = min(config["num_v_heads"] // config["num_heads"], 2)
    small["num_hidden_layers"] = min(LAYERS, config["num_hidden_layers"])
    small["num_heads"] = min(config["num_heads"], 2)
    small["num_v_heads"] = share * small["num_heads"]
    whole = (size for size in (4, 6, 8, 10, 12, 16) if (size * config["expand_v"]).is_integer())
    small["head_dim"] = next(whole, config["head_dim"])
    small |= {"hidden_size": 24, "intermediate_size": 40, "max_position_embeddings": POSITIONS}
    return small | {"vocab_size": VOCABULARY}


def shortened(kinds: Sequence[str]) -> list[str]:
    """Layer types with no kind more than twice in a row, up to where the first run of each has ended, twice over."""
    runs = [(kind, min(len(list(group)), 2)) for kind, group in groupby(kinds)]
    seen = {kind: place for place, (kind, _) in reversed(list(enumerate(runs)))}
    once = [kind for kind, count in runs[: max(seen.values()) + 1] for _ in range(count)]
    return once * LAYERS if len(kinds) >= LAYERS * len(once) else once


def _hybrid(config: Mapping[str, Any], head_dim: int) -> dict[str, Any]:
    """A small qwen3_next: its kinds of layers, its sparse layers as far as the shorter stack has them."""
    small = dict(config)
    kinds = shortened(config["layer_types"])
    small |= {"layer_types": kinds, "num_hidden_layers": len(kinds)}
    share = min(config["linear_num_value_heads"] // config["linear_num_key_heads"], 2)
    small["linear_num_key_heads"] = min(config["linear_num_key_heads"], 2)
    small["linear_num_value_heads"] = share * small["linear_num_key_heads"]
    small |= {"linear_key_head_dim": 4, "linear_value_head_dim": 6}
    group = min(config["num_attention_heads"] // config["num_key_value_heads"], 4)
    shared = 2 if config["num_key_value_heads"] > 1 else 1
    small |= {"num_attention_heads": group * shared, "num_key_value_heads": shared, "head_dim": head_dim}
    if int(head_dim * config["partial_rotary_factor"]) < 2:
        small["partial_rotary_factor"] = 2 / head_dim
    experts = min(config["num_experts"], 4)
    small |= {"num_experts": experts, "num_experts_per_tok": min(config["num_experts_per_tok"], max(experts // 2, 1))}
    small["decoder_sparse_step"] = min(config["decoder_sparse_step"], len(kinds))
    small["mlp_only_layers"] = [layer for layer in config["mlp_only_layers"] if layer < len(kinds)]
    small |= {"moe_intermediate_size": 8, "shared_expert_intermediate_size": 12}
    small |= {"hidden_size": 24, "intermediate_size": 40, "max_position_embeddings": POSITIONS}
    return small | {"vocab_size": VOCABULARY}


def _target(family: str, config: Mapping[str, Any], head_dim: int) -> dict[str, Any]:
    if family == "gated_deltanet":
        return _delta(config)
    return _hybrid(config, head_dim) if family == "qwen3_next" else _model(config, LAYERS, head_dim)


def _attends_only(config: Mapping[str, Any]) -> bool:
    """Whether a target's config is a transformer's."""
    return "num_attention_heads" in config and "linear_key_head_dim" not in config


def _model(config: Mapping[str, Any], layers: int, head_dim: int) -> dict[str, Any]:
    """A small transformer of the same switches."""
    small = dict(config)
    heads, shared = config["num_attention_heads"], config["num_key_value_heads"]
    group = min(heads // shared, 4)
    key_value_heads = 2 if shared > 1 else 1
    small["num_hidden_layers"] = min(layers, config["num_hidden_layers"])
    small["num_attention_heads"], small["num_key_value_heads"] = group * key_value_heads, key_value_heads
    small["head_dim"] = head_dim
    square = config["head_dim"] * heads == config["hidden_size"]
    small["hidden_size"] = group * key_value_heads * head_dim + (0 if square else 8)
    small["intermediate_size"] = small["hidden_size"] + 24
    small["max_position_embeddings"] = POSITIONS
    small["vocab_size"] = VOCABULARY
    if small.get("rope_scaling"):
        small["rope_scaling"] = {**small["rope_scaling"], "original_max_position_embeddings": ROPE_ORIGINAL}
    return small


def _head(config: Mapping[str, Any], target: Mapping[str, Any], head_dim: int) -> dict[str, Any]:
    """A small EAGLE-3 head on the reduced target; a smaller draft vocabulary stays smaller."""
    small = dict(config)
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": head_dim}
    small |= {key: target[key] for key in ("hidden_size", "intermediate_size")}
    small |= {key: target.get(key, count) for key, count in heads.items()}
    small["max_position_embeddings"] = POSITIONS
    small["draft_vocab_size"] = DRAFT_VOCABULARY
    if small.get("rope_scaling"):
        small["rope_scaling"] = {**small["rope_scaling"], "original_max_position_embeddings": ROPE_ORIGINAL}
    return small


def _draft(draft: dict[str, Any], old: Mapping[str, Any], target: Mapping[str, Any], head_dim: int) -> dict[str, Any]:
    small = {key: value for key, value in draft.items() if key != "checkpoint"}
    if draft["method"] == "draft_model":
        # The target's sizes, so that a noisy copy of its weights can draft; fewer layers where the spec has fewer.
        fewer = draft["config"]["num_hidden_layers"] < old["num_hidden_layers"]
        small["config"] = _model(draft["config"], 1 if fewer else LAYERS, head_dim)
        same = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size")
        small["config"] |= {key: target[key] for key in same} if _attends_only(target) else {}
    if draft["method"] == "eagle3":
        small["config"] = _head(draft["config"], target, head_dim)
        small |= _features(draft, target)
    if draft["method"] == "bigram":
        columns, vocabulary = draft["config"]["candidates_per_token"], target["vocab_size"]
        small["config"] = {"vocab_size": vocabulary, "candidates_per_token": min(columns, vocabulary)}
    small["num_steps"] = min(draft["num_steps"], MAX_DEPTH)
    small["num_speculative_tokens"] = min(draft["num_speculative_tokens"], MAX_NODES - 1)
    if draft["tree"] == "static":
        small["choices"] = [path for path in draft["choices"] if len(path) <= MAX_DEPTH][: MAX_NODES - 1]
        small["num_speculative_tokens"] = len(small["choices"])
        small["num_steps"] = max(len(path) for path in small["choices"])
    elif draft["tree"] == "chain":
        small["num_speculative_tokens"] = small["num_steps"] = min(small["num_steps"], small["num_speculative_tokens"])
    return small


def _features(draft: Mapping[str, Any], target: Mapping[str, Any]) -> dict[str, Any]:
    """The first layers that have what the head is fed with: each kind keeps its order, and a layer is there once with
    each."""
    of, kinds, layers = draft["aux_hidden_state_of"], target.get("layer_types", ()), range(target["num_hidden_layers"])
    waiting = {
        kind: [n for n in layers if kind != "readout" or not kinds or kinds[n] == "linear_attention"]
        for kind in ("output", "input", "readout")
    }
    chosen: list[tuple[int, str]] = []
    for kind in [of] * len(draft["aux_hidden_state_layer_ids"]) if isinstance(of, str) else of:
        if waiting[kind]:
            chosen.append((waiting[kind].pop(0), kind))
    return {
        "aux_hidden_state_layer_ids": [layer for layer, _ in chosen],
        "aux_hidden_state_of": of if isinstance(of, str) else [kind for _, kind in chosen],
    }


def reduced_mapping(loaded: LoadedSpec, head_dim: int = HEAD_DIM, page: int = PAGE) -> dict[str, Any]:
    """The reduced spec as plain values. `head_dim`: of attention heads, for targets whose ops want a larger one;
    `page`: rows of a page, at most."""
    mapping = to_mapping(loaded.spec)
    mapping.pop("backend", None)
    target = mapping["target"]
    old = dict(target["config"])
    target["config"] = _target(target["family"], old, head_dim)
    mapping["draft"] = _draft(mapping["draft"], old, target["config"], head_dim)
    accept = mapping["accept"]
    accept["stop_tokens"] = [2 + 7 * number for number in range(min(len(accept.get("stop_tokens", ())), 3))]
    sampling = mapping["sampling"]
    if sampling.get("top_k"):
        sampling["top_k"] = min(sampling["top_k"], 12)
    runtime = mapping["runtime"]
    runtime |= {"dtype": "float64", "state_dtype": "float64" if target["family"] in RECURRENT_FAMILIES else "float32"}
    runtime["max_sequence_length"] = min(SEQUENCE_LENGTH, runtime["max_sequence_length"])
    runtime["max_batch_size"] = MAX_BATCH_SIZE
    if runtime.get("kv_layout") == "paged":
        runtime["kv_block_size"] = min(page, runtime["kv_block_size"])
    return mapping


def reduce(loaded: LoadedSpec) -> LoadedSpec:
    """The reduced spec, loaded. Raises SpecError where the reduction itself is not a legal spec."""
    return from_mapping(reduced_mapping(loaded))
