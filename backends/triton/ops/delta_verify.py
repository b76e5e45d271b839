"""The delta rule over the nodes of a tree or chain, one function per schedule, so that a module has only its own.

`parent_row` int64 [B,N]: 0 is the committed context, node i is i + 1; `mask` bool [B,N,N]: ancestors and self.
Results: o [B,N,HV,V] in v's dtype, u [B,N,HV,V] float32; the states of `states_*` are [B,N,HV,V,K].
"""

from __future__ import annotations

import torch

from specc.backends.triton.ops.delta_launch import (
    heavy_light,
    launch_rank_n,
    launch_tree,
    launch_walk,
    outputs_of,
    paths_of,
    rows_of,
)

Tensor = torch.Tensor
Pair = tuple[Tensor, Tensor]
Triple = tuple[Tensor, Tensor, Tensor]


def table_of(state: Tensor, parent_row: Tensor) -> Tensor:
    """Room for the states that a walk fetches again, of the context and of each node: [B,N+1,HV,V,K]."""
    batch, nodes = parent_row.shape
    return torch.empty(batch, nodes + 1, *state.shape[1:], dtype=state.dtype, device=state.device)


def states_of(state: Tensor, v: Tensor) -> Tensor:
    """Room for the states of all nodes: [B,N,HV,V,K]."""
    return torch.empty(*v.shape[:2], *state.shape[1:], dtype=state.dtype, device=state.device)


def verify_chain(state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Pair:
    """A chain, node by node with the state in registers."""
    rows = rows_of(q, k, v, g, beta)
    o, u = outputs_of(state, rows)
    launch_walk(state, rows, o, u)
    return o, u


def verify_serial(state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, parent_row: Tensor) -> Pair:
    """Nodes in order; one that does not follow its parent fetches the parent's state."""
    rows = rows_of(q, k, v, g, beta)
    o, u = outputs_of(state, rows)
    launch_walk(state, rows, o, u, parent_row=parent_row, table=table_of(state, parent_row))
    return o, u


def verify_replay(state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, mask: Tensor) -> Pair:
    """Every leaf's path from the committed state, leaves side by side; nodes they share are computed by each."""
    rows = rows_of(q, k, v, g, beta)
    o, u = outputs_of(state, rows)
    launch_walk(state, rows, o, u, order=paths_of(mask, True)[0])
    return o, u


def verify_hybrid(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, parent_row: Tensor, mask: Tensor
) -> Pair:
    """Heavy-light chains: one tile per chain, a state kept at the nodes that others leave."""
    rows = rows_of(q, k, v, g, beta)
    o, u = outputs_of(state, rows)
    order = heavy_light(parent_row, mask)
    launch_walk(state, rows, o, u, order, parent_row, table_of(state, parent_row))
    return o, u


def verify_tree(state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, mask: Tensor | None) -> Pair:
    """The masked UT form: all nodes at once."""
    rows = rows_of(q, k, v, g, beta)
    o, u = outputs_of(state, rows)
    launch_tree(state, rows, mask, o, u)
    return o, u


def states_chain(state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Triple:
    """`verify_chain` and the nodes' states."""
    rows = rows_of(q, k, v, g, beta)
    o, u = outputs_of(state, rows)
    states = states_of(state, v)
    launch_walk(state, rows, o, u, table=states, keep=True)
    return o, u, states


def states_serial(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, parent_row: Tensor
) -> Triple:
    """`verify_serial` and the nodes' states."""
    rows = rows_of(q, k, v, g, beta)
    o, u = outputs_of(state, rows)
    states = states_of(state, v)
    launch_walk(state, rows, o, u, parent_row=parent_row, table=states, keep=True)
    return o, u, states


def states_replay(state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, mask: Tensor) -> Triple:
    """`verify_replay` and the nodes' states; leaves that share a node write the same bits."""
    rows = rows_of(q, k, v, g, beta)
    o, u = outputs_of(state, rows)
    states = states_of(state, v)
    launch_walk(state, rows, o, u, order=paths_of(mask, True)[0], table=states, keep=True)
    return o, u, states


def states_hybrid(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, parent_row: Tensor, mask: Tensor
) -> Triple:
    """`verify_hybrid` and the nodes' states."""
    rows = rows_of(q, k, v, g, beta)
    o, u = outputs_of(state, rows)
    states = states_of(state, v)
    launch_walk(state, rows, o, u, heavy_light(parent_row, mask), parent_row, states, True)
    return o, u, states


def states_tree(state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, mask: Tensor | None) -> Triple:
    """`verify_tree` and the nodes' states, from the factors along each node's path."""
    o, u = verify_tree(state, q, k, v, g, beta, mask)
    batch, nodes = v.shape[:2]
    if mask is None:
        mask = torch.ones(batch, nodes, nodes, dtype=torch.bool, device=v.device).tril()
    paths, counts = paths_of(mask, False)
    states = states_of(state, v)
    factors = k.contiguous(), u, g.contiguous()
    launch_rank_n(state, states, *factors, paths.view(-1, nodes), counts.view(-1), lanes=nodes)
    return o, u, states
