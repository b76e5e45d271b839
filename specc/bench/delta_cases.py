"""What `kernels_delta` measures: for each part the cases, the configurations tried, their checks and their floors."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from specc.backends.triton.launch.commit import rank_n_launch, steps_launch
from specc.backends.triton.launch.configs import TreeConfig, WalkConfig, tree_config, walk_config
from specc.backends.triton.launch.conv import conv_launch, window_launch
from specc.backends.triton.launch.core import Launch, power_of_two, run_all
from specc.backends.triton.launch.delta import leaf_paths, order_launch, tree_launches, walk_launch
from specc.backends.triton.launch.rows import Pending, Rows
from specc.bench.delta_timing import (
    BOUND,
    RATE,
    Geometry,
    Inputs,
    error,
    inputs,
    random_tree,
    sets_for,
    timed,
    tree_of,
)
from specc.ir import ops

Row = dict[str, Any]
GDN = Geometry("gdn-1.3b", 8, 8, 256, 256, 24)
QWEN = Geometry("qwen3-next", 16, 32, 128, 128, 36)
GEOMETRIES = (GDN, QWEN)
BATCHES = (1, 8, 32)
PENDING = 8
WORKERS = 14

FUSED = (
    TreeConfig(fused=True, bv=16, bk=64, warps=4, stages=4),
    TreeConfig(fused=True, bv=16, bk=64, warps=2, stages=4),
    TreeConfig(fused=True, bv=16, bk=64, warps=1, stages=4),
)
PHASES = (
    TreeConfig(fused=False, bv=32, bk=64, warps=4, stages=3),
    TreeConfig(fused=False, bv=64, bk=64, warps=4, stages=2),
    TreeConfig(fused=False, bv=64, bk=32, warps=4, stages=4),
    TreeConfig(fused=False, bv=64, bk=32, warps=4, stages=4, prepare_warps=2),
    TreeConfig(fused=False, bv=64, bk=32, warps=4, stages=4, prepare_warps=2, prepare_bk=64),
    TreeConfig(fused=False, bv=64, bk=32, warps=4, stages=3, prepare_bk=64),
    TreeConfig(fused=False, bv=64, bk=32, warps=4, stages=4, pieces=3),
)
WALKS = (
    WalkConfig(8, 32, 1),
    WalkConfig(16, 32, 1),
    WalkConfig(8, 64, 1),
    WalkConfig(16, 64, 1),
    WalkConfig(16, 32, 2),
)


ALL = slice(None)


def rows_of(one: Inputs, tokens: slice = ALL, part: slice = ALL) -> Rows:
    """Some tokens of some sequences as a kernel's operands; the state is shared, not copied."""
    q, k, v, g, beta = (x[part, tokens] for x in one.all[1:])
    return Rows(one.state[part], q, k, v, g, beta)


def tree_calls(
    config: TreeConfig | None, sets: Sequence[Inputs], mask: torch.Tensor | None, waiting: Pending | None = None,
    wide_o: bool = False,
) -> tuple[list[Callable[[], None]], list[torch.Tensor]]:  # fmt: skip
    """A call per input set, and all their outputs (o, u of each; poisoned)."""
    calls: list[Callable[[], None]] = []
    outputs: list[torch.Tensor] = []
    for one in sets:
        rows = rows_of(one)
        o, u = rows.outputs()
        o = o.float() if wide_o else o
        outputs += [o.fill_(float("nan")), u.fill_(float("nan"))]
        calls.append(partial(run_all, tree_launches(rows, mask, o, u, waiting, config)))
    return calls, outputs


def warm_tree(geometry: Geometry, nodes: int, config: TreeConfig, waiting: bool) -> None:
    """Compiles what a configuration needs (in a process of its own: compiled kernels are kept on disk)."""
    one = inputs(geometry, 1, nodes)
    _, mask = random_tree(1, nodes)
    for wide_o in (False, True):
        calls, _ = tree_calls(config, [one], mask, pending_of(geometry, one, 1) if waiting else None, wide_o)
        calls[0]()
    torch.cuda.synchronize()


def warm_walk(geometry: Geometry, config: WalkConfig) -> None:
    """As `warm_tree`."""
    one = inputs(geometry, 1, 16)
    rows = rows_of(one)
    parent_row, _ = random_tree(1, 16)
    table = one.state.new_empty(1, 17, *one.state.shape[1:])
    order = torch.arange(16, dtype=torch.int32, device="cuda").view(1, 16)
    for extra in ({}, {"after": one.state}, {"parent_row": parent_row, "table": table, "order": order},
                  {"parent_row": parent_row, "table": table}, {"order": order}):  # fmt: skip
        walk_launch(rows, *rows.outputs(), config=config, **extra).run()  # type: ignore[arg-type]
    torch.cuda.synchronize()


def in_parallel(jobs: Sequence[partial[None]]) -> None:
    """Compile side by side; a job that fails is seen again, with its message, when its case is measured."""
    with ProcessPoolExecutor(WORKERS, mp_context=multiprocessing.get_context("spawn")) as pool:
        for future in [pool.submit(job) for job in jobs]:
            future.exception()


def checked(
    label: Row, floor_bytes: float, run: Callable[[bool], tuple[torch.Tensor, torch.Tensor]], one: Inputs,
    expected: tuple[torch.Tensor, torch.Tensor], calls: Callable[[], list[Callable[[], None]]],
) -> Row:  # fmt: skip
    """A row: errors first; the time only of what is right. `run(wide)`: o (float32 if wide), u."""
    row = label | {"read_us": round(floor_bytes / RATE * 1e6, 2)}
    try:
        o, u = run(True)
        scale = one.beta.unsqueeze(-1) * one.v
        row |= {"error_u": error(u, expected[1], scale), "error_o": error(o, expected[0], expected[0])}
        _, again = run(False)
        row["wrong"] = not (row["error_u"] <= BOUND and row["error_o"] <= 2 * BOUND and torch.equal(u, again))
        if not row["wrong"]:
            row["us"] = round(timed(calls()), 2)
    except RuntimeError as failure:
        row |= {"wrong": True, "failed": str(failure).splitlines()[0][:200]}
    return row


def exact(one: Inputs, parent_row: torch.Tensor | None, mask: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """(o, u) in float64: token by token, a depth of the tree at a time in the tree form for big batches."""
    schedule = "serial" if one.state.numel() <= 1 << 22 or mask is None else "tree"
    o, u = ops.delta_rule_verify(*one.wide, parent_row, mask, schedule)
    return o, u


def tree_cases(geometry: Geometry, nodes: int, batch: int, configs: Sequence[TreeConfig], waiting: int = 0,
               window: int = 1) -> Iterator[Row]:  # fmt: skip
    """One row per configuration of a tree verify; with `waiting` factors pending."""
    many = [inputs(geometry, batch, nodes, seed) for seed in range(sets_for(geometry.state_bytes(batch)))]
    parent_row, mask = random_tree(batch, nodes)
    behind = pending_of(geometry, many[0], batch, waiting, window) if waiting else None
    start = many[0] if behind is None else Inputs(folded(many[0], behind), *many[0].all[1:])
    expected = exact(start, parent_row, mask)
    moved = geometry.state_bytes(batch) * (2 if waiting and window == 1 else 1)
    original = many[0].state.clone()

    def run(config: TreeConfig, wide: bool) -> tuple[torch.Tensor, torch.Tensor]:
        # Calls with pending factors, those that were timed too, have written to the state.
        many[0].state.copy_(original)
        calls, outputs = tree_calls(config, many[:1], mask, behind, wide)
        calls[0]()
        return outputs[0], outputs[1]

    table = tree_config(
        geometry.keys, geometry.values, power_of_two(nodes, 16), batch * geometry.value_heads, waiting > 0
    )
    for config in dict.fromkeys([*configs, table]):
        label = {"geometry": geometry.name, "batch": batch, "nodes": nodes, "config": repr(config)}
        label |= {"pending": waiting, "window": window, "table": config == table}

        def calls(config: TreeConfig = config) -> list[Callable[[], None]]:
            return tree_calls(config, many, mask, behind)[0]

        yield checked(label, moved, partial(run, config), many[0], expected, calls)


def tree_part(geometries: Sequence[Geometry]) -> Iterator[Row]:
    """Tree verify, all phases counted."""
    wanted = [(GDN, 32), (GDN, 16), (QWEN, 16)]
    in_parallel([partial(warm_tree, g, n, c, False) for g, n in wanted for c in (*FUSED, *PHASES)])
    for geometry, nodes in [(GDN, 16), (GDN, 32), (GDN, 8), (QWEN, 16)]:
        for batch in BATCHES:
            yield from tree_cases(geometry, nodes, batch, PHASES if batch == 32 else (*FUSED, *PHASES))


def serial_part(geometries: Sequence[Geometry]) -> Iterator[Row]:
    """A chain of 16 tokens, token by token, verify only (no state written); and plain decoding of one token."""
    in_parallel([partial(warm_walk, g, c) for g in geometries for c in WALKS])
    for geometry in geometries:
        for batch in BATCHES:
            many = [inputs(geometry, batch, 16, seed) for seed in range(sets_for(geometry.state_bytes(batch)))]
            expected, original = exact(many[0], None, None), many[0].state.clone()
            for config in WALKS:
                # Single tokens write their states.
                many[0].state.copy_(original)
                label = {"geometry": geometry.name, "batch": batch, "nodes": 16, "config": repr(config)}
                label["table"] = config == walk_config(geometry.keys, geometry.values)
                row = checked(
                    label, geometry.state_bytes(batch), partial(walk_once, many[0], config), many[0], expected,
                    partial(walk_calls, many, config),
                )  # fmt: skip
                yield row | plain_row(many, config)


def walk_calls(many: Sequence[Inputs], config: WalkConfig | None, **extra: Any) -> list[Callable[[], None]]:
    """A walk per input set."""
    return [walk_launch(rows_of(one), *rows_of(one).outputs(), config=config, **extra).run for one in many]


def walk_once(one: Inputs, config: WalkConfig, wide: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """(o, u) of a chain; o in float32 if wide."""
    rows = rows_of(one)
    o, u = rows.outputs()
    o = o.float() if wide else o
    walk_launch(rows, o, u, config=config).run()
    return o, u


def plain_row(many: Sequence[Inputs], config: WalkConfig) -> Row:
    """Whether a chain has the bits of single tokens, and the time of a single token (state read and written)."""
    one = many[0]
    _, u = walk_once(one, config, False)
    own, same = replace(one, state=one.state.clone()), True
    for at in range(16):
        part = rows_of(own, slice(at, at + 1))
        o1, u1 = part.outputs()
        walk_launch(part, o1, u1, after=own.state, config=config).run()
        same = same and torch.equal(u1[:, 0], u[:, at])
    first = [Inputs(x.state, *(y[:, :1] for y in x.all[1:])) for x in many]
    calls = []
    for token in first:
        rows = rows_of(token)
        calls.append(walk_launch(rows, *rows.outputs(), after=token.state, config=config).run)
    return {"bits_equal_plain": same, "plain_token_us": round(timed(calls), 2)}


def pending_of(geometry: Geometry, one: Inputs, batch: int, waiting: int = PENDING, window: int = 1) -> Pending:
    """Factors of `waiting` random tokens along a path in order, all pending."""
    before = inputs(geometry, batch, PENDING, 99)
    _, u, _ = ops.delta_rule(one.state, *before.all[1:])
    count = torch.full((batch,), waiting, dtype=torch.int64, device="cuda")
    path = torch.arange(PENDING, device="cuda").expand(batch, -1).contiguous()
    return Pending(before.k, u, before.g, path, count, window)


def folded(one: Inputs, pending: Pending) -> torch.Tensor:
    """The state with its pending factors, float64."""
    assert pending.path is not None
    wide = [x.double() for x in (one.state, pending.k, pending.u, pending.g)]
    return ops.delta_rule_commit(*wide, pending.path, pending.count, "steps")


def pending_part(geometries: Sequence[Geometry]) -> Iterator[Row]:
    """Verify with 8 pending factors: folded and written back (window 1), or read as further ancestors (window 99)."""
    configs = (PHASES[1], PHASES[2], PHASES[3])
    in_parallel([partial(warm_tree, g, 16, c, True) for g in geometries for c in (*configs, FUSED[0])])
    for geometry in geometries:
        for batch in BATCHES:
            for window in (1, 99):
                chosen = configs if batch == 32 else (*configs, FUSED[0])
                yield from tree_cases(geometry, 16, batch, chosen, PENDING, window)


def commit_part(geometries: Sequence[Geometry]) -> Iterator[Row]:
    """The commit of 5 of 16 nodes in all layers: by factors in one launch, by replaying in one, by one per token."""
    for geometry in geometries:
        for batch in BATCHES:
            layers = geometry.layers if batch < 32 else geometry.layers // 3
            flat = inputs(geometry, layers * batch, 16)
            shape = (layers, batch)
            state, k, g = (x.view(*shape, *x.shape[1:]) for x in (flat.state, flat.k, flat.g))
            u = torch.randn(*shape, 16, geometry.value_heads, geometry.values, device="cuda")
            path = torch.tensor([0, 2, 3, 7, 11, 0, 0, 0, 0], device="cuda").expand(batch, -1).contiguous()
            count = torch.full((batch,), 5, dtype=torch.int64, device="cuda")
            wide = [x[0].double() for x in (state, k, u, g)]
            expected = ops.delta_rule_commit(*wide, path, count, "steps")
            label = {"geometry": geometry.name, "batch": batch, "layers": layers, "rows": 5}
            label["read_us"] = round(2 * layers * geometry.state_bytes(batch) / RATE * 1e6, 2)
            forms: Mapping[str, Callable[..., Launch]] = {"rank_n": rank_n_launch, "steps": steps_launch}
            wrong = {}
            for name, make in forms.items():
                after = torch.empty_like(state)
                make(state, after, k, u, g, path, count).run()
                wrong[name] = error(after[0], expected, expected)
            del after
            for name, make in forms.items():
                us = round(timed([make(state, state, k, u, g, path, count).run] * 4), 2)
                yield label | {
                    "form": name,
                    "error_state": wrong[name],
                    "wrong": not wrong[name] < BOUND,
                    "us": us if wrong[name] < BOUND else None,
                }
            yield from replay_rows(label, flat, batch, layers)


def replay_rows(label: Row, flat: Inputs, batch: int, layers: int) -> Iterator[Row]:
    """Times of replaying 5 tokens: all layers and tokens in one launch; a launch per layer and token."""
    rows = rows_of(flat, slice(5))
    yield label | {
        "form": "replay, one launch",
        "us": round(timed([walk_launch(rows, *rows.outputs(), after=flat.state).run] * 4), 2),
    }
    calls = []
    for layer in range(layers):
        part = slice(layer * batch, (layer + 1) * batch)
        for at in range(5):
            one = rows_of(flat, slice(at, at + 1), part)
            calls.append(walk_launch(one, *one.outputs(), after=flat.state[part]).run)
    yield label | {"form": "replay, a launch per layer and token", "us": round(timed(calls) * len(calls), 2)}


def comb(teeth: int, length: int) -> list[int]:
    """Branches of one length from the context: parent rows."""
    return [0 if i % length == 0 else i for i in range(teeth * length)]


SHAPES = {
    "chain 16": list(range(16)),
    "binary depth 4": [0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7],
    "4 branches of 4": comb(4, 4),
    "2 branches of 8": comb(2, 8),
    "spine 8 with a leaf at each node": [0, 1, 1, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12, 14],
    "spine 4, then 12 leaves": [0, 1, 2, 3] + [4] * 12,
}


def hybrid_part(geometries: Sequence[Geometry]) -> Iterator[Row]:
    """Schedules by shape of tree: the walk in heavy-light and in serial order, and replay by leaves."""
    for geometry in geometries:
        for batch in (1, 8):
            many = [inputs(geometry, batch, 16, seed) for seed in range(sets_for(geometry.state_bytes(batch)))]
            for name, parents in SHAPES.items():
                yield {"geometry": geometry.name, "batch": batch, "shape": name} | shape_times(geometry, many, parents)


def shape_times(geometry: Geometry, many: Sequence[Inputs], parents: list[int]) -> Row:
    """Microseconds of each schedule for one shape of tree in all sequences; whether their bits agree."""
    batch, nodes = many[0].state.shape[0], len(parents)
    many = [Inputs(x.state, *(y[:, :nodes].contiguous() for y in x.all[1:])) for x in many]
    parent_row, mask = tree_of([parents] * batch)
    rows = rows_of(many[0])
    table = many[0].state.new_empty(batch, nodes + 1, *many[0].state.shape[1:])
    order = torch.empty(batch, nodes, dtype=torch.int32, device="cuda")
    ordering: Launch = order_launch(rows, parent_row, mask, order)
    ordering.run()
    paths, counts = leaf_paths(rows, mask)
    leaves = [i for i, c in enumerate(counts[0].tolist()) if c]
    tree = {"parent_row": parent_row, "table": table}
    hybrid, serial = walk_calls(many, None, order=order, **tree), walk_calls(many, None, **tree)
    leaf_parallel = walk_calls(many, None, order=paths)
    by_leaf = [walk_calls(many, None, order=paths[:, leaf].contiguous()) for leaf in leaves]
    results = []
    kinds: tuple[dict[str, Any], ...] = ({"order": order, **tree}, tree, {"order": paths})
    for extra in kinds:
        o, u = rows.outputs()
        walk_launch(rows, o, u, **extra).run()
        results.append(u)
    expected = ops.delta_rule_verify(*many[0].wide, parent_row, mask, "tree")[1]
    wrong = error(results[0], expected, many[0].beta.unsqueeze(-1) * many[0].v)
    return {
        "error_u": wrong,
        "wrong": not (wrong <= BOUND and all(torch.equal(results[0], other) for other in results)),
        "leaves": len(leaves),
        "order_us": round(timed([ordering.run] * 8), 2),
        "hybrid_us": round(timed(hybrid), 2),
        "serial_us": round(timed(serial), 2),
        "replay_leaf_parallel_us": round(timed(leaf_parallel), 2),
        "replay_leaf_by_leaf_us": round(sum(timed(calls) for calls in by_leaf), 2),
        "tree_us": round(timed(tree_calls(None, many, mask)[0]), 2),
    }


def conv_part(geometries: Sequence[Geometry]) -> Iterator[Row]:
    """tree_conv of 16 nodes, and the windows of one layer."""
    for geometry in geometries:
        channels = 2 * geometry.heads * geometry.keys + geometry.value_heads * geometry.values
        weight = torch.randn(channels, 1, 4, device="cuda").bfloat16()
        for batch in BATCHES:
            parent_row, _ = random_tree(batch, 16)
            moved = 2 * 2 * batch * 19 * channels
            many = [
                (torch.randn(batch, 3, channels, device="cuda").bfloat16(),
                 torch.randn(batch, 16, channels, device="cuda").bfloat16())
                for _ in range(min(sets_for(moved), 200))
            ]  # fmt: skip
            ys = [torch.empty_like(x) for _, x in many]
            calls = [conv_launch(w, x, weight, None, parent_row, y).run for (w, x), y in zip(many, ys, strict=True)]
            calls[0]()
            expected = ops.tree_conv(*(x.double() for x in (*many[0], weight)), None, parent_row)
            wrong = error(ys[0], expected, expected)
            path, count = torch.arange(5, device="cuda").expand(batch, -1).contiguous(), torch.full((batch,), 3).cuda()
            windows = [window_launch(w, x, path, count, w).run for w, x in many]
            yield {
                "geometry": geometry.name, "batch": batch, "channels": channels,
                "error_y": wrong, "wrong": wrong > 5e-3,
                "tree_conv_us": round(timed(calls), 2), "read_us": round(moved / RATE * 1e6, 2),
                "conv_commit_us": round(timed(windows), 2),
            }  # fmt: skip
