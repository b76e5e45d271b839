"""Verifying from a state that has factors pending.

Pending: raw k [B,R,H,K], u [B,R,HV,V], g [B,R,HV]; the first count[b] along path[b] (None:
in order) have to be applied. Sequences with count >= max(window, 1) are due: their state is
written, once. The functions ending in `_` write it in place; the others give it first.
"""

from __future__ import annotations

from typing import Any

import torch

from specc.backends.reference.kernels.delta import (
    delta_rows,
    folded,
    weighted_factors,
)
from specc.backends.reference.kernels.delta_verify import (
    Triple,
    solve_tree,
    tree_mask,
    verify_chain,
    verify_hybrid,
    verify_replay,
    verify_serial,
)
from specc.ir.ops.delta_math import rule_dtype, unit, widened

Pair = tuple[torch.Tensor, torch.Tensor]


def along_path(
    rows: torch.Tensor, path: torch.Tensor | None, longest: int
) -> torch.Tensor:
    """rows[b, path[b, j]], j < longest."""
    if path is None:
        return rows[:, :longest]
    batch = torch.arange(rows.shape[0], device=rows.device).unsqueeze(1)
    return rows[batch, path[:, :longest]]


def apply_pending_(
    state: torch.Tensor,
    pending_k: torch.Tensor,
    pending_u: torch.Tensor,
    pending_g: torch.Tensor,
    path: torch.Tensor | None,
    count: torch.Tensor,
    window: int,
    form: str,
) -> torch.Tensor:
    """The states that verifying starts from; those of due sequences are written too."""
    rows = torch.nonzero(count > 0).flatten()
    if rows.numel() == 0:
        return widened(state)
    longest = int(count.max())
    k, u, g = (along_path(x, path, longest) for x in (pending_k, pending_u, pending_g))
    tile = widened(state).clone()
    tile[rows] = folded(state[rows], k[rows], u[rows], g[rows], count[rows], form)
    due = torch.nonzero(count >= max(window, 1)).flatten()
    state[due] = tile[due].to(state.dtype)
    return tile


def pending_chain_(
    state: torch.Tensor,
    pending_k: torch.Tensor,
    pending_u: torch.Tensor,
    pending_g: torch.Tensor,
    path: torch.Tensor | None,
    count: torch.Tensor,
    window: int,
    form: str,
    *nodes: torch.Tensor,
) -> Pair:
    """A chain on working tiles that got their factors first."""
    tile = apply_pending_(
        state, pending_k, pending_u, pending_g, path, count, window, form
    )
    return verify_chain(tile, *nodes)


def pending_serial_(
    state: torch.Tensor,
    pending_k: torch.Tensor,
    pending_u: torch.Tensor,
    pending_g: torch.Tensor,
    path: torch.Tensor | None,
    count: torch.Tensor,
    window: int,
    form: str,
    *nodes: torch.Tensor,
) -> Pair:
    """The serial schedule on working tiles that got their factors first."""
    tile = apply_pending_(
        state, pending_k, pending_u, pending_g, path, count, window, form
    )
    return verify_serial(tile, *nodes)


def pending_replay_(
    state: torch.Tensor,
    pending_k: torch.Tensor,
    pending_u: torch.Tensor,
    pending_g: torch.Tensor,
    path: torch.Tensor | None,
    count: torch.Tensor,
    window: int,
    form: str,
    *nodes: torch.Tensor,
) -> Pair:
    """The replay schedule on working tiles that got their factors first."""
    tile = apply_pending_(
        state, pending_k, pending_u, pending_g, path, count, window, form
    )
    return verify_replay(tile, *nodes)


def pending_hybrid_(
    state: torch.Tensor,
    pending_k: torch.Tensor,
    pending_u: torch.Tensor,
    pending_g: torch.Tensor,
    path: torch.Tensor | None,
    count: torch.Tensor,
    window: int,
    form: str,
    *nodes: torch.Tensor,
) -> Pair:
    """The hybrid schedule on working tiles that got their factors first."""
    tile = apply_pending_(
        state, pending_k, pending_u, pending_g, path, count, window, form
    )
    return verify_hybrid(tile, *nodes)


def pending_tree_(
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
    mask: torch.Tensor | None,
) -> Pair:
    """The UT form; factors that are not due act as further ancestors of all nodes.

    S_p x = e^G S x + sum_j e^(G - G_j) (k_j . x) u_j: the state is read, not written.
    """
    limit = max(window, 1)
    due = torch.nonzero(count >= limit).flatten()
    if due.numel() > 0:
        longest = int(count.max())
        few = (along_path(x, path, longest) for x in (pending_k, pending_u, pending_g))
        few_k, few_u, few_g = (x[due] for x in few)
        after = folded(state[due], few_k, few_u, few_g, count[due], form)
        state[due] = after.to(state.dtype)
    rows = tuple(x.transpose(1, 2) for x in delta_rows(state, q, k, v, g, beta))
    both = torch.cat((rows[0], rows[1]), dim=2)
    old = both @ widened(state).mT
    waiting = count.masked_fill(count >= limit, 0)
    longest = min(limit - 1, pending_k.shape[1])
    if longest > 0:
        few = (along_path(x, path, longest) for x in (pending_k, pending_u, pending_g))
        few_k, few_u, few_g = few
        keys = unit(few_k, rule_dtype(state.dtype), state.shape[1])
        keys, weighted, decay = weighted_factors(keys, few_u, few_g, waiting)
        near = (both @ keys.permute(0, 2, 3, 1)) @ weighted.transpose(1, 2)
        old = decay[..., None, None] * old + near
    size = q.shape[1]
    parts = old[:, :, :size], old[:, :, size:]
    o, u, _, _ = solve_tree(rows, tree_mask(v, mask), parts)
    return o.to(v.dtype), u


def pending_chain(state: torch.Tensor, *rest: Any) -> Triple:
    """`pending_chain_` on a copy of the state, which comes first."""
    after = state.clone()
    return after, *pending_chain_(after, *rest)


def pending_serial(state: torch.Tensor, *rest: Any) -> Triple:
    """`pending_serial_` on a copy of the state, which comes first."""
    after = state.clone()
    return after, *pending_serial_(after, *rest)


def pending_replay(state: torch.Tensor, *rest: Any) -> Triple:
    """`pending_replay_` on a copy of the state, which comes first."""
    after = state.clone()
    return after, *pending_replay_(after, *rest)


def pending_hybrid(state: torch.Tensor, *rest: Any) -> Triple:
    """`pending_hybrid_` on a copy of the state, which comes first."""
    after = state.clone()
    return after, *pending_hybrid_(after, *rest)


def pending_tree(state: torch.Tensor, *rest: Any) -> Triple:
    """`pending_tree_` on a copy of the state, which comes first."""
    after = state.clone()
    return after, *pending_tree_(after, *rest)
