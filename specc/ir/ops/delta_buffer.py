"""Ops of the buffer level that write a layer's recurrent state where it lies, for plan-buffers."""

from __future__ import annotations

import torch

from specc.ir.op import IndexOperand, op
from specc.ir.ops.delta import delta_rule, delta_rule_chunk, delta_rule_commit
from specc.ir.ops.delta_math import rule_dtype
from specc.ir.ops.delta_verify import delta_rule_verify_pending

_BUFFER = ("buffer",)
_ROWS = "Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta"


def _chain_fake(
    state: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: object
) -> tuple[torch.Tensor, torch.Tensor]:
    return v.new_empty(v.shape), v.new_empty(v.shape, dtype=rule_dtype(state.dtype))


@op(
    f"delta_rule_(Tensor(a!) state, {_ROWS}, bool settled=False) -> (Tensor, Tensor)",
    fake=_chain_fake,
    levels=_BUFFER,
    meta={"value_form": "delta_rule"},
)
def delta_rule_(
    state: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    settled: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`delta_rule` whose state' takes the place of `state`: (o, u).

    settled: the op in front of this one is a launch that neither writes the state nor starts before all others that do
    are complete; so a device may read the state while that one runs.
    """
    o, u, after = delta_rule(state, q, k, v, g, beta)
    state.copy_(after)
    return o, u


@op(
    f"delta_rule_chunk_(Tensor(a!) state, {_ROWS}, int chunk) -> (Tensor, Tensor)",
    fake=_chain_fake,
    levels=_BUFFER,
    meta={"value_form": "delta_rule_chunk"},
)
def delta_rule_chunk_(
    state: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    chunk: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`delta_rule_chunk` whose state' takes the place of `state`: (o, u)."""
    o, u, after = delta_rule_chunk(state, q, k, v, g, beta, chunk)
    state.copy_(after)
    return o, u


@op(
    "delta_rule_commit_(Tensor(a!) state, Tensor k, Tensor u, Tensor g, Tensor path, Tensor count, str form) -> ()",
    fake=lambda state, *_: None,
    levels=_BUFFER,
    indices=(IndexOperand("path", "k", 1),),
    meta={"identity_when_zero": "count", "value_form": "delta_rule_commit"},
)
def delta_rule_commit_(
    state: torch.Tensor,
    k: torch.Tensor,
    u: torch.Tensor,
    g: torch.Tensor,
    path: torch.Tensor,
    count: torch.Tensor,
    form: str,
) -> None:
    """`delta_rule_commit` in place; the state of a sequence with count 0 is not touched."""
    state.copy_(delta_rule_commit(state, k, u, g, path, count, form))


@op(
    "delta_rule_verify_pending_(Tensor(a!) state, Tensor pending_k, Tensor pending_u, Tensor pending_g, Tensor? path, "
    f"Tensor count, int window, str form, {_ROWS}, Tensor? parent_row, Tensor? mask, str schedule) -> (Tensor, Tensor)",
    fake=lambda state, pending_k, pending_u, pending_g, path, count, window, form, *rows: _chain_fake(state, *rows),
    levels=_BUFFER,
    indices=(IndexOperand("parent_row", "parent_row", 1, slack=1), IndexOperand("path", "pending_k", 1)),
    meta={"value_form": "delta_rule_verify_pending"},
)
def delta_rule_verify_pending_(
    state: torch.Tensor,
    pending_k: torch.Tensor,
    pending_u: torch.Tensor,
    pending_g: torch.Tensor,
    path: torch.Tensor | None,
    count: torch.Tensor,
    window: int,
    form: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    parent_row: torch.Tensor | None,
    mask: torch.Tensor | None,
    schedule: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`delta_rule_verify_pending` that writes the states of due sequences in place: (o, u)."""
    after, o, u = delta_rule_verify_pending(
        state,
        pending_k,
        pending_u,
        pending_g,
        path,
        count,
        window,
        form,
        q,
        k,
        v,
        g,
        beta,
        parent_row,
        mask,
        schedule,
    )
    state.copy_(after)
    return o, u
