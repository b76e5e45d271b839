"""Specs whose recurrent states are bfloat16, for the device's recurrent operator: chains, plain decoding, a hybrid."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specc.check.variations import changed
from specc.spec import LoadedSpec, from_mapping, load, to_mapping

SPECS = Path(__file__).resolve().parents[3] / "specs"
NARROW: Mapping[str, Any] = {"runtime.dtype": "bfloat16", "runtime.state_dtype": "bfloat16"}
CHAIN: Mapping[str, Any] = {
    "draft.tree": "chain",
    "draft.num_speculative_tokens": 6,
    "draft.num_steps": 6,
    "draft.top_k": 1,
    "commit.state": "snapshots",
    "commit.update": "immediate",
    "commit.window": None,
}


def narrowed(name: str, changes: Mapping[str, Any]) -> LoadedSpec:
    """A shipped spec in bfloat16 with bfloat16 states, and changed keys."""
    mapping = to_mapping(load(SPECS / f"{name}.yaml").spec)
    return from_mapping(changed(mapping, {**NARROW, **changes}))


def chain(**changes: Any) -> LoadedSpec:
    """Chains of 6 by prompt lookup on a Gated DeltaNet, committed from snapshots; `__` in keys stands for a dot."""
    return narrowed("gdn-15m-tree", {**CHAIN, **{key.replace("__", "."): held for key, held in changes.items()}})


def hybrid() -> LoadedSpec:
    """The same on a hybrid, whose K/V rows are committed by length."""
    return narrowed("qwen3-next-hybrid", {**CHAIN, "commit.kv": "length"})


def plain() -> LoadedSpec:
    """Nothing drafted."""
    mapping = to_mapping(load(SPECS / "gdn-15m-tree.yaml").spec)
    mapping |= {"draft": {"method": "none"}, "commit": {}}
    return from_mapping(changed(mapping, NARROW))
