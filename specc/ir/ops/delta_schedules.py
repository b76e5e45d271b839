"""The verify schedules of the delta rule over a tree: how states reach the nodes. All give the same values; those that
go token by token give the same bits.

Each function takes the committed state [B,HV,V,K], prepared rows and the tree, and returns o, u [B,N,HV,V] and the
nodes' states [B,N,HV,V,K] (or None where the schedule has none).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from specc.ir.ops.delta_math import Rows, step, unit_lower_inverse

Result = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Tree:
    """`parent_row` int64 [B,N] (0: the committed context, node i is i + 1), `mask` bool [B,N,N]: ancestors and self."""

    parent_row: torch.Tensor
    mask: torch.Tensor


def chain_tree(like: torch.Tensor) -> Tree:
    """The tree of a chain of as many nodes as `like` [B,N,…] has."""
    batch, nodes = like.shape[:2]
    parent_row = torch.arange(nodes, device=like.device).expand(batch, -1)
    mask = torch.ones(nodes, nodes, dtype=torch.bool, device=like.device).tril().expand(batch, -1, -1)
    return Tree(parent_row, mask)


def _stacked(results: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]) -> Result:
    o, u, states = (torch.stack(parts, dim=1) for parts in zip(*results, strict=True))
    return o, u, states


def _at(rows: Rows, index: object) -> tuple[torch.Tensor, ...]:
    return rows.q[index], rows.k[index], rows.v[index], rows.g[index], rows.beta[index]  # type: ignore[index]


def replay(state: torch.Tensor, rows: Rows, tree: Tree) -> Result:
    """Every node is computed by replaying its whole path from the committed state (SpecLA's root-to-leaf baseline)."""
    batch, nodes = tree.parent_row.shape
    row = torch.arange(batch, device=state.device).unsqueeze(1)
    depth = tree.mask.sum(-1) - 1
    # Column d of a node's path: its ancestor of depth d; the sort puts the ancestors, in ascending order, in front.
    path = torch.sort(tree.mask.to(torch.int64), dim=-1, descending=True, stable=True).indices
    states = state.unsqueeze(1).expand(-1, nodes, -1, -1, -1)
    outputs = torch.zeros_like(rows.v)
    factors = torch.zeros_like(rows.v)
    for level in range(int(depth.max()) + 1):
        o, u, after = step(states, *_at(rows, (row, path[:, :, level])))
        live = (level <= depth)[..., None, None]
        outputs, factors = torch.where(live, o, outputs), torch.where(live, u, factors)
        states = torch.where(live.unsqueeze(-1), after, states)
    return outputs, factors, states


def serial(state: torch.Tensor, rows: Rows, tree: Tree) -> Result:
    """Nodes one after the other, each from its parent's state: one program per sequence and head on a device."""
    batch, nodes = tree.parent_row.shape
    row = torch.arange(batch, device=state.device)
    kept = [state]
    results = []
    for node in range(nodes):
        above = tree.parent_row[:, node]
        # A chain's parent is the node before; else the parents of a batch may differ.
        same = bool((above == node).all())
        start = kept[node] if same else torch.stack(kept, dim=1)[row, above]
        results.append(step(start, *_at(rows, (slice(None), node))))
        kept.append(results[-1][2])
    return _stacked(results)


def heavy_chains(parent_row: list[int]) -> list[list[int]]:
    """Heavy-light decomposition: chains of nodes, each a parent followed by its child with the largest subtree.

    A chain's first node hangs on the committed context or on a node of an earlier chain.
    """
    nodes = len(parent_row)
    size = [1] * nodes
    for node in reversed(range(nodes)):
        if parent_row[node] > 0:
            size[parent_row[node] - 1] += size[node]
    heavy: dict[int, int] = {}
    for node, above in enumerate(parent_row):
        if above not in heavy or size[node] > size[heavy[above]]:
            heavy[above] = node
    chains = []
    for node, above in enumerate(parent_row):
        if above == 0 or heavy[above] != node:
            chain = [node]
            while chain[-1] + 1 in heavy:
                chain.append(heavy[chain[-1] + 1])
            chains.append(chain)
    return chains


def hybrid(state: torch.Tensor, rows: Rows, tree: Tree) -> Result:
    """Heavy-light chains: the heavy child continues where its parent ends, a state is kept at branch nodes only."""
    outputs, factors = torch.empty_like(rows.v), torch.empty_like(rows.v)
    states = state.new_empty((*rows.v.shape[:2], *state.shape[1:]))
    for b, above in enumerate(tree.parent_row.tolist()):
        branches = {0: state[b]}
        chains = heavy_chains(above)
        starts = {above[chain[0]] for chain in chains}
        for chain in chains:
            current = branches[above[chain[0]]]
            for node in chain:
                outputs[b, node], factors[b, node], current = step(current, *_at(rows, (b, node)))
                states[b, node] = current
                if node + 1 in starts:
                    branches[node + 1] = current
    return outputs, factors, states


def tree_form(state: torch.Tensor, rows: Rows, tree: Tree) -> Result:
    """The UT form over all nodes at once: (I + A) U = diag(beta)(V - e^G (K S^T)), see design 04 and SpecLA.

    A_ij = beta_i e^{G_i - G_j} (k_i . k_j) for proper ancestors j of i, G the sum of g along the path. The ancestor
    mask is applied as -inf before exp: siblings would give positive exponents.
    """
    queries, keys, values, rates = (x.transpose(1, 2) for x in (rows.q, rows.k, rows.v, rows.beta))
    total = (tree.mask.to(state.dtype) @ rows.g).transpose(1, 2)
    seen = tree.mask.unsqueeze(1)
    ratio = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(~seen, float("-inf")).exp()
    inverse = unit_lower_inverse((rates.unsqueeze(-1) * ratio * (keys @ keys.transpose(-1, -2))).tril(-1))
    decay, old = total.exp().unsqueeze(-1), state.transpose(-1, -2)
    u = inverse @ (rates.unsqueeze(-1) * (values - decay * (keys @ old)))
    o = decay * (queries @ old) + (ratio * (queries @ keys.transpose(-1, -2))) @ u
    states = torch.einsum("bhij,bhjv,bhjk->bihvk", ratio, u, keys) + torch.einsum("bhi,bhvk->bihvk", total.exp(), state)
    return o.transpose(1, 2), u.transpose(1, 2), states


SCHEDULES: Mapping[str, Callable[[torch.Tensor, Rows, Tree], Result]] = {
    "unscheduled": serial,
    "replay": replay,
    "serial": serial,
    "hybrid": hybrid,
    "tree": tree_form,
}
