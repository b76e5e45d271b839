"""Which function stands for a delta rule op, by its schedule and by whether there is a tree.

A function takes only the operands that its schedule needs, so that a module carries no
code and no argument of another schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from specc.backends.printing.dialect import Variant
from specc.backends.reference.kernels import delta_pending, delta_verify

ROWS = ("q", "k", "v", "g", "beta")
PENDING = ("pending_k", "pending_u", "pending_g", "path", "count", "window", "form")


VERIFY: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    "delta_rule_verify": {
        "chain": delta_verify.verify_chain,
        "serial": delta_verify.verify_serial,
        "replay": delta_verify.verify_replay,
        "hybrid": delta_verify.verify_hybrid,
        "tree": delta_verify.verify_tree,
    },
    "delta_rule_verify_states": {
        "chain": delta_verify.states_chain,
        "serial": delta_verify.states_serial,
        "replay": delta_verify.states_replay,
        "hybrid": delta_verify.states_hybrid,
        "tree": delta_verify.states_tree,
    },
    "delta_rule_verify_pending": {
        "chain": delta_pending.pending_chain,
        "serial": delta_pending.pending_serial,
        "replay": delta_pending.pending_replay,
        "hybrid": delta_pending.pending_hybrid,
        "tree": delta_pending.pending_tree,
    },
    "delta_rule_verify_pending_": {
        "chain": delta_pending.pending_chain_,
        "serial": delta_pending.pending_serial_,
        "replay": delta_pending.pending_replay_,
        "hybrid": delta_pending.pending_hybrid_,
        "tree": delta_pending.pending_tree_,
    },
}
TREE_OPERANDS: Mapping[str, tuple[str, ...]] = {
    "chain": (),
    "serial": ("parent_row",),
    "replay": ("parent_row",),
    "hybrid": ("parent_row",),
    "tree": ("mask",),
}
NAMES = frozenset(
    function.__name__ for kind in VERIFY.values() for function in kind.values()
)


def variant(op: str, arguments: Mapping[str, Any]) -> Variant | None:
    """The variant for an op of these (raw) arguments; None where it has no variants.

    A chain by steps is one tile for the whole chain, whatever the schedule is called.
    """
    if op not in VERIFY:
        return None
    schedule = str(arguments["schedule"])
    kind = "serial" if schedule == "unscheduled" else schedule
    chain = arguments.get("parent_row") is None or arguments.get("mask") is None
    if chain and kind != "tree":
        kind = "chain"
    before = ("state", *PENDING) if "pending" in op else ("state",)
    return Variant(VERIFY[op][kind], (*before, *ROWS, *TREE_OPERANDS[kind]))
