"""Compiles the kernels of a group at one geometry and prints their registers, spills and shared memory as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict

import torch

from specc.backends.triton.launch.commit import rank_n_launch, steps_launch
from specc.backends.triton.launch.configs import PENDING, TREE
from specc.backends.triton.launch.conv import conv_launch, window_launch
from specc.backends.triton.launch.core import Launch
from specc.backends.triton.launch.delta import tree_launches, walk_launch
from specc.backends.triton.launch.rows import Pending, Rows
from tests.backends.triton.compiling import resources


def launches(group: str, keys: int) -> Iterator[tuple[str, Launch]]:
    """(name, launch) of a group at K = V = keys."""
    name, _, size = group.partition(" ")
    nodes, heads = int(size or 16), (8, 8) if keys == 256 else (16, 32)
    rows = operands(heads, keys, nodes)
    o, u = rows.outputs()
    path, count = torch.empty(2, 9, dtype=torch.int64), torch.empty(2, dtype=torch.int64)
    mask, parent_row = torch.empty(2, nodes, nodes, dtype=torch.bool), torch.empty(2, nodes, dtype=torch.int64)
    if name in ("tree", "pending"):
        pending = Pending(rows.k, u, rows.g, path, count, 1) if name == "pending" else None
        for _, config in (PENDING if pending else TREE)[(keys, keys, nodes)]:
            for launch in tree_launches(rows, mask, o, u, pending, config):
                yield f"{launch.kernel.__name__} {config}", launch
    elif name == "walk":
        yield "chain", walk_launch(rows, o, u)
        yield "plain decoding", walk_launch(rows, o, u, after=rows.state)
        yield "tree", walk_launch(rows, o, u, parent_row=parent_row, table=rows.state)
        waiting = Pending(rows.k, u, rows.g, path, count, 1)
        yield "pending", walk_launch(rows, o, u, parent_row=parent_row, table=rows.state, pending=waiting)
    elif name == "commit":
        yield "steps", steps_launch(rows.state, rows.state, rows.k, u, rows.g, path, count)
        yield "rank_n", rank_n_launch(rows.state, rows.state, rows.k, u, rows.g, path, count)
    else:
        window, x = torch.empty(2, 3, 6144), torch.empty(2, nodes, 6144, dtype=torch.bfloat16)
        yield "tree_conv", conv_launch(window, x, torch.empty(6144, 1, 4), None, parent_row, x)
        yield "conv_commit", window_launch(window, x, path, count, window)


def operands(heads: tuple[int, int], keys: int, nodes: int) -> Rows:
    """Operands with the dtypes and strides of a real call."""
    q = torch.empty(2, nodes, heads[0], keys, dtype=torch.bfloat16)
    v = torch.empty(2, nodes, heads[1], keys, dtype=torch.bfloat16)
    g = torch.empty(2, nodes, heads[1])
    return Rows(torch.empty(2, heads[1], keys, keys), q, q, v, g, g)


if __name__ == "__main__":
    print(json.dumps({name: asdict(resources(launch)) for name, launch in launches(sys.argv[1], int(sys.argv[2]))}))
