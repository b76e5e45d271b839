"""Compiles the attention kernels of one head dim and prints what their programs need as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from specc.backends.triton.ops import attention
from specc.backends.triton.ops.attention_paged import rope_attention_paged_, tree_attention_paged
from specc.backends.triton.ops.attention_step import rope_attention_, rope_attention_linear_
from tests.backends.triton.recorded import launched

HEADS = {64: (9, 3), 128: (32, 8), 256: (16, 2)}
"""Heads of queries and of keys by head dim: SmolLM2, Qwen3-8B, Qwen3-Next."""


def calls(dim: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """(name, call): trees of 16 and 64 nodes, alone and many sequences (one part), over pages, one token, a prompt."""
    heads, shared = HEADS[dim]
    for nodes, batch in ((1, 1), (16, 1), (64, 1), (16, 64), (64, 64)):
        q = torch.empty(batch, nodes, heads, dim, dtype=torch.bfloat16)
        cache = torch.empty(batch, 512, shared, dim, dtype=torch.bfloat16)
        length, mask = torch.empty(batch, dtype=torch.int64), torch.empty(batch, nodes, nodes, dtype=torch.bool)
        positions = torch.empty(batch, nodes, dtype=torch.int64)
        both = (q, cache, cache, length)
        name = f"{nodes} nodes, {batch} sequences"
        yield f"tree, {name}", partial(attention.tree_attention_cached, *both, mask, positions, 0.1, 0)
        yield f"chain, {name}", partial(attention.causal_attention_cached, *both, positions, 0, 0.1, 0)
        if batch == 1:
            new = cache[:, :nodes]
            yield f"fresh tree, {name}", partial(attention.tree_attention, *both, new, new, mask, positions, 0.1, 0)
            yield f"window, {name}", partial(attention.tree_attention_cached, *both, mask, positions, 0.1, 100)
            pool, table = cache.view(8, 64, shared, dim), torch.empty(1, 8, dtype=torch.int32)
            yield f"pages, {name}", partial(tree_attention_paged, q, pool, pool, table, length, mask, positions, 0.1, 0)


def steps(dim: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """(name, call): a layer's attention with its rotations and new rows, views of one projection."""
    heads, shared = HEADS[dim]
    for nodes, batch in ((1, 1), (16, 1), (16, 64)):
        projected = torch.empty(batch, nodes, (heads + 2 * shared) * dim, dtype=torch.bfloat16)
        parts = projected.split([heads * dim, shared * dim, shared * dim], dim=-1)
        angle = torch.empty(batch, nodes, dim // 2, dtype=torch.bfloat16)
        cache = torch.empty(batch, 2048, shared, dim, dtype=torch.bfloat16)
        length, mask = torch.empty(batch, dtype=torch.int64), torch.empty(batch, nodes, nodes, dtype=torch.bool)
        q, k, v = (part.unflatten(-1, (-1, dim)) for part in parts)
        both = (q, k, v, angle, angle, cache, cache, length, length)
        yield f"step of a chain, {nodes} nodes, {batch} sequences", partial(rope_attention_, *both, None, 0.1)
        yield f"step of a tree, {nodes} nodes, {batch} sequences", partial(rope_attention_, *both, mask, 0.1)
        for page in (16, 128):
            pool, table = cache.view(-1, page, shared, dim), torch.empty(batch, 2048 // page, dtype=torch.int32)
            paged = (q, k, v, angle, angle, pool, pool, table, length, length, mask, 0.1)
            yield f"step in pages of {page}, {nodes} nodes, {batch} sequences", partial(rope_attention_paged_, *paged)
        if batch == 1 and dim == 64:
            square = torch.empty(576, heads * dim, dtype=torch.bfloat16)
            rest = (None, 0.1, True, square, None, square[None, :nodes])
            yield f"step and the projection behind it, {nodes} nodes", partial(rope_attention_linear_, *both, *rest)


if __name__ == "__main__":
    chosen = int(sys.argv[1])
    every = (*calls(chosen), *steps(chosen))
    found = {f"{kernel}: {name}": asdict(used) for name, call in every for kernel, used in launched(call)}
    print(json.dumps(found))
