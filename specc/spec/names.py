"""The names that a spec may use for families and passes: plain data, without imports of their owners."""

from __future__ import annotations

from typing import Literal

Family = Literal["llama", "qwen3", "pangu", "gated_deltanet", "qwen3_next"]

FAMILIES: tuple[Family, ...] = ("llama", "qwen3", "pangu", "gated_deltanet", "qwen3_next")
TRANSFORMER_FAMILIES: frozenset[str] = frozenset({"llama", "qwen3", "pangu"})
RECURRENT_FAMILIES: frozenset[str] = frozenset({"gated_deltanet", "qwen3_next"})
ATTENTION_FAMILIES: frozenset[str] = frozenset({"llama", "qwen3", "pangu", "qwen3_next"})

PASS_NAMES: tuple[str, ...] = (
    "rewrite-negative-indices",
    "insert-tree-masks",
    "layer-major",
    "fuse-deferred-state-update",
    "canonicalize",
    "cse",
    "dce",
    "fuse-projections",
    "select-schedule",
    "plan-buffers",
    "fuse-linear",
    "legalize-reference",
    "legalize-triton",
    "legalize-ascend",
)
