"""SPC100: a key that its section's other keys give no meaning is refused, unless it says the default."""

from __future__ import annotations

from collections.abc import Iterator

from specc.diagnostics import Diagnostic
from specc.spec.checks.view import View
from specc.spec.config import Qwen3NextConfig
from specc.spec.model import Draft
from specc.spec.names import ATTENTION_FAMILIES, RECURRENT_FAMILIES

DRAFTING = ("eagle3", "draft_model", "bigram", "prompt_lookup")
_DRAFT_KEYS_BY_METHOD: dict[str, tuple[str, ...]] = {
    "tree": DRAFTING,
    "num_speculative_tokens": DRAFTING,
    "num_steps": DRAFTING,
    "top_k": DRAFTING,
    "choices": DRAFTING,
    "checkpoint": ("eagle3", "draft_model", "bigram"),
    "config": ("eagle3", "draft_model", "bigram"),
    "family": ("draft_model",),
    "aux_hidden_state_layer_ids": ("eagle3",),
    "aux_hidden_state_of": ("eagle3",),
    "window": ("eagle3", "draft_model"),
    "ngram": ("prompt_lookup",),
    "prune": ("eagle3", "draft_model", "bigram"),
}

# What these keys of a hybrid family are where they are left out, whatever layers the target has.
RECURRENT_DEFAULTS = {("verify", "recurrence"): "auto", ("commit", "state"): "factors", ("commit", "window"): 1}


def draft_keys(view: View) -> Iterator[Diagnostic]:
    """Keys of `draft` that its method or its tree kind does not have."""
    draft = view.draft
    if draft is None:
        return
    for key, methods in _DRAFT_KEYS_BY_METHOD.items():
        if draft.method not in methods and _says_more(view, draft, key):
            yield view.unused(f"`method: {draft.method}` does not use it", "draft", key)
    if draft.method == "none":
        return
    if draft.choices is not None and draft.tree != "static":
        yield view.unused(f"only static trees have choices, this one is {draft.tree}", "draft", "choices")
    if draft.prune is not None and draft.tree == "static":
        yield view.unused("a static tree keeps its shape", "draft", "prune")


def accept_keys(view: View) -> Iterator[Diagnostic]:
    """Keys of `accept` that belong to another method."""
    accept = view.accept
    if accept is None:
        return
    if accept.rule is not None and accept.method != "rejection":
        yield view.unused(f"only rejection has rules, the method is {accept.method}", "accept", "rule")
    if accept.typical is not None and accept.method != "typical":
        yield view.unused(f"the method is {accept.method}", "accept", "typical")


def layer_kinds(view: View) -> Iterator[Diagnostic]:
    """`commit.state` and friends are for recurrent layers, `commit.kv` and `verify.attention` for attention layers."""
    if view.target is None:
        return
    family = view.target.family
    if family not in RECURRENT_FAMILIES:
        why = f"family {family} has no recurrent layers"
        if view.verify is not None and view.verify.recurrence is not None:
            yield view.unused(why, "verify", "recurrence")
        if view.commit is not None and view.commit.state is not None:
            yield view.unused(why, "commit", "state")
        if view.commit is not None and view.commit.window is not None:
            yield view.unused(why, "commit", "window")
    elif view.commit is not None and view.commit.window is not None and view.commit.update == "immediate":
        yield view.unused("only deferred updates have a window of pending factors", "commit", "window")
    if family not in ATTENTION_FAMILIES:
        why = f"family {family} has no attention layers"
        if view.verify is not None and view.verify.attention != "fused":
            yield view.unused(why, "verify", "attention")
        if view.commit is not None and view.commit.kv is not None:
            yield view.unused(why, "commit", "kv")


def hybrid_layers(view: View) -> Iterator[Diagnostic]:
    """The same for a hybrid family's model in which every layer is an attention layer."""
    if not _recurrent_by_layers(view):
        for (section, key), default in RECURRENT_DEFAULTS.items():
            if view.written(section, key) not in (None, default):
                yield view.unused("the target has no recurrent layers", section, key)


def _recurrent_by_layers(view: View) -> bool:
    """False for a hybrid family's model whose layers are known, and none is recurrent."""
    config = None if view.target is None else view.target.config
    return not isinstance(config, Qwen3NextConfig) or "linear_attention" in config.layer_types


def state_types(view: View) -> Iterator[Diagnostic]:
    """`runtime.state_dtype` says how recurrent layers keep their state. What it is without being written may be written
    everywhere: float32, and float64 in a float64 model."""
    if view.target is None or view.runtime is None:
        return
    family = view.target.family
    if family not in RECURRENT_FAMILIES:
        why = f"family {family} has no recurrent layers"
    elif not _recurrent_by_layers(view):
        why = "the target has no recurrent layers"
    else:
        return
    if view.runtime.state_dtype not in ("float32", view.runtime.dtype if view.runtime.dtype == "float64" else None):
        yield view.unused(why, "runtime", "state_dtype")


def _says_more(view: View, draft: Draft, key: str) -> bool:
    """Whether the key was written with another value than its default."""
    if view.written("draft", key) is None:
        return False
    return bool(getattr(draft, key) != Draft.model_fields[key].get_default())
