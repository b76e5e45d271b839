"""Cases for `kernels_delta` that compare verify schedules by shape of tree, and what `auto` takes.

From their rows comes the table of times that `auto` looks up (`specc.bench.schedule_points`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from specc.backends.triton.ops.delta_launch import heavy_light, launch_tree, outputs_of, paths_of
from specc.backends.triton.ops.delta_verify import (
    states_chain,
    states_hybrid,
    states_replay,
    states_serial,
    states_tree,
    table_of,
)
from specc.bench.delta_inputs import (
    BATCHES,
    BOUND,
    GEOMETRIES,
    Geometry,
    Inputs,
    comb,
    exact,
    inputs,
    many_inputs,
    ranked,
    tree_of,
)
from specc.bench.delta_walk_cases import walk_calls, walked
from specc.bench.gpu_timing import RATE, Row, error, timed
from specc.ir import ops
from specc.passes.select_schedule.cost import Case, estimate
from specc.passes.select_schedule.measured import Sizes
from specc.passes.select_schedule.tiles import SCHEDULES, Schedule, chain_rows

SHAPES: Mapping[str, list[int]] = {
    "chain 16": chain_rows(16),
    "top 2, depth 12, 16 nodes": ranked(2, 12, 16),
    "top 4, depth 4, 32 nodes": ranked(4, 4, 32),
    "top 4, depth 6, 16 nodes": ranked(4, 6, 16),
    "binary, depth 4": [0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7],
    "4 branches of 4": comb(4, 4),
    "2 branches of 8": comb(2, 8),
    "spine 8 with a leaf at each node": [0, 1, 1, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12, 14],
    "spine 4, then 12 leaves": [0, 1, 2, 3] + [4] * 12,
}
SMALL: Mapping[str, list[int]] = {
    "chain 2": chain_rows(2),
    "chain 4": chain_rows(4),
    "chain 8": chain_rows(8),
    "root with 3 leaves": [0, 1, 1, 1],
    "binary, depth 3": [0, 1, 1, 2, 2, 3, 3],
}
"""Drafts of few tokens, where going token by token may pay."""
ALL: Mapping[str, list[int]] = {**SMALL, **SHAPES}
FEW = ("chain 2", "chain 4", "chain 8", "chain 16", "binary, depth 3", "top 4, depth 6, 16 nodes")
MEASURED: Mapping[int, Sequence[str]] = {
    1: tuple(ALL),
    8: (*FEW, "root with 3 leaves", "top 2, depth 12, 16 nodes", "top 4, depth 4, 32 nodes"),
    32: FEW,
}
"""Shapes by sequences."""
STATES: Sequence[tuple[int, str]] = (
    *((1, name) for name in ("chain 2", "chain 4", "chain 16", "binary, depth 3", "top 4, depth 6, 16 nodes")),
    *((batch, name) for batch in (8, 32) for name in ("chain 4", "binary, depth 3", "top 4, depth 6, 16 nodes")),
)
"""(sequences, shape) of verify with every node's state."""


def cases(geometry: Geometry) -> Iterator[tuple[Geometry, int, str]]:
    """Geometry, sequences and shape of everything that is verified without keeping states."""
    for batch in BATCHES:
        for name in MEASURED[batch]:
            yield geometry, batch, name


def hybrid_part() -> Iterator[Row]:
    """Schedules by shape of tree: the walk in heavy-light and in serial order, replay by leaves, and the tree form."""
    for one in GEOMETRIES:
        for geometry, batch, name in cases(one):
            label = {"geometry": geometry.name, "batch": batch, "nodes": len(ALL[name]), "shape": name}
            yield label | shape_row(geometry, batch, ALL[name])


def shape_row(geometry: Geometry, batch: int, parents: list[int]) -> Row:
    """Microseconds of each schedule for one shape of tree in all sequences; the choice of `auto` and what it costs."""
    many = many_inputs(geometry, batch, len(parents))
    parent_row, mask = tree_of([parents] * batch)
    hybrid, serial, replay = walk_kinds(many[0], parents, parent_row, mask)
    paths, counts = paths_of(mask, True)
    leaves = [leaf for leaf, count in enumerate(counts[0].tolist()) if count]
    one = many[0]
    results = [walked(one, None, **extra)[1] for extra in (hybrid, serial, replay)]
    expected = exact(one, parent_row, mask)[1]
    wrong = error(results[0], expected, one.scale)
    row: Row = {
        "errors": {"u": wrong},
        "wrong": not (wrong <= BOUND and all(torch.equal(results[0], other) for other in results)),
        "leaves": len(leaves),
        "order_us": round(timed([partial(heavy_light, parent_row, mask)] * 8).us, 2),
        "hybrid_us": round(timed(walk_calls(many, None, **hybrid)).us, 2),
        "serial_us": round(timed(walk_calls(many, None, **serial)).us, 2),
        "replay_leaf_parallel_us": round(timed(walk_calls(many, None, **replay)).us, 2),
        "replay_leaf_by_leaf_us": round(leaf_by_leaf(many, paths, leaves), 2),
        "tree_us": round(timed([
            partial(launch_tree, x.state, x.rows, mask, *outputs_of(x.state, x.rows)) for x in many
        ]).us, 2),
    }  # fmt: skip
    row["us"] = row["hybrid_us"]
    row["hybrid_over_replay"] = round(row["replay_leaf_by_leaf_us"] / row["hybrid_us"], 2)
    return row | automatic(geometry, batch, parents, False, schedule_times(row))


def walk_kinds(one: Inputs, parents: list[int], parent_row: Tensor, mask: Tensor) -> tuple[dict[str, Any], ...]:
    """What hybrid, serial and replay tell the walk."""
    tree: dict[str, Any] = {"parent_row": parent_row, "table": table_of(one.state, parent_row)}
    # A chain spec's serial walk takes no tree at all.
    serial: dict[str, Any] = {} if parents == chain_rows(len(parents)) else tree
    return {"order": heavy_light(parent_row, mask), **tree}, serial, {"order": paths_of(mask, True)[0]}


def leaf_by_leaf(many: Sequence[Inputs], paths: Tensor, leaves: Sequence[int]) -> float:
    """Microseconds of the baseline: a launch per leaf, one after the other, each with the state in registers."""
    orders = [paths[:, leaf].contiguous() for leaf in leaves]
    each = [walk_calls(many, None, order=order) for order in orders]
    return timed([call for calls in zip(*each, strict=True) for call in calls]).us * len(leaves)


def schedule_times(row: Row) -> dict[Schedule, float]:
    """Microseconds of each schedule in a shape's row, with the order that the walk needs."""
    return {
        "tree": row["tree_us"],
        "serial": row["serial_us"],
        "hybrid": row["hybrid_us"] + row["order_us"],
        "replay": row["replay_leaf_parallel_us"] + row["order_us"],
    }


def automatic(geometry: Geometry, batch: int, parents: Sequence[int], keep: bool,
              times: Mapping[Schedule, float]) -> Row:  # fmt: skip
    """What `auto` takes, and its measured time over the best one's."""
    sizes = Sizes(geometry.heads, geometry.value_heads, geometry.keys, geometry.values)
    case = Case(sizes, batch, tuple(parents), keep)
    taken = min(SCHEDULES, key=lambda schedule: estimate(schedule, case, "h200").microseconds)
    return {"auto": taken, "auto_over_best": round(times[taken] / min(times.values()), 3)}


def states_part(geometries: Sequence[Geometry] = GEOMETRIES,
                points: Sequence[tuple[int, str]] = STATES) -> Iterator[Row]:  # fmt: skip
    """Verify that also writes every node's state (`commit.state: snapshots`): a row per schedule."""
    for geometry in geometries:
        for batch, name in points:
            parents = ALL[name]
            label = {"geometry": geometry.name, "batch": batch, "nodes": len(parents), "shape": name}
            read = round(geometry.state_bytes(batch) * (1 + len(parents)) / RATE * 1e6, 2)
            rows = list(states_rows(geometry, batch, parents))
            taken = automatic(geometry, batch, parents, True, {row["schedule"]: row["us"] for row in rows})
            for row in rows:
                yield label | {"read_us": read} | row | taken


Kept = tuple[Callable[..., Any], tuple[Tensor, ...]]


def state_kinds(parents: list[int], parent_row: Tensor, mask: Tensor) -> Mapping[Schedule, Kept]:
    """The call of each schedule that keeps states, and its last operands."""
    chain = parents == chain_rows(len(parents))
    return {
        "serial": (states_chain, ()) if chain else (states_serial, (parent_row,)),
        "hybrid": (states_hybrid, (parent_row, mask)),
        "replay": (states_replay, (mask,)),
        "tree": (states_tree, (mask,)),
    }


def states_rows(geometry: Geometry, batch: int, parents: list[int]) -> Iterator[Row]:
    """A row per schedule for one shape."""
    parent_row, mask = tree_of([parents] * batch)
    many = many_inputs(geometry, batch, len(parents))[:2]
    expected = ops.delta_rule_verify_states(*(x[:1] for x in (*many[0].wide, parent_row, mask)), "serial")
    for schedule, (call, last) in state_kinds(parents, parent_row, mask).items():
        calls = [partial(call, one.state, *one.rows, *last) for one in many]
        _, u, states = calls[0]()
        found = {"u": error(u[:1], expected[1], many[0].scale[:1]), "states": error(states[:1], expected[2])}
        del states
        yield {
            "schedule": schedule, "errors": found, "wrong": not all(value <= BOUND for value in found.values()),
            "us": round(timed(calls).us, 2),
        }  # fmt: skip


def warm(geometry: Geometry, batch: int, name: str) -> None:
    """Compiles what a case needs (in a process of its own: compiled kernels are kept on disk)."""
    parents = ALL[name]
    one, (parent_row, mask) = inputs(geometry, batch, len(parents)), tree_of([parents] * batch)
    for extra in walk_kinds(one, parents, parent_row, mask):
        walked(one, None, **extra)
    walked(one, None, order=paths_of(mask, True)[0][:, 0].contiguous())
    launch_tree(one.state, one.rows, mask, *outputs_of(one.state, one.rows))
    if (batch, name) in STATES:
        for call, last in state_kinds(parents, parent_row, mask).values():
            call(one.state, *one.rows, *last)
    torch.cuda.synchronize()


def jobs() -> list[partial[None]]:
    """What to compile before the parts of this file."""
    return [partial(warm, *case) for geometry in GEOMETRIES for case in cases(geometry)]
