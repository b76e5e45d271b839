"""Searches configurations for commits: verify with factors pending, and the commit of all layers from factors.

Part of `specc bench tune --family delta`. A configuration is checked against float64 before it is timed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch

from specc.backends.triton.ops.delta_launch import launch_rank_n
from specc.backends.triton.ops.delta_tables import CommitConfig, TreeConfig
from specc.bench.delta_inputs import BATCHES, BOUND, GEOMETRIES, Geometry, inputs, many_inputs, pending_of, random_tree
from specc.bench.delta_tree_cases import CYCLE, WINDOW, cycle_us, pending_rows, table_config, warm
from specc.bench.gpu_timing import Row, error, timed
from specc.ir import ops

APPLIES = (
    (64, 64, 4, 3, True, True), (64, 64, 4, 2, True, False), (64, 32, 4, 3, True, False), (64, 32, 4, 4, True, False),
    (64, 32, 4, 4, False, True), (64, 32, 4, 3, False, False), (32, 64, 4, 3, False, True), (16, 64, 2, 5, False, True),
)  # fmt: skip
"""(rows of the state, columns, warps, stages, bulk copies, weights made inside) of the second phase."""
COMMITS = (
    (32, 64, 4, 3), (32, 64, 4, 3, True), (32, 64, 4, 2, True), (64, 64, 4, 3, True),
    (16, 64, 4, 3), (64, 64, 4, 3), (32, 128, 4, 2), (16, 128, 4, 2), (16, 128, 2, 3), (16, 256, 4, 2),
    (32, 256, 8, 2), (32, 64, 2, 3), (16, 64, 2, 4), (64, 128, 4, 2), (64, 128, 8, 2), (32, 32, 4, 4), (32, 32, 2, 4),
)  # fmt: skip
"""(rows of the state, columns, warps, stages, whether the state is loaded ahead) of the rank-n commit."""
PATH = (0, 2, 3, 5, 8, 0, 0, 0)
ACCEPTED = 5


def candidates(geometry: Geometry, batch: int) -> list[TreeConfig]:
    """The first phase as the table has it, every second phase."""
    first = table_config(geometry, 16, batch, True)
    return [
        replace(first, bv=bv, bk=bk, warps=warps, stages=stages, bulk=bulk, inside=inside)
        for bv, bk, warps, stages, bulk, inside in APPLIES
        if bk <= geometry.keys and bv <= geometry.values
    ]


def pending_search(geometry: Geometry, batch: int) -> Iterator[Row]:
    """A row per configuration with eight factors folded in every step (`us`), and a window's cycle (`cycle_us`)."""
    many, mask = many_inputs(geometry, batch, 16), random_tree(batch, 16)[1]
    counts = [pending_of(geometry, many[0], count, WINDOW) for count in CYCLE]
    for config in candidates(geometry, batch):
        row = pending_rows(geometry, batch, config, WINDOW, 1)
        if not row["wrong"]:
            row |= {"cycle_us": round(cycle_us(many, mask, counts, config), 2)}
        yield {"kind": "deferred", **row}


def commit_search(geometry: Geometry) -> Iterator[Row]:
    """A row per configuration of the commit of all layers, one sequence, five accepted nodes."""
    flat = inputs(geometry, geometry.layers, 16)
    path = torch.tensor(PATH, device="cuda").expand(1, -1).contiguous()
    count = torch.full((1,), ACCEPTED, device="cuda")
    u = torch.randn(flat.rows.v.shape, device="cuda")
    k, us, g = (x.view(geometry.layers, 1, *x.shape[1:]) for x in (flat.rows.k, u, flat.rows.g))
    state = flat.state.view(geometry.layers, 1, *flat.state.shape[1:])
    for choice in COMMITS:
        config = CommitConfig(*choice)
        if config.bk > geometry.keys:
            continue
        # Timing changes the state in place.
        expected = ops.delta_rule_commit(*(x[-1].double() for x in (state, k, us, g)), path, count, "steps")
        after = torch.empty_like(state)
        launch_rank_n(state, after, k, us, g, path, count, config=config)
        wrong = error(after[-1], expected)
        row: Row = {"geometry": geometry.name, "kind": "commit", "batch": 1, "config": repr(config)}
        row |= {"errors": {"state": wrong}, "wrong": not wrong < BOUND}
        call = partial(launch_rank_n, state, state, k, us, g, path, count, config=config)
        yield row if row["wrong"] else row | timed([call] * 4).row()


def jobs() -> list[partial[None]]:
    """What to compile before: every configuration once."""
    found = {
        (geometry, config): partial(warm, geometry, 16, config, True, wide)
        for geometry in GEOMETRIES
        for batch in BATCHES
        for config in candidates(geometry, batch)
        for wide in (False,)
    }
    return list(found.values())
