"""Which function stands for a delta rule op, by its schedule and by whether there is a tree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from specc.backends.printing.dialect import Variant
from specc.backends.triton.ops import delta_pending, delta_verify

ROWS = ("q", "k", "v", "g", "beta")
PENDING = ("pending_k", "pending_u", "pending_g", "path", "count", "window", "form")
TREE_OPERANDS: Mapping[str, tuple[str, ...]] = {
    "chain": (),
    "serial": ("parent_row",),
    "replay": ("mask",),
    "hybrid": ("parent_row", "mask"),
    "tree": ("mask",),
}
PREFIXES: Mapping[str, str] = {
    "delta_rule_verify": "verify_{}",
    "delta_rule_verify_states": "states_{}",
    "delta_rule_verify_pending": "pending_{}",
    "delta_rule_verify_pending_": "pending_{}_",
}


def function_of(op: str, kind: str) -> Callable[..., Any]:
    """The function of an op with variants for a kind of schedule ("chain", "serial", …)."""
    found: Callable[..., Any] = getattr(delta_pending if "pending" in op else delta_verify, PREFIXES[op].format(kind))
    return found


NAMES = frozenset(function_of(op, kind).__name__ for op in PREFIXES for kind in TREE_OPERANDS)


def variant(op: str, arguments: Mapping[str, Any]) -> Variant | None:
    """The variant for an op of these (raw) arguments; None where it has no variants.

    A chain by steps is one tile for the whole chain, whatever the schedule is called.
    """
    if op not in PREFIXES:
        return None
    schedule = str(arguments["schedule"])
    kind = "serial" if schedule == "unscheduled" else schedule
    chain = arguments.get("parent_row") is None or arguments.get("mask") is None
    if chain and kind != "tree":
        kind = "chain"
    operands = TREE_OPERANDS[kind]
    if "pending" in op:
        operands = ("parent_row",) if kind == "replay" else operands
        return Variant(function_of(op, kind), ("state", *PENDING, *ROWS, *operands))
    return Variant(function_of(op, kind), ("state", *ROWS, *operands))
