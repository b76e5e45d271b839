"""The gated delta rule along a chain, and commits of its state from factors.

One token is one step on a working tile, updated in place with the same operations in the
same order wherever tokens are taken one by one: equal inputs give equal bits, whether a
token is decoded alone, in a chain or as a node of a tree, and whatever its neighbours in
the batch are.
"""

from __future__ import annotations

import torch

from specc.ir.ops.delta_math import rule_dtype, unit, unit_lower_inverse, widened


def delta_rows(
    state: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """q, k [B,T,HV,K] normed, v [B,T,HV,V], g, beta [B,T,HV] in the rule's dtype."""
    dtype, heads = rule_dtype(state.dtype), state.shape[1]
    queries = unit(q, dtype, heads) * float(q.shape[-1]) ** -0.5
    keys = unit(k, dtype, heads)
    return queries, keys, v.to(dtype), g.to(dtype), beta.to(dtype)


def delta_step_(
    tile: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token on tile [..,V,K]: S' = decay S, u = beta (v - S' k), S = S' + u k^T.

    q, k [..,K], v [..,V], decay, beta [..] -> (o = S q [..,V], u [..,V]).
    """
    key = k.unsqueeze(-2)
    tile *= decay[..., None, None]
    u = beta.unsqueeze(-1) * (v - (tile * key).sum(-1))
    tile += u.unsqueeze(-1) * key
    return (tile * q.unsqueeze(-2)).sum(-1), u


def stored_(state: torch.Tensor, tile: torch.Tensor) -> None:
    """A working tile in its state's place, where it is not the state itself: a bfloat16 one is rounded here."""
    if tile is not state:
        state.copy_(tile)


def delta_rule_(
    state: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    settled: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [B,T,…] one after the other on state [B,HV,V,K]: (o, u [B,T,HV,V]); `settled` is for devices."""
    queries, keys, values, decays, rates = delta_rows(state, q, k, v, g, beta)
    decays = decays.exp()
    o, u, tile = torch.empty_like(v), torch.empty_like(values), widened(state)
    for t in range(v.shape[1]):
        o[:, t], u[:, t] = delta_step_(
            tile, queries[:, t], keys[:, t], values[:, t], decays[:, t], rates[:, t]
        )
    stored_(state, tile)
    return o, u


def delta_rule(
    state: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    ancestors: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`delta_rule_` on a copy: (o, u, state'); `ancestors` says nothing about one token."""
    after = state.clone()
    o, u = delta_rule_(after, q, k, v, g, beta)
    return o, u, after


def delta_rule_chunk_(
    state: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    chunk: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `delta_rule_`, `chunk` tokens at a time: (I + A) U = beta (V - e^G (K S^T)).

    A_ij = beta_i e^(G_i - G_j) (k_i . k_j) for j < i, G the running sum of g in the chunk.
    """
    rows = [x.transpose(1, 2) for x in delta_rows(state, q, k, v, g, beta)]
    o, u = torch.empty_like(v), torch.empty_like(rows[2]).transpose(1, 2)
    tile = widened(state)
    for first in range(0, v.shape[1], chunk):
        part = slice(first, first + chunk)
        queries, keys, values, decays, rates = (x[:, :, part] for x in rows)
        total = decays.cumsum(-1)
        size = total.shape[-1]
        lower = torch.ones(size, size, dtype=torch.bool, device=v.device).tril()
        # Masked before exp: the exponents above the diagonal are positive.
        ratio = total.unsqueeze(-1) - total.unsqueeze(-2)
        ratio = ratio.masked_fill(~lower, float("-inf")).exp()
        rate, decay = rates.unsqueeze(-1), total.exp().unsqueeze(-1)
        inverse = unit_lower_inverse((rate * ratio * (keys @ keys.mT)).tril(-1))
        factors = inverse @ (rate * (values - decay * (keys @ tile.mT)))
        inner = (ratio * (queries @ keys.mT)) @ factors
        o[:, part] = (decay * (queries @ tile.mT) + inner).transpose(1, 2)
        u[:, part] = factors.transpose(1, 2)
        left = (total[..., -1:] - total).exp().unsqueeze(-1)
        tile *= decay[..., -1:, :]
        tile += (left * factors).mT @ keys
    stored_(state, tile)
    return o, u


def delta_rule_chunk(
    state: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    chunk: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`delta_rule_chunk_` on a copy: (o, u, state')."""
    after = state.clone()
    o, u = delta_rule_chunk_(after, q, k, v, g, beta, chunk)
    return o, u, after


def folded(
    state: torch.Tensor,
    k: torch.Tensor,
    u: torch.Tensor,
    g: torch.Tensor,
    count: torch.Tensor,
    form: str,
) -> torch.Tensor:
    """The state after factors k [B,R,H,K] raw, u [B,R,HV,V], g [B,R,HV], j < count[b]; not rounded.

    form "steps": e^g S + u k^T one by one, in the order of `delta_step_`; "rank_n":
    e^G S + sum_j e^(G - G_j) u_j k_j^T. What rows at or beyond count hold has no effect.
    """
    state = widened(state)
    keys = unit(k, state.dtype, state.shape[1])
    if form == "rank_n":
        keys, weighted, decay = weighted_factors(keys, u, g, count)
        return state * decay[..., None, None] + weighted.permute(0, 2, 3, 1) @ (
            keys.transpose(1, 2)
        )
    decay = g.exp()
    for j in range(int(count.max()) if count.numel() else 0):
        after = state * decay[:, j, :, None, None]
        after += u[:, j].unsqueeze(-1) * keys[:, j].unsqueeze(-2)
        state = torch.where((j < count)[:, None, None, None], after, state)
    return state


def weighted_factors(
    keys: torch.Tensor, u: torch.Tensor, g: torch.Tensor, count: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Factors relative to the state behind them: keys, e^(G - G_j) u, e^G [B,HV].

    Keys and u are zero in the rows that do not count.
    """
    live = torch.arange(keys.shape[1], device=keys.device) < count.unsqueeze(1)
    live = live.unsqueeze(-1)
    total = torch.where(live, g, torch.zeros_like(g)).cumsum(1)
    weighted = (total[:, -1:] - total).exp().unsqueeze(-1) * u
    live = live.unsqueeze(-1)
    keys = torch.where(live, keys, torch.zeros_like(keys))
    weighted = torch.where(live, weighted, torch.zeros_like(u))
    return keys, weighted, total[:, -1].exp()


def delta_rule_commit_(
    state: torch.Tensor,
    k: torch.Tensor,
    u: torch.Tensor,
    g: torch.Tensor,
    path: torch.Tensor,
    count: torch.Tensor,
    form: str,
) -> None:
    """Apply the factors of nodes path[b, :count[b]] to the states that have any."""
    rows = torch.nonzero(count > 0).flatten()
    if rows.numel() == 0:
        return
    kept = count[rows]
    row, nodes = rows.unsqueeze(1), path[rows, : int(kept.max())]
    after = folded(state[rows], k[row, nodes], u[row, nodes], g[row, nodes], kept, form)
    state[rows] = after.to(state.dtype)


def delta_rule_commit(
    state: torch.Tensor,
    k: torch.Tensor,
    u: torch.Tensor,
    g: torch.Tensor,
    path: torch.Tensor,
    count: torch.Tensor,
    form: str,
) -> torch.Tensor:
    """`delta_rule_commit_` on a copy."""
    after = state.clone()
    delta_rule_commit_(after, k, u, g, path, count, form)
    return after
