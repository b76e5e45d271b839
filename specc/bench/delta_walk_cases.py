"""Cases for `kernels_delta` that go token by token: chains and plain decoding, schedules by shape of tree, commits, and
the convolution."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from specc.backends.triton.ops import conv
from specc.backends.triton.ops.delta_launch import (
    heavy_light,
    launch_rank_n,
    launch_steps,
    launch_tree,
    launch_walk,
    outputs_of,
    paths_of,
)
from specc.backends.triton.ops.delta_tables import FORKED, SINGLE, WALK, WalkConfig, walk_config
from specc.backends.triton.ops.delta_verify import states_serial, states_tree, table_of
from specc.bench.delta_inputs import (
    BATCHES,
    BOUND,
    GEOMETRIES,
    Geometry,
    Inputs,
    comb,
    exact,
    in_order,
    inputs,
    many_inputs,
    random_tree,
    ranked,
    tree_of,
)
from specc.bench.gpu_timing import RATE, Row, checked, error, sets_for, timed
from specc.ir import ops
from specc.passes.select_schedule.cost import Case, estimate
from specc.passes.select_schedule.measured import Sizes
from specc.passes.select_schedule.tiles import SCHEDULES

Calls = list[Callable[[], Any]]
BOUNDS = {"u": BOUND, "o": 2 * BOUND, "bits": 0.0}


def walks(geometry: Geometry) -> tuple[WalkConfig, ...]:
    """The tables' configurations: they have one order of sums."""
    sizes = geometry.keys, geometry.values
    found = [config for table in (WALK, FORKED) for _, config in table[sizes]]
    return tuple(dict.fromkeys([*found, SINGLE[sizes]]))


def walk_calls(many: Sequence[Inputs], config: WalkConfig | None = None, **extra: Any) -> Calls:
    """A walk per input set."""
    return [
        partial(launch_walk, one.state, one.rows, *outputs_of(one.state, one.rows), config=config, **extra)
        for one in many
    ]


def plain_calls(many: Sequence[Inputs], config: WalkConfig | None = None) -> Calls:
    """One token of plain decoding per input set: the state is read and written."""
    first = [one.part(slice(1)) for one in many]
    return [walk_calls([one], config, after=one.state)[0] for one in first]


def walked(one: Inputs, config: WalkConfig | None, wide: bool = False, **extra: Any) -> tuple[Tensor, Tensor]:
    """(o, u) of a walk; o in float32 if wide."""
    o, u = outputs_of(one.state, one.rows)
    o = o.float() if wide else o
    launch_walk(one.state, one.rows, o, u, config=config, **extra)
    return o, u


def chain_errors(one: Inputs, config: WalkConfig, expected: tuple[Tensor, Tensor]) -> dict[str, float]:
    """Errors of u and of o before it is rounded, and in how many numbers a chain differs from single tokens."""
    o, u = walked(one, config, True)
    own, wrong = Inputs(one.state.clone(), one.rows), 0
    heads, values, keys = own.state.shape[1:]
    for at in range(u.shape[1]):
        part = own.part(slice(at, at + 1))
        _, single = walked(part, walk_config(keys, values, heads, True), after=own.state)
        wrong += int((single[:, 0] != u[:, at]).sum())
    return {"u": error(u, expected[1], one.scale), "o": error(o, expected[0]), "bits": float(wrong)}


def serial_part() -> Iterator[Row]:
    """A chain of 16 tokens, verified only (no state is written), and one token of plain decoding."""
    for geometry in GEOMETRIES:
        for batch in BATCHES:
            many = many_inputs(geometry, batch, 16)
            original, expected = many[0].state.clone(), exact(many[0], None, None)
            for config in walks(geometry):
                many[0].state.copy_(original)
                table = walk_config(geometry.keys, geometry.values, batch * geometry.value_heads)
                label = {"geometry": geometry.name, "nodes": 16, "batch": batch, "config": repr(config)}
                row = checked(
                    label | {"table": config == table},
                    partial(chain_errors, many[0], config, expected),
                    BOUNDS,
                    partial(walk_calls, many, config),
                    geometry.state_bytes(batch),
                )
                # The table has a configuration of its own for single tokens.
                plain = plain_calls(many, None if config == table else config)
                yield row | {"plain_token_us": round(timed(plain).us, 2)}


SHAPES: Mapping[str, list[int]] = {
    "chain 16": list(range(16)),
    "top 2, depth 12, 16 nodes": ranked(2, 12, 16),
    "top 4, depth 4, 32 nodes": ranked(4, 4, 32),
    "top 4, depth 6, 16 nodes": ranked(4, 6, 16),
    "binary, depth 4": [0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7],
    "4 branches of 4": comb(4, 4),
    "2 branches of 8": comb(2, 8),
    "spine 8 with a leaf at each node": [0, 1, 1, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12, 14],
    "spine 4, then 12 leaves": [0, 1, 2, 3] + [4] * 12,
}


def hybrid_part() -> Iterator[Row]:
    """Schedules by shape of tree: the walk in heavy-light and in serial order, replay by leaves, and the tree form."""
    for geometry in GEOMETRIES:
        for batch in BATCHES[:2]:
            for name, parents in SHAPES.items():
                yield {"geometry": geometry.name, "batch": batch, "nodes": len(parents), "shape": name} | shape_row(
                    geometry, batch, parents
                )


def shape_row(geometry: Geometry, batch: int, parents: list[int]) -> Row:
    """Microseconds of each schedule for one shape of tree in all sequences; the choice of `auto` and what it costs."""
    many = many_inputs(geometry, batch, len(parents))
    parent_row, mask = tree_of([parents] * batch)
    one, tree = many[0], {"parent_row": parent_row, "table": table_of(many[0].state, parent_row)}
    order, (paths, counts) = heavy_light(parent_row, mask), paths_of(mask, True)
    leaves = [leaf for leaf, count in enumerate(counts[0].tolist()) if count]
    kinds: tuple[dict[str, Any], ...] = ({"order": order, **tree}, tree, {"order": paths})
    results = [walked(one, None, **extra)[1] for extra in kinds]
    expected = exact(one, parent_row, mask)[1]
    wrong = error(results[0], expected, one.scale)
    row: Row = {
        "errors": {"u": wrong},
        "wrong": not (wrong <= BOUND and all(torch.equal(results[0], other) for other in results)),
        "leaves": len(leaves),
        "order_us": round(timed([partial(heavy_light, parent_row, mask)] * 8).us, 2),
        "hybrid_us": round(timed(walk_calls(many, None, order=order, **tree)).us, 2),
        "serial_us": round(timed(walk_calls(many, None, **tree)).us, 2),
        "replay_leaf_parallel_us": round(timed(walk_calls(many, None, order=paths)).us, 2),
        "replay_leaf_by_leaf_us": round(leaf_by_leaf(many, paths, leaves), 2),
        "tree_us": round(timed([
            partial(launch_tree, x.state, x.rows, mask, *outputs_of(x.state, x.rows)) for x in many
        ]).us, 2),
    }  # fmt: skip
    row["us"] = row["hybrid_us"]
    row["hybrid_over_replay"] = round(row["replay_leaf_by_leaf_us"] / row["hybrid_us"], 2)
    return row | automatic(geometry, batch, parents, row)


def leaf_by_leaf(many: Sequence[Inputs], paths: Tensor, leaves: Sequence[int]) -> float:
    """Microseconds of the baseline: a launch per leaf, one after the other, each with the state in registers."""
    orders = [paths[:, leaf].contiguous() for leaf in leaves]
    each = [walk_calls(many, None, order=order) for order in orders]
    return timed([call for calls in zip(*each, strict=True) for call in calls]).us * len(leaves)


def automatic(geometry: Geometry, batch: int, parents: Sequence[int], row: Row) -> Row:
    """What `auto` takes, and its measured time over the best one's. Orders that the walk needs are counted."""
    sizes = Sizes(geometry.heads, geometry.value_heads, geometry.keys, geometry.values)
    case = Case(sizes, batch, tuple(parents), False)
    times = {
        "tree": row["tree_us"],
        "serial": row["serial_us"],
        "hybrid": row["hybrid_us"] + row["order_us"],
        "replay": row["replay_leaf_parallel_us"] + row["order_us"],
    }
    taken = min(SCHEDULES, key=lambda schedule: estimate(schedule, case, "h200").microseconds)
    return {"auto": taken, "auto_over_best": round(times[taken] / min(times.values()), 3)}


STATES = ((1, 8), (1, 16), (8, 16), (32, 16))
"""(batch, nodes) of verify with every node's state."""


def states_part(geometries: Sequence[Geometry] = GEOMETRIES,
                points: Sequence[tuple[int, int]] = STATES) -> Iterator[Row]:  # fmt: skip
    """Verify that also writes every node's state (`commit.state: snapshots`)."""
    for geometry in geometries:
        for batch, nodes in points:
            parent_row, mask = random_tree(batch, nodes)
            many = many_inputs(geometry, batch, nodes)[:2]
            for name, call, last in (("serial", states_serial, parent_row), ("tree", states_tree, mask)):
                calls = [partial(call, one.state, *one.rows, last) for one in many]
                _, u, states = calls[0]()
                expected = ops.delta_rule_verify_states(*(x[:1] for x in (*many[0].wide, parent_row, mask)), "serial")
                found = {"u": error(u[:1], expected[1], many[0].scale[:1]), "states": error(states[:1], expected[2])}
                yield {
                    "geometry": geometry.name, "nodes": nodes, "batch": batch, "schedule": name, "errors": found,
                    "wrong": not all(value <= BOUND for value in found.values()),
                    "read_us": round(geometry.state_bytes(batch) * (1 + nodes) / RATE * 1e6, 2),
                    "us": round(timed(calls).us, 2),
                }  # fmt: skip
                del states


ACCEPTED = (5,)
PATH = (0, 2, 3, 5, 8, 9, 11, 14)


def commit_part(geometries: Sequence[Geometry] = GEOMETRIES, batches: Sequence[int] = BATCHES,
                accepted: Sequence[int] = ACCEPTED) -> Iterator[Row]:  # fmt: skip
    """All layers' states after some accepted nodes (at most 8): from factors, and by running the rule again."""
    for geometry in geometries:
        for batch in batches:
            layers = geometry.layers if batch < 32 else geometry.layers // 3
            flat = inputs(geometry, layers * batch, 16)
            for rows in accepted:
                label = {"geometry": geometry.name, "batch": batch, "layers": layers, "rows": rows}
                label["read_us"] = round(2 * geometry.state_bytes(batch * layers) / RATE * 1e6, 2)
                yield from factor_rows(label, flat, batch, layers)
                yield from replay_rows(label, flat, batch, layers)


def factor_rows(label: Row, flat: Inputs, batch: int, layers: int) -> Iterator[Row]:
    """Both forms of the commit, in place."""
    path = torch.tensor(PATH, device="cuda").expand(batch, -1).contiguous()
    count = torch.full((batch,), label["rows"], device="cuda")
    u = torch.randn(flat.rows.v.shape, device="cuda")
    shape = (layers, batch)
    k, us, g = (x.view(*shape, *x.shape[1:]) for x in (flat.rows.k, u, flat.rows.g))
    state = flat.state.view(*shape, *flat.state.shape[1:])
    for name, make in (("rank_n", launch_rank_n), ("steps", launch_steps)):
        after = torch.empty_like(state)
        make(state, after, k, us, g, path, count)
        expected = ops.delta_rule_commit(*(x[-1].double() for x in (state, k, us, g)), path, count, "steps")
        wrong = error(after[-1], expected)
        del after
        row = label | {"form": name, "errors": {"state": wrong}, "wrong": not wrong < BOUND}
        yield row if row["wrong"] else row | timed([partial(make, state, state, k, us, g, path, count)] * 4).row()


def replay_rows(label: Row, flat: Inputs, batch: int, layers: int) -> Iterator[Row]:
    """Replaying the accepted tokens: all layers and tokens in one launch; a launch per layer and token."""
    tokens = flat.part(slice(label["rows"]))
    one = walk_calls([tokens], after=flat.state) * 4
    yield label | {"form": "replay, one launch", "us": round(timed(one).us, 2)}
    calls: Calls = []
    for layer in range(layers):
        part = slice(layer * batch, (layer + 1) * batch)
        for at in range(label["rows"]):
            token = flat.part(slice(at, at + 1), part)
            calls += walk_calls([token], after=token.state)
    yield label | {"form": "replay, a launch per layer and token", "us": round(timed(calls).us * len(calls), 2)}


def conv_part() -> Iterator[Row]:
    """tree_conv of 16 nodes, and the windows of one layer."""
    for geometry in GEOMETRIES:
        channels = 2 * geometry.heads * geometry.keys + geometry.value_heads * geometry.values
        weight = torch.randn(channels, 1, 4, device="cuda").bfloat16()
        for batch in BATCHES:
            parent_row, _ = random_tree(batch, 16)
            moved = 2 * 2 * batch * 19 * channels
            rows = [torch.randn(batch, 19, channels, device="cuda").bfloat16() for _ in range(sets_for(moved, 200))]
            many = [(x[:, :3].contiguous(), x[:, 3:].contiguous()) for x in rows]
            y = conv.tree_conv(*many[0], weight, None, parent_row)
            expected = ops.tree_conv(*(x.double() for x in (*many[0], weight)), None, parent_row)
            path, count = in_order(batch, 5), torch.full((batch,), 3, device="cuda")
            wrong = error(y, expected)
            calls = [partial(conv.tree_conv, *one, weight, None, parent_row) for one in many]
            windows = [partial(conv.next_window, window, x, path, count, window) for window, x in many]
            yield {
                "geometry": geometry.name, "nodes": 16, "batch": batch, "channels": channels,
                "errors": {"y": wrong}, "wrong": not wrong <= 5e-3, "read_us": round(moved / RATE * 1e6, 2),
                "us": round(timed(calls).us, 2), "conv_commit_us": round(timed(windows).us, 2),
            }  # fmt: skip


def warm(geometry: Geometry, config: WalkConfig) -> None:
    """Compiles what chains and trees need (in a process of its own: compiled kernels are kept on disk)."""
    one = inputs(geometry, 1, 16)
    parent_row, _ = random_tree(1, 16)
    tree = {"parent_row": parent_row, "table": table_of(one.state, parent_row)}
    order = torch.arange(16, dtype=torch.int32, device="cuda").view(1, 16)
    for extra in ({}, {"after": one.state}, {"order": order, **tree}, tree, {"order": order}):
        walked(one, config, False, **extra)
    walked(one, config, True)
    walked(one.part(slice(1)), config, after=one.state)
    torch.cuda.synchronize()


def jobs() -> list[partial[None]]:
    """What to compile before the parts of this file."""
    return [partial(warm, geometry, config) for geometry in GEOMETRIES for config in walks(geometry)]
