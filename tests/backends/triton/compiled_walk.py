"""Lowers walks of one size for sm_90 without a GPU, and prints, as JSON, how their numbers lie in threads and move.

For each launch: `lanes`, inline assembly that moves numbers between threads; `conversions` of floating-point tensors
from one layout to another; `gathers` along a row, and `apart` those whose row lies in more than one warp; `near`,
bytes of shared memory that it declares for itself, and `unguarded`, accesses to those with no barrier between.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from specc.backends.triton.ops.delta_launch import Pending, Rows, launch_steps, launch_walk, outputs_of
from specc.backends.triton.ops.delta_tables import FORKED, SINGLE, WALK, WalkConfig
from tests.backends.triton.compiled_kernels import Call
from tests.backends.triton.compiling import Launch, lowered
from tests.backends.triton.ptx_flow import unguarded
from tests.backends.triton.recorded import recording

LANES = r"shfl|vote|match\.|redux|activemask|laneid"
HEADS = {256: (8, 8), 128: (16, 32)}


def configs(table: dict[tuple[int, int], Any], keys: int) -> list[WalkConfig | None]:
    """All of a size's own table; else that of the nearest."""
    return [config for _, config in table.get((keys, keys), ())] or [None]


def calls(keys: int, dtype: torch.dtype) -> Iterator[tuple[str, Call]]:
    """(name, call) of what the launcher can choose at K = V = keys, rows of a dtype: plain decoding, chains, prompts of
    several blocks, trees in both orders, single paths, factors before either, states of all nodes, commits."""
    for nodes in (1, 5, 37):
        state, rows = operands(keys, nodes, dtype)
        o, u = outputs_of(state, rows)
        pending = Pending(rows.k, u, rows.g, None, torch.empty(2, dtype=torch.int64), 1)
        for config in [SINGLE.get((keys, keys))] if nodes == 1 else configs(dict(WALK), keys):
            walk = partial(launch_walk, state, rows, o, u, config=config)
            yield f"{nodes} in place {config}", partial(walk, after=state)
            if nodes != 37:
                yield f"{nodes} behind factors {config}", partial(walk, pending=pending)
            if nodes == 5:
                path = torch.empty(2, 9, dtype=torch.int64), torch.empty(2, dtype=torch.int64)
                yield f"verified {config}", walk
                yield f"paths {config}", partial(walk, order=torch.empty(2, nodes, nodes, dtype=torch.int32))
                yield f"states {config}", partial(walk, table=state, keep=True)
                yield f"commit {config}", partial(launch_steps, state, state, rows.k, u, rows.g, *path, config)
        for config in configs(dict(FORKED), keys):
            parent = torch.empty(2, nodes, dtype=torch.int64)
            tree = partial(launch_walk, state, rows, o, u, parent_row=parent, table=state, config=config)
            yield f"{nodes} hybrid {config}", partial(tree, order=torch.empty(2, nodes, dtype=torch.int32))
            if nodes == 5:
                yield f"serial {config}", tree
                yield f"serial behind factors {config}", partial(tree, pending=pending)


def operands(keys: int, nodes: int, dtype: torch.dtype) -> tuple[torch.Tensor, Rows]:
    """State and rows as parts of wider rows, as convolutions leave them."""
    heads, value_heads = HEADS.get(keys, (2, 4))
    sizes = (heads * keys, heads * keys, value_heads * keys)
    parts = torch.empty(2, nodes, sum(sizes) + 2 * value_heads, dtype=dtype).split([*sizes, 2 * value_heads], -1)
    q, k, v = (part.unflatten(-1, (-1, keys)) for part in parts[:3])
    g = torch.empty(2, nodes, value_heads)
    return torch.empty(2, value_heads, keys, keys), Rows(q, k, v, g, g)


def seen(launch: Launch) -> dict[str, int]:
    """The numbers of a kernel's text; its PTX is made where it has something near."""
    texts = lowered(launch)
    text = next(text for stage, text in texts if stage == "ttgir")
    layouts = dict(re.findall(r"^(#\w+) = (#ttg\.\w+<.*>)$", text, re.MULTILINE))
    gathers = re.findall(r"tt\.gather .*-> tensor<\d+x\d+xf32, (#\w+)>", text)
    assembly = re.findall(r'tt\.elementwise_inline_asm "([^"]*)"', text)
    near = sum(int(size) for size in re.findall(r"near\[(\d+)\]", "".join(assembly)))
    return {
        "lanes": sum(re.search(LANES, one) is not None for one in assembly),
        "conversions": len(re.findall(r"ttg\.convert_layout .*-> tensor<[\dx]*x(?:b?f)\d+", text)),
        "apart": sum(re.search(r"warpsPerCTA = \[\d+, 1\]", layouts[one]) is None for one in gathers),
        "gathers": len(gathers),
        "near": near,
        "unguarded": len(unguarded(dict(texts)["ptx"])) if near else 0,
    }


if __name__ == "__main__":
    found = {}
    for name, call in calls(int(sys.argv[1]), getattr(torch, sys.argv[2])):
        with recording() as launches:
            call()
        found[name] = seen(launches[-1])
    print(json.dumps(found))
