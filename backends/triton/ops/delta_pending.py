"""Verifying from a state that has factors pending, one function per schedule.

Pending: raw k [B,R,H,K], u [B,R,HV,V], g [B,R,HV]; the first count[b] along path[b] (None: in order) have to be
applied. Sequences with count >= max(window, 1) are due: their state is written, once. The functions ending in `_`
write it in place; the others give it first. `form` goes with the schedule: "rank_n" with tree, else "steps".
"""

from __future__ import annotations

from typing import Any

import torch

from specc.backends.triton.ops.delta_launch import (
    Pending,
    heavy_light,
    launch_tree,
    launch_walk,
    outputs_of,
    rows_of,
)
from specc.backends.triton.ops.delta_verify import table_of

Tensor = torch.Tensor
Pair = tuple[Tensor, Tensor]
Triple = tuple[Tensor, Tensor, Tensor]


def pending_of(
    pending_k: Tensor, pending_u: Tensor, pending_g: Tensor, path: Tensor | None, count: Tensor, window: int
) -> Pending:
    """The factors as the kernels take them."""
    path = None if path is None else path.contiguous()
    return Pending(pending_k.contiguous(), pending_u.contiguous(), pending_g.contiguous(), path, count, window)


def pending_chain_(
    state: Tensor, pending_k: Tensor, pending_u: Tensor, pending_g: Tensor, path: Tensor | None, count: Tensor,
    window: int, form: str, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor,
) -> Pair:  # fmt: skip
    """A chain on working tiles that get their factors first."""
    rows = rows_of(q, k, v, g, beta)
    o, u = outputs_of(state, rows)
    launch_walk(state, rows, o, u, pending=pending_of(pending_k, pending_u, pending_g, path, count, window))
    return o, u


def pending_serial_(
    state: Tensor, pending_k: Tensor, pending_u: Tensor, pending_g: Tensor, path: Tensor | None, count: Tensor,
    window: int, form: str, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, parent_row: Tensor,
) -> Pair:  # fmt: skip
    """The serial schedule on working tiles that get their factors first."""
    rows = rows_of(q, k, v, g, beta)
    o, u = outputs_of(state, rows)
    pending = pending_of(pending_k, pending_u, pending_g, path, count, window)
    launch_walk(state, rows, o, u, None, parent_row, table_of(state, parent_row), pending=pending)
    return o, u


def pending_hybrid_(
    state: Tensor, pending_k: Tensor, pending_u: Tensor, pending_g: Tensor, path: Tensor | None, count: Tensor,
    window: int, form: str, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, parent_row: Tensor,
    mask: Tensor,
) -> Pair:  # fmt: skip
    """The hybrid schedule on working tiles that get their factors first."""
    rows = rows_of(q, k, v, g, beta)
    o, u = outputs_of(state, rows)
    pending = pending_of(pending_k, pending_u, pending_g, path, count, window)
    order = heavy_light(parent_row, mask)
    launch_walk(state, rows, o, u, order, parent_row, table_of(state, parent_row), pending=pending)
    return o, u


def pending_replay_(
    state: Tensor, pending_k: Tensor, pending_u: Tensor, pending_g: Tensor, path: Tensor | None, count: Tensor,
    window: int, form: str, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, parent_row: Tensor,
) -> Pair:  # fmt: skip
    """Leaves side by side would each fold the state and write it, so that one could read what another has written:
    the nodes go in order, with the bits of replay."""
    return pending_serial_(
        state, pending_k, pending_u, pending_g, path, count, window, form, q, k, v, g, beta, parent_row
    )


def pending_tree_(
    state: Tensor, pending_k: Tensor, pending_u: Tensor, pending_g: Tensor, path: Tensor | None, count: Tensor,
    window: int, form: str, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, mask: Tensor | None,
) -> Pair:  # fmt: skip
    """The UT form; factors act as further ancestors of all nodes, and those that are due are folded on the way."""
    rows = rows_of(q, k, v, g, beta)
    o, u = outputs_of(state, rows)
    launch_tree(state, rows, mask, o, u, pending_of(pending_k, pending_u, pending_g, path, count, window))
    return o, u


def pending_chain(state: Tensor, *rest: Any) -> Triple:
    """`pending_chain_` on a copy of the state, which comes first."""
    after = state.clone()
    return after, *pending_chain_(after, *rest)


def pending_serial(state: Tensor, *rest: Any) -> Triple:
    """`pending_serial_` on a copy of the state, which comes first."""
    after = state.clone()
    return after, *pending_serial_(after, *rest)


def pending_hybrid(state: Tensor, *rest: Any) -> Triple:
    """`pending_hybrid_` on a copy of the state, which comes first."""
    after = state.clone()
    return after, *pending_hybrid_(after, *rest)


def pending_replay(state: Tensor, *rest: Any) -> Triple:
    """`pending_replay_` on a copy of the state, which comes first."""
    after = state.clone()
    return after, *pending_replay_(after, *rest)


def pending_tree(state: Tensor, *rest: Any) -> Triple:
    """`pending_tree_` on a copy of the state, which comes first."""
    after = state.clone()
    return after, *pending_tree_(after, *rest)
