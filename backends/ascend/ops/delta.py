"""The gated delta rule along a chain, its verify forms over trees, and commits from factors.

One form for all schedules of a spec: a graph has no loop over nodes, and every node's update comes from one solve.
"""

from __future__ import annotations

import torch

from specc.backends.ascend.ops.attention import columns
from specc.backends.ascend.ops.delta_math import (
    key_rows,
    live_rows,
    matrices,
    numbers,
    path_sums,
    solve,
    tree_mask,
    unfolded,
    unit_rows,
    weights_behind,
)
from specc.backends.ascend.ops.rows import rows_in_order, take_rows
from specc.ir.ops.delta_math import rule_dtype

LONGEST_CHUNK = 64


def solved_tree(
    state: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    mask: torch.Tensor | None,
) -> tuple[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor, torch.Tensor]:
    """What `solve` gives for all nodes, the normed keys [Z,N,K] and the state's matrices [Z,V,K], Z = B HV."""
    dtype, heads, nodes = rule_dtype(state.dtype), state.shape[1], q.shape[1]
    x = key_rows(unit_rows(torch.cat((q, k), dim=1), dtype, heads, nodes))
    across, keys, before = x.transpose(1, 2), x.narrow(1, nodes, nodes), matrices(state)
    gram, old = torch.bmm(keys, across), torch.bmm(before, across)
    seen = tree_mask(v, mask, heads)
    decays, rates = numbers([g, beta], dtype)
    return solve(gram, old, columns(v.to(dtype)), path_sums(decays, seen), rates, seen), keys, before


def delta_rule_verify(
    state: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    parent_row: torch.Tensor | None,
    mask: torch.Tensor | None,
    schedule: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each node's step after its own path: (o [B,N,HV,V] in v's dtype, u [B,N,HV,V] in the rule's).

    state [B,HV,V,K]; q, k [B,N,H,K] raw, v [B,N,HV,V], g, beta [B,N,HV]; mask bool [B,N,N] (None: a chain).
    """
    dtype, heads = rule_dtype(state.dtype), state.shape[1]
    (o, u, _, _), _, _ = solved_tree(state, q, k, v, g, beta, mask)
    return unfolded(o, heads, v.dtype), unfolded(u, heads, dtype)


def delta_rule_verify_states(
    state: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    parent_row: torch.Tensor | None,
    mask: torch.Tensor | None,
    schedule: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`delta_rule_verify` that also returns every node's state [B,N,HV,V,K]: e^G S + sum_j e^(G - G_j) u_j k_j^T."""
    dtype, heads, nodes = rule_dtype(state.dtype), state.shape[1], q.shape[1]
    (o, u, ratio, decay), keys, before = solved_tree(state, q, k, v, g, beta, mask)
    size, values, width = before.shape
    shares = u.unsqueeze(1) * ratio.transpose(1, 2).unsqueeze(2)
    added = torch.bmm(shares.reshape(size, nodes * values, nodes), keys).reshape(size, nodes, values, width)
    states = decay.reshape(size, nodes, 1, 1) * before.unsqueeze(1) + added
    states = states.reshape(-1, heads, nodes, values, width).transpose(1, 2).contiguous()
    return unfolded(o, heads, v.dtype), unfolded(u, heads, dtype), states.to(state.dtype)


def delta_rule_chunk(
    state: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    chunk: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """T tokens, `chunk` at a time: (o [B,T,HV,V] in v's dtype, u [B,T,HV,V], state'); rows as in `delta_rule_verify`.

    A token with g = beta = 0 leaves the state as it is.
    """
    dtype, heads = rule_dtype(state.dtype), state.shape[1]
    tile, outputs, factors = matrices(state), [], []
    for first in range(0, v.shape[1], chunk):
        size = min(chunk, v.shape[1] - first)
        queries, keys, part = (x.narrow(1, first, size) for x in (q, k, v))
        decays, rates = numbers([g.narrow(1, first, size), beta.narrow(1, first, size)], dtype)
        x = key_rows(unit_rows(torch.cat((queries, keys), dim=1), dtype, heads, size))
        across, rows = x.transpose(1, 2), x.narrow(1, size, size)
        gram, old = torch.bmm(rows, across), torch.bmm(tile, across)
        seen = tree_mask(part, None, heads)
        total = path_sums(decays, seen)
        o, u, ratio, decay = solve(gram, old, columns(part.to(dtype)), total, rates, seen)
        # The last column of the ratios leads to the chunk's end.
        left = ratio.narrow(2, size - 1, 1).reshape(-1, 1, size)
        tile = torch.addcmul(torch.bmm(u * left, rows), tile, decay.narrow(2, size - 1, 1))
        outputs.append(unfolded(o, heads, v.dtype))
        factors.append(unfolded(u, heads, dtype))
    after = tile.reshape(state.shape).to(state.dtype)
    if len(outputs) == 1:
        return outputs[0], factors[0], after
    return torch.cat(outputs, dim=1), torch.cat(factors, dim=1), after


def delta_rule(
    state: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    ancestors: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`delta_rule_chunk` of tokens that come one after the other; `ancestors` says nothing about them."""
    return delta_rule_chunk(state, q, k, v, g, beta, LONGEST_CHUNK)


def delta_rule_commit(
    state: torch.Tensor,
    k: torch.Tensor,
    u: torch.Tensor,
    g: torch.Tensor,
    path: torch.Tensor,
    count: torch.Tensor,
    form: str,
) -> torch.Tensor:
    """The state after nodes path[b, :count[b]] from their factors: e^G S + sum_j e^(G - G_j) u_j k_j^T.

    state [B,HV,V,K]; raw k [B,N,H,K], u [B,N,HV,V], g [B,N,HV]; path int64 [B,P], count [B].
    """
    dtype, heads = rule_dtype(state.dtype), state.shape[1]
    node = path.clamp(0, k.shape[1] - 1)
    live = rows_in_order(path.shape[1], state.device) < count.unsqueeze(1)
    keys, factors, decays = (live_rows(live, take_rows(x, node)) for x in (k, u, g))
    behind, decay = weights_behind(numbers([decays], dtype)[0])
    added = torch.bmm(columns(factors.to(dtype)) * behind, key_rows(unit_rows(keys, dtype, heads, 0)))
    return torch.addcmul(added, matrices(state), decay).reshape(state.shape).to(state.dtype)


def delta_rule_verify_pending(
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
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`delta_rule_verify` on a state with factors pending: (state', o, u).

    Pending: raw k [B,R,H,K], u [B,R,HV,V], g [B,R,HV], the first count[b] along path[b] (None: in order). They act as
    further ancestors of all nodes; the states of sequences with count >= max(window, 1) get them, others stay.
    """
    dtype, heads, nodes = rule_dtype(state.dtype), state.shape[1], q.shape[1]
    if path is not None:
        node = path.clamp(0, pending_k.shape[1] - 1)
        pending_k, pending_u, pending_g = (take_rows(x, node) for x in (pending_k, pending_u, pending_g))
    rows = pending_k.shape[1]
    live = rows_in_order(rows, state.device) < count.unsqueeze(1)
    old_k, old_u, old_g = (live_rows(live, x) for x in (pending_k, pending_u, pending_g))
    decays, rates, old_decays = numbers([g, beta, old_g], dtype)
    behind, old_decay = weights_behind(old_decays)
    factors = columns(old_u.to(dtype)) * behind
    x = key_rows(unit_rows(torch.cat((q, k, old_k.to(k.dtype)), dim=1), dtype, heads, nodes))
    across, sources = x.narrow(1, 0, 2 * nodes).transpose(1, 2), x.narrow(1, nodes, nodes + rows)
    near, far = torch.split(torch.bmm(sources, across), [nodes, rows], 1)
    before = matrices(state)
    old = torch.addcmul(torch.bmm(factors, far), torch.bmm(before, across), old_decay)
    seen = tree_mask(v, mask, heads)
    o, u, _, _ = solve(near, old, columns(v.to(dtype)), path_sums(decays, seen), rates, seen)
    # Where nothing is due the state is multiplied by 1 and gets zeros: bit for bit what it was.
    stays = (count < max(window, 1)).reshape(-1, 1, 1, 1).expand(-1, heads, 1, 1).reshape(-1, 1, 1)
    added = torch.bmm(factors.masked_fill(stays, 0.0), sources.narrow(1, nodes, rows))
    after = torch.addcmul(added, before, old_decay.masked_fill(stays, 1.0)).reshape(state.shape)
    return after.to(state.dtype), unfolded(o, heads, v.dtype), unfolded(u, heads, dtype)
