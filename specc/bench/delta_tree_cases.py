"""The tree schedule's cases for `kernels_delta`: verify, and verify with factors pending beside a separate commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from specc.backends.triton.launch.core import power_of_two
from specc.backends.triton.ops.delta_launch import (
    Pending,
    launch_apply,
    launch_prepare,
    launch_rank_n,
    launch_tree,
    outputs_of,
    workspace,
)
from specc.backends.triton.ops.delta_tables import TreeConfig, tree_config
from specc.bench.delta_inputs import (
    BATCHES,
    BOUND,
    GDN,
    GEOMETRIES,
    QWEN,
    Geometry,
    Inputs,
    exact,
    folded,
    in_order,
    inputs,
    many_inputs,
    pending_of,
    random_tree,
)
from specc.bench.gpu_timing import RATE, Row, checked, error, poison, timed

Calls = list[Callable[[], Any]]
POINTS = ((GDN, 16), (GDN, 32), (GDN, 8), (QWEN, 16), (QWEN, 32))
BOUNDS = {"u": BOUND, "o": 2 * BOUND, "o_rounded": 5e-3}
WINDOW = 8
CYCLE = (3, 6, 9)
"""Pending rows at the steps of a cycle that accept three rows each: the last one finds the window full and flushes."""

PREPARES = ((1, 64), (1, 128), (2, 128), (4, 128), (4, 256), (8, 256))
"""(warps, columns) of the first phase to try."""
APPLIES = (
    (64, 64, 4, 3), (64, 64, 4, 2), (64, 32, 4, 4), (64, 32, 4, 3), (64, 128, 4, 2), (32, 64, 4, 3), (128, 32, 4, 3),
    (128, 32, 8, 3), (16, 128, 2, 3),
)  # fmt: skip
"""(rows of the state, columns, warps, stages) of the second phase to try."""
WHOLES = ((16, 64, 4), (16, 128, 4), (16, 128, 8), (32, 64, 4), (32, 128, 4))
"""(rows of the state, columns, warps) of one program for both phases to try."""


def config_of(prepare: tuple[int, int], apply: tuple[int, int, int, int]) -> TreeConfig:
    """Both phases' choices together."""
    return TreeConfig(*apply, prepare_warps=prepare[0], prepare_bk=prepare[1])


def wholes(geometry: Geometry, nodes: int, batch: int) -> list[TreeConfig]:
    """Choices of one program for both phases, where there are few sequences and nodes."""
    few = geometry.value_heads * batch <= 64 and nodes <= 32
    return [TreeConfig(*choice, 1, whole=True) for choice in WHOLES if few and choice[1] <= geometry.keys]


def table_config(geometry: Geometry, nodes: int, batch: int, waiting: bool) -> TreeConfig:
    """What the table holds for a case."""
    return tree_config(geometry.keys, geometry.values, power_of_two(nodes, 16), batch * geometry.value_heads, waiting)


def tree_calls(many: Sequence[Inputs], mask: Tensor | None, pending: Sequence[Pending | None],
               config: TreeConfig) -> Calls:  # fmt: skip
    """A call per input set."""
    return [
        partial(launch_tree, one.state, one.rows, mask, *outputs_of(one.state, one.rows), waiting, None, config)
        for one, waiting in zip(many, pending, strict=True)
    ]


def tree_errors(one: Inputs, mask: Tensor | None, pending: Pending | None, config: TreeConfig,
                expected: tuple[Tensor, Tensor]) -> dict[str, float]:  # fmt: skip
    """Errors of u, of o, and of o before it is rounded; and of the state where pending factors are folded."""
    state = one.state.clone()
    o, u = outputs_of(state, one.rows)
    wide = o.float()
    poison(o, wide, u)
    launch_tree(state, one.rows, mask, wide, u, pending, None, config)
    found = {"u": error(u, expected[1], one.scale), "o": error(wide, expected[0])}
    if pending is not None:
        due = int(pending.count[0]) >= max(pending.window, 1)
        found["state"] = error(state, folded(one, pending) if due else one.state)
    launch_tree(one.state.clone(), one.rows, mask, o, u, pending, None, config)
    return found | {"o_rounded": error(o, expected[0])}


def phases(many: Sequence[Inputs], mask: Tensor, config: TreeConfig) -> Row:
    """Microseconds of each phase alone, where there are two."""
    if config.whole:
        return {}
    works = [workspace(one.state, one.rows.v.shape[1]) for one in many]
    first = [
        partial(launch_prepare, one.state, one.rows, mask, work, None, config)
        for one, work in zip(many, works, strict=True)
    ]
    second = [
        partial(launch_apply, one.state, one.rows, work, *outputs_of(one.state, one.rows), None, config)
        for one, work in zip(many, works, strict=True)
    ]
    return {"prepare_us": round(timed(first).us, 2), "apply_us": round(timed(second).us, 2)}


def tree_rows(geometry: Geometry, nodes: int, batch: int, configs: Sequence[TreeConfig]) -> Iterator[Row]:
    """A row per configuration of a tree verify, all phases counted."""
    many = many_inputs(geometry, batch, nodes)
    parent_row, mask = random_tree(batch, nodes)
    expected = exact(many[0], parent_row, mask)
    for config in configs:
        label = {"geometry": geometry.name, "nodes": nodes, "batch": batch, "config": repr(config)}
        yield checked(
            label,
            partial(tree_errors, many[0], mask, None, config, expected),
            BOUNDS,
            partial(tree_calls, many, mask, [None] * len(many), config),
            geometry.state_bytes(batch),
        )


def tree_part() -> Iterator[Row]:
    """Tree verify with the table's configuration; of two phases each alone, and three pieces of the state."""
    for geometry, nodes in POINTS:
        for batch in BATCHES:
            config = table_config(geometry, nodes, batch, False)
            for row in tree_rows(geometry, nodes, batch, [config]):
                many = many_inputs(geometry, batch, nodes)
                yield row | phases(many, random_tree(batch, nodes)[1], config)
            # Both phases in one program with three pieces of 32 nodes take the compiler more than 40 s.
            for row in tree_rows(geometry, nodes, batch, [] if config.whole else [replace(config, pieces=3)]):
                yield row | {"pieces": 3, "variant": "three pieces"}


def pending_rows(geometry: Geometry, batch: int, config: TreeConfig, waiting: int, window: int) -> Row:
    """Verify with factors pending: folded and written back where count >= window, else read as further ancestors."""
    many = many_inputs(geometry, batch, 16)
    parent_row, mask = random_tree(batch, 16)
    behind = pending_of(geometry, many[0], waiting, window)
    start = Inputs(folded(many[0], behind), many[0].rows)
    expected = exact(start, parent_row, mask)
    label = {"geometry": geometry.name, "nodes": 16, "batch": batch, "pending": waiting, "window": window}
    moved = geometry.state_bytes(batch) * (2 if waiting >= window else 1)
    return checked(
        label | {"config": repr(config)},
        partial(tree_errors, many[0], mask, behind, config, expected),
        BOUNDS | {"state": BOUND},
        partial(tree_calls, many, mask, [behind] * len(many), config),
        moved,
    )


def separate(many: Sequence[Inputs], mask: Tensor, pending: Pending, config: TreeConfig) -> float:
    """Microseconds of a verify and a commit of the same factors as two calls."""
    batch = many[0].state.shape[0]
    path = in_order(batch, pending.k.shape[1])
    verifies = tree_calls(many, mask, [None] * len(many), config)

    def both(verify: Callable[[], Any], one: Inputs) -> None:
        launch_rank_n(one.state, one.state, pending.k, pending.u, pending.g, path, pending.count)
        verify()

    return timed([partial(both, *pair) for pair in zip(verifies, many, strict=True)]).us


def cycle_us(many: Sequence[Inputs], mask: Tensor, waiting: Sequence[Pending], config: TreeConfig) -> float:
    """Microseconds per step of a cycle of steps whose last one is due."""
    kinds = [waiting[i % len(waiting)] for i in range(len(many) * len(waiting))]
    return timed(tree_calls(list(many) * len(waiting), mask, kinds, config)).us


def pending_part(geometries: Sequence[Geometry] = GEOMETRIES, batches: Sequence[int] = BATCHES) -> Iterator[Row]:
    """Deferred (8 and 4 factors folded in each step) and windowed commits, beside verify + commit."""
    for geometry in geometries:
        for batch in batches:
            config, plain = (table_config(geometry, 16, batch, waiting) for waiting in (True, False))
            many, mask = many_inputs(geometry, batch, 16), random_tree(batch, 16)[1]
            for waiting in (8, 4):
                row = pending_rows(geometry, batch, config, waiting, 1)
                apart = separate(many, mask, pending_of(geometry, many[0], waiting, 1), plain)
                yield {"kind": "deferred", **row, "verify_and_commit_us": round(apart, 2)}
            row = pending_rows(geometry, batch, config, CYCLE[1], WINDOW)
            counts = [pending_of(geometry, many[0], count, WINDOW) for count in CYCLE]
            apart = separate(many, mask, pending_of(geometry, many[0], CYCLE[0], 1), plain)
            yield {
                "kind": "windowed", **row, "read_only_us": row.get("us"),
                "us": round(cycle_us(many, mask, counts, config), 2), "verify_and_commit_us": round(apart, 2),
            }  # fmt: skip


def search(geometry: Geometry, nodes: int, batch: int) -> Iterator[Row]:
    """Times of each phase alone over its choices, then of the best of both together."""
    many, mask = many_inputs(geometry, batch, nodes), random_tree(batch, nodes)[1]
    first, second = dict[tuple[int, int], float](), dict[tuple[int, int, int, int], float]()
    for prepare in PREPARES:
        first[prepare] = phases(many, mask, config_of(prepare, APPLIES[0]))["prepare_us"]
    for apply in APPLIES:
        second[apply] = phases(many, mask, config_of(PREPARES[1], apply))["apply_us"]
    best = [config_of(p, a) for p in sorted(first, key=first.__getitem__)[:3]
            for a in sorted(second, key=second.__getitem__)[:4]]  # fmt: skip
    best += wholes(geometry, nodes, batch)
    for row in tree_rows(geometry, nodes, batch, best):
        yield row | {"floor_us": round(geometry.state_bytes(batch) / RATE * 1e6, 2)}


def warm(geometry: Geometry, nodes: int, config: TreeConfig, waiting: bool, wide: bool) -> None:
    """Compiles what a configuration needs (in a process of its own: compiled kernels are kept on disk)."""
    one = inputs(geometry, 1, nodes)
    o, u = outputs_of(one.state, one.rows)
    pending = pending_of(geometry, one, WINDOW, 1) if waiting else None
    mask = random_tree(1, nodes)[1]
    launch_tree(one.state, one.rows, mask, o.float() if wide else o, u, pending, None, config)
    torch.cuda.synchronize()


def jobs(part: str) -> list[partial[None]]:
    """What to compile before a part."""
    if part == "search":
        every = [config_of(p, APPLIES[0]) for p in PREPARES] + [config_of(PREPARES[1], a) for a in APPLIES]
        return [partial(warm, g, n, config, False, False) for g, n in POINTS for config in (*every, *wholes(g, n, 1))]
    waiting = part == "pending"
    found = [
        (geometry, nodes, config, waiting, wide)
        for geometry, nodes in (((g, 16) for g in GEOMETRIES) if waiting else POINTS)
        for batch in BATCHES
        for config in (table_config(geometry, nodes, batch, waiting),)
        for wide in (False, True)
    ]
    found += [(g, n, replace(c, pieces=3), w, x) for g, n, c, w, x in found if not waiting and not c.whole]
    found += [(g, n, table_config(g, n, batch, False), False, False) for g, n, *_ in found for batch in BATCHES]
    return [partial(warm, *one) for one in dict.fromkeys(found)]
