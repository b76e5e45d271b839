"""The verify schedules of the delta rule over a tree: how states reach the nodes. All give the same values; those that
go token by token give the same bits.

Each function takes where the verify starts from, prepared rows and the tree, and returns o, u [B,N,HV,V] and, if they
are to be kept, the nodes' states [B,N,HV,V,K]. `load_state` and `store_state` stand where a kernel of that schedule
moves state tiles between its registers and memory; the tile that it starts from has been loaded by the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from specc.ir.ops.delta_math import Factors, Rows, step, unit_lower_inverse, widened
from specc.ir.traffic import load_state, store_state

Result = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]


@dataclass(frozen=True, slots=True)
class Tree:
    """`parent_row` int64 [B,N] (0: the committed context, node i is i + 1), `mask` bool [B,N,N]: ancestors and self."""

    parent_row: torch.Tensor
    mask: torch.Tensor


@dataclass(frozen=True, slots=True)
class Start:
    """The state [B,HV,V,K] that the nodes continue, in the rule's type; in memory states have the type `kept`.

    `factors`: further ancestors of every node, which are not in `tile` (the tree schedule only; None: there are none).
    """

    tile: torch.Tensor
    kept: torch.dtype
    factors: Factors | None = None


def started(state: torch.Tensor) -> Start:
    """A start from a committed state, which is read."""
    return Start(widened(load_state(state)), state.dtype)


def chain_tree(like: torch.Tensor) -> Tree:
    """The tree of a chain of as many nodes as `like` [B,N,…] has."""
    batch, nodes = like.shape[:2]
    parent_row = torch.arange(nodes, device=like.device).expand(batch, -1)
    mask = torch.ones(nodes, nodes, dtype=torch.bool, device=like.device).tril().expand(batch, -1, -1)
    return Tree(parent_row, mask)


def _at(rows: Rows, index: object) -> tuple[torch.Tensor, ...]:
    return rows.q[index], rows.k[index], rows.v[index], rows.g[index], rows.beta[index]  # type: ignore[index]


def _empty(start: Start, rows: Rows, keep: bool) -> Result:
    """Room for the results."""
    shape = (*rows.v.shape[:2], *start.tile.shape[1:])
    return (
        torch.zeros_like(rows.v),
        torch.zeros_like(rows.v),
        start.tile.new_empty(shape, dtype=start.kept) if keep else None,
    )


def replay(start: Start, rows: Rows, tree: Tree, keep: bool) -> Result:
    """Each leaf's path from the committed state, one step kernel per token (SpecLA's root-to-leaf baseline).

    A token that several leaves share is computed, and its state read and written, once for each.
    """
    nodes = tree.parent_row.shape[1]
    proper = tree.mask & ~torch.eye(nodes, dtype=torch.bool, device=tree.mask.device)
    depth = tree.mask.sum(-1) - 1
    # Column d of a node's path: its ancestor of depth d; the sort puts the ancestors, in ascending order, in front.
    path = torch.sort(tree.mask.to(torch.int64), dim=-1, descending=True, stable=True).indices
    batch, leaf = torch.nonzero(~proper.any(dim=1), as_tuple=True)
    outputs, factors, states = _empty(start, rows, keep)
    tiles = start.tile[batch].to(start.kept)
    for level in range(nodes):
        going = torch.nonzero(level <= depth[batch, leaf]).flatten()
        row, node = batch[going], path[batch[going], leaf[going], level]
        # The first tile has been loaded already, for one leaf of each sequence.
        before = widened(load_state(tiles[going])) if level else _first_tiles(start, batch)
        o, u, after = step(before, *_at(rows, (row, node)))
        tiles[going] = store_state(after.to(start.kept))
        outputs[row, node], factors[row, node] = o, u
        if states is not None:
            states[row, node] = after.to(start.kept)
    return outputs, factors, states


def _first_tiles(start: Start, batch: torch.Tensor) -> torch.Tensor:
    """The committed tiles of all leaves, those of a sequence's second and later leaf loaded once more."""
    again = torch.ones_like(batch, dtype=torch.bool)
    again[1:] = batch[1:] == batch[:-1]
    again[:1] = False
    tiles = start.tile[batch]
    load_state(tiles[again].to(start.kept))
    return tiles


def _far_children(parent_row: torch.Tensor) -> torch.Tensor:
    """bool [B,N+1]: rows (0: the context) with a child that is not the node right after them."""
    batch, nodes = parent_row.shape
    far = parent_row != torch.arange(nodes, device=parent_row.device)
    found = torch.zeros(batch, nodes + 1, dtype=torch.int64, device=parent_row.device)
    return found.scatter_add_(1, parent_row, far.to(torch.int64)) > 0


def serial(start: Start, rows: Rows, tree: Tree, keep: bool) -> Result:
    """Nodes one after the other: one program per sequence and head on a device, the tile in its registers.

    A node that does not follow its parent fetches the parent's state, which was stored for it.
    """
    batch, nodes = tree.parent_row.shape
    wanted = _far_children(tree.parent_row)
    table = start.tile.new_empty((batch, nodes + 1, *start.tile.shape[1:]), dtype=start.kept)
    table[:, 0] = start.tile
    outputs, factors, _ = _empty(start, rows, False)
    tile = start.tile
    for node in range(nodes):
        above = tree.parent_row[:, node]
        branch = torch.nonzero(above != node).flatten()
        if branch.numel():
            tile = tile.clone()
            tile[branch] = widened(load_state(table[branch, above[branch]]))
        outputs[:, node], factors[:, node], tile = step(tile, *_at(rows, (slice(None), node)))
        stored = torch.nonzero(wanted[:, node + 1] | keep).flatten()
        table[stored, node + 1] = store_state(tile[stored].to(start.kept))
    return outputs, factors, table[:, 1:].clone() if keep else None


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


def hybrid(start: Start, rows: Rows, tree: Tree, keep: bool) -> Result:
    """Heavy-light chains: the heavy child continues where its parent ends, a state is kept at branch nodes only."""
    outputs, factors, states = _empty(start, rows, keep)
    for b, above in enumerate(tree.parent_row.tolist()):
        branches = {0: start.tile[b]}
        chains = heavy_chains(above)
        starts = {above[chain[0]] for chain in chains}
        for number, chain in enumerate(chains):
            tile = branches[above[chain[0]]]
            if number:
                tile = widened(load_state(tile))
            for node in chain:
                outputs[b, node], factors[b, node], tile = step(tile, *_at(rows, (b, node)))
                stored = tile.to(start.kept)
                if node + 1 in starts:
                    branches[node + 1] = stored
                if node + 1 in starts or keep:
                    store_state(stored)
                if states is not None:
                    states[b, node] = stored
    return outputs, factors, states


def tree_form(start: Start, rows: Rows, tree: Tree, keep: bool) -> Result:
    """The UT form over all nodes at once: (I + A) U = diag(beta)(V - e^G (K S^T)), see design 04 and SpecLA.

    A_ij = beta_i e^{G_i - G_j} (k_i . k_j) for proper ancestors j of i, G the sum of g along the path. The ancestor
    mask is applied as -inf before exp: siblings would give positive exponents. Pending factors are further ancestors.
    """
    queries, keys, values, rates = (x.transpose(1, 2) for x in (rows.q, rows.k, rows.v, rows.beta))
    total = (tree.mask.to(rows.g.dtype) @ rows.g).transpose(1, 2)
    seen = tree.mask.unsqueeze(1)
    ratio = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(~seen, float("-inf")).exp()
    inverse = unit_lower_inverse((rates.unsqueeze(-1) * ratio * (keys @ keys.transpose(-1, -2))).tril(-1))
    decay = total.exp().unsqueeze(-1)
    u = inverse @ (rates.unsqueeze(-1) * (values - decay * _read(start, keys)))
    o = decay * _read(start, queries) + (ratio * (queries @ keys.transpose(-1, -2))) @ u
    states = None
    if keep:
        states = torch.einsum("bhij,bhjv,bhjk->bihvk", ratio, u, keys)
        states = states + torch.einsum("bhi,bhvk->bihvk", total.exp(), start.tile)
        states = store_state(states.to(start.kept)).contiguous()
    return o.transpose(1, 2).contiguous(), u.transpose(1, 2).contiguous(), states


def _read(start: Start, x: torch.Tensor) -> torch.Tensor:
    """x [B,HV,N,K] against the state that the nodes continue: [B,HV,N,V]."""
    return x @ start.tile.transpose(-1, -2) if start.factors is None else start.factors.read(start.tile, x)


SCHEDULES: Mapping[str, Callable[[Start, Rows, Tree, bool], Result]] = {
    "unscheduled": serial,
    "replay": replay,
    "serial": serial,
    "hybrid": hybrid,
    "tree": tree_form,
}
