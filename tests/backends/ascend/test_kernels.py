"""The kernels for triton-ascend, interpreted on the CPU: they compute what their docstrings say."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specc.testing import draft_trees
from specc.testing.draft_tree import DraftTree

pytest.importorskip("triton")

from specc.backends.ascend.kernels.gdn_tile import gdn_tile
from specc.backends.ascend.kernels.tree_attention import tree_attention

FLOAT32 = torch.finfo(torch.float32).eps


def delta_by_paths(
    start: Tensor, parents: list[int], q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """Float64 (states, outputs) of one head's nodes [N,...], from `start` [V,K]."""
    states, outputs = [start], []
    for node, parent in enumerate(parents):
        state = states[parent + 1] * g[node].exp()
        update = beta[node] * (v[node] - state @ k[node])
        states.append(state + torch.outer(update, k[node]))
        outputs.append(states[-1] @ q[node])
    return states[1:], outputs


@settings(max_examples=6)
@given(tree=draft_trees(max_nodes=5), seed=st.integers(0, 99))
def test_the_delta_tile_walks_a_tree_from_each_nodes_parent(tree: DraftTree, seed: int) -> None:
    batch, nodes, heads, value_heads, keys, values, tile = 2, len(tree.parent), 1, 2, 16, 8, 4
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(batch, nodes, heads, keys, generator=generator) / keys**0.5 for _ in range(2))
    v = torch.randn(batch, nodes, value_heads, values, generator=generator)
    g = -torch.rand(batch, nodes, value_heads, generator=generator)
    beta = torch.rand(batch, nodes, value_heads, generator=generator)
    states = torch.zeros(batch, nodes + 1, value_heads, values, keys)
    states[:, 0] = torch.randn(batch, value_heads, values, keys, generator=generator)
    committed, out = states[:, 0].clone(), torch.zeros_like(v)
    rows = torch.tensor([[parent + 1 for parent in tree.parent]] * batch, dtype=torch.int32)
    grid = (values // tile, value_heads, batch)
    gdn_tile[grid](states, rows, q, k, v, g, beta, out, nodes, heads, value_heads, K=keys, V=values, BV=tile)
    for b in range(batch):
        for head in range(value_heads):
            one = (q[b, :, 0], k[b, :, 0], v[b, :, head], g[b, :, head], beta[b, :, head])
            wanted = delta_by_paths(committed[b, head].double(), list(tree.parent), *(each.double() for each in one))
            # A node's path has at most `nodes` steps of sums over `keys` products of values below about 4.
            bound = 16 * nodes * keys**0.5 * FLOAT32
            for got, expected in zip((states[b, 1:, head], out[b, :, head]), wanted, strict=True):
                assert float((got.double() - torch.stack(expected)).abs().max()) <= bound


@settings(max_examples=6)
@given(seed=st.integers(0, 99), nodes=st.integers(1, 5))
def test_tree_attention_reads_what_the_mask_leaves(seed: int, nodes: int) -> None:
    batch, group, kv_heads, size, capacity = 2, 2, 2, 16, 32
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(batch, nodes, kv_heads * group, size, generator=generator)
    k, v = (torch.randn(batch, capacity, kv_heads, size, generator=generator) for _ in range(2))
    masked = (torch.rand(batch, nodes, capacity, generator=generator) < 0.6).to(torch.int8)
    masked[0, 0] = 1
    out = torch.full_like(q, 7.0)
    tree_attention[(kv_heads, batch)](
        q, k, v, masked, out, size**-0.5, nodes, capacity, kv_heads, G=group, D=size, BM=16, BN=16
    )
    keys, values = (x.double().repeat_interleave(group, 2) for x in (k, v))
    scores = torch.einsum("bnhd,bchd->bhnc", q.double(), keys) * size**-0.5
    hidden = masked.bool()[:, None]
    weight = torch.nan_to_num(torch.softmax(scores.masked_fill(hidden, float("-inf")), -1))
    wanted = torch.einsum("bhnc,bchd->bnhd", weight, values)
    assert float((out.double() - wanted).abs().max()) <= 64 * FLOAT32, "sums of 16 products, a softmax and its sum"
    assert float(out[0, 0].abs().max()) == 0.0, "a row that sees nothing"
