"""Cases for `kernels_delta` that go token by token: chains and plain decoding, commits, and the convolution."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from specc.backends.triton.ops import conv
from specc.backends.triton.ops.delta_launch import (
    launch_rank_n,
    launch_steps,
    launch_walk,
    outputs_of,
)
from specc.backends.triton.ops.delta_tables import FORKED, SINGLE, WALK, WalkConfig, walk_config
from specc.backends.triton.ops.delta_verify import table_of
from specc.bench.delta_inputs import (
    BATCHES,
    BOUND,
    GEOMETRIES,
    Geometry,
    Inputs,
    exact,
    in_order,
    inputs,
    many_inputs,
    random_tree,
)
from specc.bench.gpu_timing import RATE, Row, checked, error, sets_for, timed
from specc.ir import ops

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
