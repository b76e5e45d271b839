"""Ops that take a state from token to token: what the passes must know of them, declared with the op."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specc.ir.op import info


@dataclass(frozen=True, slots=True)
class Recurrence:
    """`meta["recurrence"]` of an op over a chain of T tokens, in the chain's own order.

    `state`: the operand that is the state before the first token; result number `result` is the state after the last.
    `rows`: operands with a token dim as dim 1, as all other results have. `tree` names the op that computes all nodes
    of a tree from one committed state: same operands by name, plus `parent_row` (0: the committed context, node i is
    i + 1) and, if it has them, `mask` and `schedule`. `states` names the one that also returns every node's state, as
    its last result (a chain without `parent_row` and `mask`). `ancestors`: the operand for the node's row of the
    ancestor mask. `live`: the operand that marks the tokens that count; the others come last, leave the state as it is,
    and what they compute is not specified.
    """

    state: str
    result: int
    rows: tuple[str, ...]
    tree: str
    states: str | None = None
    ancestors: str | None = None
    live: str | None = None


def recurrence_of(target: object) -> Recurrence | None:
    """The declaration of a recurrent op; None for every other FX target."""
    declared = info(target)
    found = None if declared is None else declared.meta.get("recurrence")
    assert found is None or isinstance(found, Recurrence)
    return found


def op_named(name: str) -> torch._ops.OpOverload:
    """The op that a declaration names."""
    overload: torch._ops.OpOverload = getattr(torch.ops.specc, name).default
    return overload
