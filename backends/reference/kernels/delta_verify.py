"""The gated delta rule over the nodes of a tree or chain, one function per schedule.

Rows and results as in `delta_rule`; `parent_row` [B,N]: 0 is the committed context, node i
is i + 1. Where `states` [B,N,HV,V,K] is given, the nodes' states are written there.
"""

from __future__ import annotations

from typing import Any

import torch

from specc.backends.reference.kernels.delta import delta_rows, delta_step_
from specc.ir.ops.delta_math import unit_lower_inverse, widened
from specc.ir.ops.delta_schedules import heavy_chains

Triple = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def verify_chain(
    state: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    states: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A chain, node by node on one tile: what every schedule by steps is without branches."""
    queries, keys, values, decays, rates = delta_rows(state, q, k, v, g, beta)
    decays = decays.exp()
    o, u = torch.empty_like(v), torch.empty_like(values)
    tile = widened(state).clone()
    for t in range(v.shape[1]):
        o[:, t], u[:, t] = delta_step_(
            tile, queries[:, t], keys[:, t], values[:, t], decays[:, t], rates[:, t]
        )
        if states is not None:
            states[:, t] = tile
    return o, u


def verify_serial(
    state: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    parent_row: torch.Tensor,
    states: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Nodes in order; one that does not follow its parent fetches the parent's state."""
    queries, keys, values, decays, rates = delta_rows(state, q, k, v, g, beta)
    decays = decays.exp()
    o, u = torch.empty_like(v), torch.empty_like(values)
    parents = parent_row.T.tolist()
    fetched = {
        row for node, above in enumerate(parents) for row in above if row != node
    }
    kept, tile = {0: widened(state)}, widened(state).clone()
    for node, above in enumerate(parents):
        if any(row != node for row in above):
            places = [tile if row == node else kept[row] for row in above]
            tile = torch.stack([place[b] for b, place in enumerate(places)])
        o[:, node], u[:, node] = delta_step_(
            tile,
            queries[:, node],
            keys[:, node],
            values[:, node],
            decays[:, node],
            rates[:, node],
        )
        if node + 1 in fetched:
            kept[node + 1] = tile.clone()
        if states is not None:
            states[:, node] = tile
    return o, u


def verify_replay(
    state: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    parent_row: torch.Tensor,
    states: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Every leaf's path from the committed state, token by token: the baseline."""
    queries, keys, values, decays, rates = delta_rows(state, q, k, v, g, beta)
    decays = decays.exp()
    o, u = torch.empty_like(v), torch.empty_like(values)
    for b, parents in enumerate(parent_row.tolist()):
        for leaf in sorted({*range(len(parents))} - {row - 1 for row in parents}):
            path = [leaf]
            while parents[path[0]] > 0:
                path.insert(0, parents[path[0]] - 1)
            tile = widened(state[b]).clone()
            for node in path:
                at = b, node
                o[at], u[at] = delta_step_(
                    tile, queries[at], keys[at], values[at], decays[at], rates[at]
                )
                if states is not None:
                    states[at] = tile
    return o, u


def verify_hybrid(
    state: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    parent_row: torch.Tensor,
    states: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Heavy-light chains: one tile per chain, a state kept at the nodes that others leave."""
    queries, keys, values, decays, rates = delta_rows(state, q, k, v, g, beta)
    decays = decays.exp()
    o, u = torch.empty_like(v), torch.empty_like(values)
    for b, parents in enumerate(parent_row.tolist()):
        chains = heavy_chains(parents)
        starts = {parents[chain[0]] for chain in chains}
        branches = {0: widened(state[b])}
        for chain in chains:
            tile = branches[parents[chain[0]]].clone()
            for node in chain:
                at = b, node
                o[at], u[at] = delta_step_(
                    tile, queries[at], keys[at], values[at], decays[at], rates[at]
                )
                if node + 1 in starts:
                    branches[node + 1] = tile.clone()
                if states is not None:
                    states[at] = tile
    return o, u


def solve_tree(
    rows: tuple[torch.Tensor, ...],
    mask: torch.Tensor,
    old: tuple[torch.Tensor, torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """All nodes at once: (I + A) U = beta (V - e^G (K S^T)), o = e^G (Q S^T) + P U.

    `rows` as `delta_rows` makes them, heads in front: [B,HV,N,…]; mask bool [B or 1,N,N]
    ancestors and self; `old`: Q S^T and K S^T [B,HV,N,V]. A_ij = beta_i e^(G_i - G_j)
    (k_i . k_j) for proper ancestors j of i. Returns o, u, e^(G_i - G_j) or 0, and e^G.
    """
    queries, keys, values, decays, rates = rows
    shown = mask.unsqueeze(1)
    total = (shown.to(decays.dtype) @ decays.unsqueeze(-1)).squeeze(-1)
    # Masked before exp: between siblings the exponents may be positive and large.
    ratio = total.unsqueeze(-1) - total.unsqueeze(-2)
    ratio = ratio.masked_fill(~shown, float("-inf")).exp()
    rate, decay = rates.unsqueeze(-1), total.exp().unsqueeze(-1)
    inverse = unit_lower_inverse((rate * ratio * (keys @ keys.mT)).tril(-1))
    u = inverse @ (rate * (values - decay * old[1]))
    o = decay * old[0] + (ratio * (queries @ keys.mT)) @ u
    return o.transpose(1, 2).contiguous(), u.transpose(1, 2).contiguous(), ratio, decay


def tree_mask(v: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """The ancestor mask, that of a chain of nodes v [B,N,…] where none is given."""
    if mask is not None:
        return mask
    size = v.shape[1]
    return torch.ones(1, size, size, dtype=torch.bool, device=v.device).tril()


def verify_tree(
    state: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    mask: torch.Tensor | None,
    states: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The masked UT form: batched matmuls over all nodes."""
    rows = tuple(x.transpose(1, 2) for x in delta_rows(state, q, k, v, g, beta))
    queries, keys = rows[:2]
    state = widened(state)
    old = queries @ state.mT, keys @ state.mT
    o, u, ratio, decay = solve_tree(rows, tree_mask(v, mask), old)
    if states is not None:
        # S_i = e^G_i S + sum_j e^(G_i - G_j) u_j k_j^T, one node after the other.
        factors = u.transpose(1, 2)
        for node in range(v.shape[1]):
            weighted = ratio[:, :, node].unsqueeze(-1) * factors
            states[:, node] = decay[:, :, node, :, None] * state + weighted.mT @ keys
    return o.to(v.dtype), u


def states_of(state: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Room for the states of nodes v [B,N,…]: [B,N,HV,V,K]."""
    return state.new_empty((*v.shape[:2], *state.shape[1:]))


def states_chain(state: torch.Tensor, *nodes: torch.Tensor) -> Triple:
    """`verify_chain` and the nodes' states."""
    states = states_of(state, nodes[2])
    return *verify_chain(state, *nodes, *[states]), states


def states_serial(state: torch.Tensor, *nodes: torch.Tensor) -> Triple:
    """`verify_serial` and the nodes' states."""
    states = states_of(state, nodes[2])
    return *verify_serial(state, *nodes, *[states]), states


def states_replay(state: torch.Tensor, *nodes: torch.Tensor) -> Triple:
    """`verify_replay` and the nodes' states."""
    states = states_of(state, nodes[2])
    return *verify_replay(state, *nodes, *[states]), states


def states_hybrid(state: torch.Tensor, *nodes: torch.Tensor) -> Triple:
    """`verify_hybrid` and the nodes' states."""
    states = states_of(state, nodes[2])
    return *verify_hybrid(state, *nodes, *[states]), states


def states_tree(state: torch.Tensor, *nodes: Any) -> Triple:
    """`verify_tree` and the nodes' states."""
    states = states_of(state, nodes[2])
    return *verify_tree(state, *nodes, *[states]), states
