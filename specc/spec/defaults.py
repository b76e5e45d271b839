"""Defaults that depend on other keys. Each is filled in only where the key was not written.

Values are still unchecked here: anything that is not of the expected type is left for validation to report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specc.spec.config import BigramConfig
from specc.spec.model import Draft, Target, is_chain
from specc.spec.names import ATTENTION_FAMILIES, RECURRENT_FAMILIES

CHAIN_STEPS = 4
TREE_STEPS = 5
TREE_TOP_K = 4
TREE_TOKENS = 15  # 16 nodes with the root: one decode round of every backend
SEQUENCE_LENGTH = 4096
MOST_NODES, MOST_STEPS = 1024, 256  # of the fields of Draft: what is beyond is reported where `choices` says it


def dynamic_capacity(method: str, top_k: int, num_steps: int) -> int:
    """Candidates of a dynamic tree: K in level 1 and K * K in each further one (EAGLE-2, section 4.1).

    Prompt lookup merges K matches of `num_steps` tokens each. With K = 1 both are a chain.
    """
    if method == "prompt_lookup":
        return top_k * num_steps
    return top_k + max(num_steps - 1, 0) * top_k * top_k


def fill_draft(raw: Mapping[str, Any], num_hidden_layers: int | None) -> dict[str, Any]:
    """`draft` with its method's defaults:

    chain: num_steps = num_speculative_tokens = 4, each from the other; static: sizes of `choices`;
    dynamic: top_k 4, num_steps 5, num_speculative_tokens 15 or as many as there are candidates.
    eagle3: inputs of layers 2, L/2 and L - 3, as published heads have.
    """
    draft = {key: value for key, value in raw.items() if value is not None}
    method = draft.get("method", "none")
    tokens, steps, top_k = (_count(draft, key) for key in ("num_speculative_tokens", "num_steps", "top_k"))
    tree = draft.get("tree", "chain")
    if method == "none":
        pass
    elif tree == "chain":
        known = steps or tokens or CHAIN_STEPS
        _set(draft, num_speculative_tokens=tokens or known, num_steps=known, top_k=1)
    elif tree == "dynamic":
        top_k, steps = top_k or TREE_TOP_K, steps or TREE_STEPS
        budget = min(TREE_TOKENS, dynamic_capacity(str(method), top_k, steps))
        _set(draft, num_speculative_tokens=budget, num_steps=steps, top_k=top_k)
    elif tree == "static":
        _fill_static(draft)
    if method == "eagle3":
        if num_hidden_layers and not {"aux_hidden_state_layer_ids", "aux_hidden_state_of"} & draft.keys():
            _set(draft, aux_hidden_state_layer_ids=aux_layers(num_hidden_layers), aux_hidden_state_of="input")
    elif method == "prompt_lookup":
        _set(draft, ngram={})
    return draft


def aux_layers(num_hidden_layers: int) -> tuple[int, ...]:
    """Layers 2, L/2 and L - 3; for fewer than 8 layers the first, middle and last, each once."""
    if num_hidden_layers >= 8:
        return (2, num_hidden_layers // 2, num_hidden_layers - 3)
    return tuple(sorted({0, num_hidden_layers // 2, num_hidden_layers - 1}))


def fill_accept(raw: Mapping[str, Any]) -> dict[str, Any]:
    """`accept` with its method's defaults."""
    accept = {key: value for key, value in raw.items() if value is not None}
    if accept.get("method") == "rejection":
        _set(accept, rule="target_only")
    if accept.get("method") == "typical":
        _set(accept, typical={})
    return accept


def fill_verify(raw: Mapping[str, Any], family: str) -> dict[str, Any]:
    """`verify` with the family's defaults."""
    verify = {key: value for key, value in raw.items() if value is not None}
    if family in RECURRENT_FAMILIES:
        _set(verify, recurrence="auto")
    return verify


def fill_commit(raw: Mapping[str, Any], family: str, draft: Draft | None) -> dict[str, Any]:
    """`commit` with the defaults of the family's layer kinds and of the draft's shape."""
    commit = {key: value for key, value in raw.items() if value is not None}
    deferred = commit.get("update") == "deferred"
    if family in ATTENTION_FAMILIES and draft is not None:
        _set(commit, kv="length" if is_chain(draft) and not deferred else "path_index")
    if family in RECURRENT_FAMILIES:
        _set(commit, state="factors")
        if deferred:
            _set(commit, window=1)
    return commit


def fill_runtime(raw: Mapping[str, Any], target: Target | None, draft: Draft | None) -> dict[str, Any]:
    """`runtime`: max_sequence_length is 4096 or what the positions of target and drafter allow; a recurrent
    state is as wide as a float64 model, else float32."""
    runtime = {key: value for key, value in raw.items() if value is not None}
    if runtime.get("dtype") == "float64" and (target is None or target.family in RECURRENT_FAMILIES):
        _set(runtime, state_dtype="float64")
    if target is not None and draft is not None:
        limits = position_limits(target, draft)
        _set(runtime, max_sequence_length=max(2, min([SEQUENCE_LENGTH, *limits.values()])))
    return runtime


def position_limits(target: Target, draft: Draft) -> dict[str, int]:
    """The longest max_sequence_length per model: a tree's deepest node stands at length + depth.

    Keys are `target` and `draft`; a model without positions (gated_deltanet, bigram) has none.
    """
    depth = draft.num_speculative_tokens if is_chain(draft) else draft.num_steps
    limits = {}
    if target.config is not None and target.family != "gated_deltanet":
        limits["target"] = target.config.max_position_embeddings - depth - 1
    if draft.config is not None and not isinstance(draft.config, BigramConfig):
        limits["draft"] = draft.config.max_position_embeddings - depth - 1
    return limits


def _fill_static(draft: dict[str, Any]) -> None:
    choices = draft.get("choices")
    if not isinstance(choices, Sequence) or isinstance(choices, str):
        return
    paths = [path for path in choices if isinstance(path, Sequence) and not isinstance(path, str)]
    ranks = [rank for path in paths for rank in path if isinstance(rank, int) and not isinstance(rank, bool)]
    if not paths or len(paths) != len(choices) or not ranks:
        return
    _set(
        draft,
        num_speculative_tokens=min(len(choices), MOST_NODES),
        num_steps=min(max(len(path) for path in paths), MOST_STEPS),
        top_k=min(max(1, max(ranks) + 1), MOST_NODES),
    )


def _set(values: dict[str, Any], **defaults: Any) -> None:
    for key, value in defaults.items():
        values.setdefault(key, value)


def _count(values: Mapping[str, Any], key: str) -> int | None:
    value = values.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 4096 else None
