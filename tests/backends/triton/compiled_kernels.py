"""Compiles the kernels of a group at one geometry and prints their registers, spills and shared memory as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from specc.backends.triton.ops import conv
from specc.backends.triton.ops.delta_launch import (
    Pending,
    Rows,
    launch_rank_n,
    launch_steps,
    launch_tree,
    launch_walk,
    outputs_of,
)
from specc.backends.triton.ops.delta_tables import FORKED, PENDING, TREE, WALK
from tests.backends.triton.recorded import launched

Call = Callable[[], Any]


def calls(group: str, keys: int) -> Iterator[tuple[str, Call]]:
    """(name, call that launches kernels) of a group at K = V = keys."""
    name, _, size = group.partition(" ")
    nodes, heads = int(size or 16), (8, 8) if keys == 256 else (16, 32)
    state, rows = operands(heads, keys, nodes)
    o, u = outputs_of(state, rows)
    path, count = torch.empty(2, 9, dtype=torch.int64), torch.empty(2, dtype=torch.int64)
    mask, parent_row = torch.empty(2, nodes, nodes, dtype=torch.bool), torch.empty(2, nodes, dtype=torch.int64)
    pending = Pending(rows.k, u, rows.g, path, count, 3 if name == "windowed" else 1)
    if name in ("tree", "pending", "windowed"):
        waiting = None if name == "tree" else pending
        for _, config in (PENDING if waiting else TREE)[(keys, keys, nodes)]:
            yield str(config), partial(launch_tree, state, rows, mask, o, u, waiting, config=config)
    elif name == "walk":
        for _, config in WALK[(keys, keys)]:
            walk = partial(launch_walk, state, rows, o, u, config=config)
            yield f"chain {config}", walk
            yield f"plain decoding {config}", partial(walk, after=state)
            yield f"chain behind factors {config}", partial(walk, pending=pending)
            yield f"paths {config}", partial(walk, order=torch.empty(2, 5, nodes, dtype=torch.int32))
            yield f"states {config}", partial(walk, table=state, keep=True)
        for _, config in FORKED[(keys, keys)]:
            walk = partial(launch_walk, state, rows, o, u, config=config)
            yield f"tree {config}", partial(walk, parent_row=parent_row, table=state)
            yield f"pending {config}", partial(walk, parent_row=parent_row, table=state, pending=pending)
            order = torch.empty(2, nodes, dtype=torch.int32)
            yield f"ordered {config}", partial(walk, order=order, parent_row=parent_row, table=state)
    elif name == "commit":
        yield "steps", partial(launch_steps, state, state, rows.k, u, rows.g, path, count)
        yield "rank_n", partial(launch_rank_n, state, state, rows.k, u, rows.g, path, count)
    else:
        window, x = torch.empty(2, 3, 6144), torch.empty(2, nodes, 6144, dtype=torch.bfloat16)
        yield "tree_conv", partial(conv.tree_conv, window, x, torch.empty(6144, 1, 4), None, parent_row)
        yield "conv_commit", partial(conv.conv_commit, window, x, path, count)


def operands(heads: tuple[int, int], keys: int, nodes: int) -> tuple[torch.Tensor, Rows]:
    """State and rows with the dtypes and strides of a real call."""
    q = torch.empty(2, nodes, heads[0], keys, dtype=torch.bfloat16)
    v = torch.empty(2, nodes, heads[1], keys, dtype=torch.bfloat16)
    g = torch.empty(2, nodes, heads[1])
    return torch.empty(2, heads[1], keys, keys), Rows(q, q, v, g, g)


if __name__ == "__main__":
    found = {
        f"{kernel} {name}": asdict(used)
        for name, call in calls(sys.argv[1], int(sys.argv[2]))
        for kernel, used in launched(call)
    }
    print(json.dumps(found))
