"""Specs around a reduced one, each compiled once: other commits, attention forms, budgets, shapes, acceptance rules.

A variation is a set of keys to change. What the language refuses for this spec (such as `commit.kv: length` for a
tree) drops out, as does what equals a variation already taken; at most `MAX_VARIATIONS` remain, most telling first.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from specc.diagnostics import SpecError
from specc.spec import LoadedSpec, fingerprint, from_mapping

MAX_VARIATIONS = 20
Changes = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Variation:
    """One spec to compile; `name` says what was changed."""

    name: str
    loaded: LoadedSpec

    @property
    def key(self) -> str:
        """The spec's fingerprint."""
        return fingerprint(self.loaded.spec)


def changed(mapping: Mapping[str, Any], changes: Changes) -> dict[str, Any]:
    """A copy with dotted keys replaced; None takes a key away."""
    made = copy.deepcopy(dict(mapping))
    for dotted, value in changes.items():
        *sections, key = dotted.split(".")
        place = made
        for section in sections:
            place = place.setdefault(section, {})
        if value is None:
            place.pop(key, None)
        else:
            place[key] = value
    return made


def other_update(mapping: Mapping[str, Any]) -> Changes:
    """The same commit, deferred where it is immediate, and the other way round."""
    recurrent = mapping["target"]["family"] in RECURRENT
    if mapping["commit"].get("update", "immediate") == "deferred":
        changes: dict[str, Any] = {"commit.update": "immediate", "commit.window": None}
    else:
        changes = {"commit.update": "deferred"} | ({"commit.state": "factors"} if recurrent else {})
    return changes if mapping["target"]["family"] == "gated_deltanet" else {**changes, "commit.kv": "path_index"}


def as_chain(length: int) -> Changes:
    """A chain of this many drafted tokens."""
    return {
        "draft.tree": "chain",
        "draft.num_speculative_tokens": length,
        "draft.num_steps": length,
        "draft.top_k": 1,
        "draft.choices": None,
        "draft.prune": None,
    }


def as_static(choices: list[list[int]]) -> Changes:
    """A static tree of these rank paths."""
    return {
        "draft.tree": "static",
        "draft.choices": choices,
        "draft.num_speculative_tokens": len(choices),
        "draft.num_steps": max(len(path) for path in choices),
        "draft.top_k": max(max(path) for path in choices) + 1,
        "draft.prune": None,
    }


def as_dynamic(tokens: int, steps: int, top_k: int) -> Changes:
    """A dynamic tree."""
    return {
        "draft.tree": "dynamic",
        "draft.num_speculative_tokens": tokens,
        "draft.num_steps": steps,
        "draft.top_k": top_k,
        "draft.choices": None,
    }


RECURRENT = ("gated_deltanet", "qwen3_next")
COMMITS: dict[str, Changes] = {
    "snapshots": {"commit.state": "snapshots", "commit.update": "immediate", "commit.window": None},
    "replay": {"commit.state": "replay", "commit.update": "immediate", "commit.window": None},
    "factors": {"commit.state": "factors", "commit.update": "immediate", "commit.window": None},
    "factors, deferred": {"commit.state": "factors", "commit.update": "deferred", "commit.window": 1},
    "factors, window 4": {"commit.state": "factors", "commit.update": "deferred", "commit.window": 4},
    "factors, window 2": {"commit.state": "factors", "commit.update": "deferred", "commit.window": 2},
}
"""How accepted tokens reach a recurrent state. A window of 2 is often one factor short of full."""
SCHEDULES = ("tree", "serial", "hybrid", "replay")


def _states(mapping: Mapping[str, Any]) -> Iterator[tuple[str, Changes]]:
    """Every schedule and every commit of recurrent layers, each schedule with several commits (a trial of each pair is
    what the lossless matrix is for)."""
    if mapping["target"]["family"] not in RECURRENT:
        return
    pairs = (
        ("tree", "factors, window 4"),
        ("serial", "factors, deferred"),
        ("hybrid", "snapshots"),
        ("replay", "replay"),
        ("tree", "factors"),
        ("hybrid", "factors, window 2"),
        ("serial", "snapshots"),
        ("tree", "factors, deferred"),
    )
    for schedule, commit in pairs:
        yield f"{schedule}, {commit}", {"verify.recurrence": schedule, **COMMITS[commit]}


def _commits(mapping: Mapping[str, Any]) -> Iterator[tuple[str, Changes]]:
    update = mapping["commit"].get("update", "immediate")
    other = "immediate" if update == "deferred" else "deferred"
    yield f"commit.update={other}", other_update(mapping)
    if mapping["target"]["family"] == "gated_deltanet":
        return
    fast = mapping["commit"].get("fast_reorder", True)
    yield (
        f"commit.fast_reorder={not fast}".lower(),
        {"commit.fast_reorder": not fast, "commit.kv": "path_index"},
    )
    for kv in ("length", "path_index"):
        yield f"commit.kv={kv}", {"commit.kv": kv, "commit.update": "immediate"}


def _deferred(mapping: Mapping[str, Any]) -> Changes:
    """A deferred update, whatever the spec has."""
    now = changed(mapping, {"commit.update": "immediate"})
    return other_update(now)


def _shapes(mapping: Mapping[str, Any]) -> Iterator[tuple[str, Changes]]:
    draft = mapping["draft"]
    if draft["method"] == "none":
        return
    lookup = draft["method"] == "prompt_lookup"
    depth = max(draft["num_steps"], 1)
    if draft["tree"] != "chain":
        yield "chain of the same depth", as_chain(depth)
        yield "dynamic tree of few nodes", as_dynamic(4, 3, 2)
        yield "dynamic tree, deferred", {**as_dynamic(6, 3, 3), **_deferred(mapping)}
    else:
        yield "dynamic tree", {**as_dynamic(7, 3, 3), "commit.kv": None}
        yield "dynamic tree, deferred", {**as_dynamic(7, 3, 3), **_deferred(mapping)}
        yield "chain of one token", as_chain(1)
    if not lookup:
        yield "static tree of depth 1", as_static([[0], [1], [2], [3]])
        yield "static chain with a hole", as_static([[0], [0, 0], [0, 0, 0], [0, 0, 1]])
        yield "static tree, elder siblings missing", as_static([[1], [1, 2], [1, 2, 0]])
    yield "top_k=1", {"draft.top_k": 1, "draft.prune": None, **as_dynamic(depth, depth, 1)}
    if lookup:
        yield "long n-grams", {"draft.ngram": {"min": 2, "max": 3}}
    yield "chain, deferred", {**as_chain(depth), **_deferred(mapping)}


def _methods(mapping: Mapping[str, Any]) -> Iterator[tuple[str, Changes]]:
    draft, accept = mapping["draft"], mapping["accept"]
    if draft["method"] in ("draft_model", "eagle3"):
        yield "draft.window", {"draft.window": 0 if draft.get("window") else 5}
    if draft["method"] == "bigram":
        yield "draft.prune by margin", {"draft.prune": {"path_log_prob_margin": 3.0}}
    if draft["method"] == "eagle3":
        for other in ("readout", "input", "output"):
            if other != draft.get("aux_hidden_state_of"):
                yield f"draft.aux_hidden_state_of={other}", {"draft.aux_hidden_state_of": other}
    if accept["method"] == "rejection":
        yield "rule=target_only", {"accept.rule": "target_only"}
        yield "rule=true_q", {"accept.rule": "true_q"}
        yield "temperature=0", {"sampling.temperature": 0.0, "accept.rule": "target_only"}
        yield (
            "temperature=1, no truncation",
            {"sampling.temperature": 1.0, "sampling.top_k": 0, "sampling.top_p": 1.0},
        )
    if accept["method"] == "typical":
        yield "typical, temperature=0", {"sampling.temperature": 0.0}
        yield "accept=greedy", {"accept": {"method": "greedy"}, "sampling.temperature": 0.0}


def _rest(mapping: Mapping[str, Any]) -> Iterator[tuple[str, Changes]]:
    if mapping["target"]["family"] != "gated_deltanet":
        attention = "eager" if mapping["verify"].get("attention", "fused") == "fused" else "fused"
        yield f"verify.attention={attention}", {"verify.attention": attention}
    yield "many stop tokens", {"accept.stop_tokens": [3, 11, 19, 27, 35]}
    yield "no stop tokens, short capacity", {"accept.stop_tokens": [], "runtime.max_sequence_length": 18}
    if mapping["draft"].get("prune"):
        yield "draft.prune off", {"draft.prune": None}
        yield "draft.prune by threshold", {"draft.prune": {"min_path_log_prob": -4.0}}
    if mapping["draft"]["method"] == "none":
        yield "prompt lookup beside it", {"draft": {"method": "prompt_lookup", **_lookup_chain()}}
        tree = {"method": "prompt_lookup", "tree": "dynamic", "top_k": 3, "num_steps": 3, "num_speculative_tokens": 7}
        yield "prompt lookup tree beside it", {"draft": tree, "commit.kv": None}
        yield "prompt lookup tree beside it, deferred", {"draft": tree, **_deferred(mapping)}


def _lookup_chain() -> dict[str, Any]:
    return {"tree": "chain", "num_speculative_tokens": 4}


def _interleaved(mapping: Mapping[str, Any]) -> Iterator[tuple[str, Changes]]:
    """All candidates, one of each kind in turn, so that a cut keeps every kind."""
    kinds = [list(kind(mapping)) for kind in (_states, _commits, _shapes, _methods, _rest)]
    for place in range(max(map(len, kinds))):
        for kind in kinds:
            if place < len(kind):
                yield kind[place]


def variations(base: LoadedSpec, mapping: Mapping[str, Any], limit: int = MAX_VARIATIONS) -> list[Variation]:
    """The reduced spec itself, then legal, different variations of it, at most `limit` in all."""
    found = [Variation("the spec itself", base)]
    keys = {found[0].key}
    for name, changes in _interleaved(mapping):
        if len(found) == min(limit, MAX_VARIATIONS):
            break
        try:
            one = Variation(name, from_mapping(changed(mapping, changes)))
        except SpecError:
            continue  # the language refuses this combination
        if one.key not in keys:
            keys.add(one.key)
            found.append(one)
    return found
