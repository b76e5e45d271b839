"""`commit` and `flush` in their naive form: accepted rows are gathered behind the committed prefix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch.fx import GraphModule, Node

from specc.ir import ops
from specc.ir.build import BodyBuilder
from specc.ir.dims import BATCH
from specc.lower.config import DraftConfig
from specc.lower.context import LowerContext
from specc.lower.drafts import commit_draft
from specc.lower.layers import layer_map
from specc.lower.stack import CANDIDATES, positions
from specc.lower.step import StepBuilder

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class CommitConfig:
    """`length`: the accepted rows are a prefix of the candidates (chains). `path_index`: gather by path."""

    kv: Literal["length", "path_index"]
    fast_reorder: bool


def _commit_cache(
    b: StepBuilder, ctx: LowerContext, config: CommitConfig, name: str, length: Node, emitted: Node
) -> Node:
    """The cache slot `{name}_cache` (name: prefix and k or v) with the accepted candidate rows, in every layer."""
    cache, candidate = f"{name[-1]}_cache", f"{name[-1]}_candidate"
    sliced = {cache: b.slot(f"{name}_cache"), candidate: b.slot(f"{name}_candidate")}
    invariant = {"start": length, "count": emitted}
    make: Callable[[BodyBuilder], Node]
    if config.kv == "length":

        def make(n: BodyBuilder) -> Node:
            return n.call(ops.append_rows, n[cache], n[candidate], n["start"], n["count"])
    else:
        invariant["path"] = _path(b, ctx)

        def make(n: BodyBuilder) -> Node:
            return n.call(
                ops.commit_path, n[cache], n[candidate], n["path"], n["start"], n["count"], config.fast_reorder
            )

    return layer_map(b, ctx.target, sliced, invariant, make, f"{name}_commit")


def _path(b: StepBuilder, ctx: LowerContext) -> Node:
    return b.input("path", (BATCH, ctx.max_path), torch.int64)


def _commit_states(b: StepBuilder, ctx: LowerContext, prefix: str, emitted: Node) -> None:
    """Window and state of a position's recurrent layers, along the accepted path (I27)."""
    path, length = _path(b, ctx), {"path": _path(b, ctx), "count": emitted}
    if f"{prefix}conv_window" in ctx.slots:
        rows = {"window": b.slot(f"{prefix}conv_window"), "rows": b.slot(f"{prefix}conv_candidate")}
        window = layer_map(
            b,
            ctx.target,
            rows,
            length,
            lambda n: n.call(ops.conv_commit, n["window"], n["rows"], n["path"], n["count"]),
            f"{prefix}window_commit",
        )
        b.update(f"{prefix}conv_window", window)
    if ctx.state_commit is None:
        raise ValueError("a recurrent target has a `commit.state`")
    sliced = {name: b.slot(prefix + name) for name in ("state", *CANDIDATES[ctx.state_commit])}
    invariant = length | {"batch": b.call(ops.batch_index, path, name="batch")}
    make = {"snapshots": _from_snapshots, "replay": _from_replay, "factors": _from_factors}[ctx.state_commit]
    b.update(f"{prefix}state", layer_map(b, ctx.target, sliced, invariant, make, f"{prefix}state_commit"))


def _from_snapshots(n: BodyBuilder) -> Node:
    """The state of the last accepted node; a count of 0 reads place -1, whose value nobody uses."""
    last = n.call(aten.sub.Tensor, n.call(aten.unsqueeze.default, n["count"], 1), 1, name="last")
    node = n.call(aten.index.Tensor, n["path"], [n["batch"], last], name="last_node")
    state = n.call(aten.squeeze.dim, n.call(aten.index.Tensor, n["state_candidate"], [n["batch"], node]), 1)
    moved = n.call(aten.gt.Scalar, n["count"], 0)
    for _ in range(3):
        moved = n.call(aten.unsqueeze.default, moved, -1)
    return n.call(aten.where.self, moved, state, n["state"], name="new_state")


def _from_replay(n: BodyBuilder) -> Node:
    """The rule once more along the accepted path; rows behind it are neutral (g = beta = 0)."""
    k, v, g, beta = (
        n.call(aten.index.Tensor, n[name], [n["batch"], n["path"]], name=f"path_{name}")
        for name in CANDIDATES["replay"]
    )
    place = n.call(ops.iota, n["path"], -2)
    live = n.call(aten.lt.Tensor, place, n.call(aten.unsqueeze.default, n["count"], 1))
    shown, nothing = n.call(aten.unsqueeze.default, live, -1), n.call(aten.zeros_like.default, g)
    g, beta = (n.call(aten.where.self, shown, value, nothing) for value in (g, beta))
    return n.item(n.call(ops.delta_rule, n["state"], k, k, v, g, beta, name="replayed"), 2, "new_state")


def _from_factors(n: BodyBuilder) -> Node:
    """One rank-n update from the factors of the accepted nodes (SpecLA)."""
    factors = (n["k_factor"], n["u_factor"], n["g_factor"])
    return n.call(ops.delta_rule_commit, n["state"], *factors, n["path"], n["count"], "steps", name="new_state")


def lower_commit(ctx: LowerContext, config: CommitConfig, draft: DraftConfig) -> GraphModule:
    """commit(state, accepted) -> state: rows, windows and states along one path (I27), length, root, drafter inputs.

    A row that emitted nothing (finished) keeps its root and length; its candidate rows are dropped.
    """
    b = StepBuilder(ctx.slots, ctx.weights, ("commit",))
    emitted = b.input("emitted", (BATCH,), torch.int64)
    tokens = b.input("emitted_tokens", (BATCH, ctx.max_path), torch.int64)
    bonus = b.input("bonus", (BATCH,), torch.int64)
    stopped = b.input("stopped", (BATCH,), torch.bool)
    length = b.slot("length")
    with b.spec("commit.kv", "commit.fast_reorder"):
        for position in positions(ctx.target.geometry):
            for name in () if position.recurrent else (f"{position.prefix}k", f"{position.prefix}v"):
                b.update(f"{name}_cache", _commit_cache(b, ctx, config, name, length, emitted))
    with b.spec("commit.state"):
        for position in positions(ctx.target.geometry):
            if position.recurrent:
                _commit_states(b, ctx, position.prefix, emitted)
    b.update("length", b.call(aten.add.Tensor, length, emitted, name="new_length"))
    moved = b.call(aten.gt.Scalar, emitted, 0, name="moved")
    b.update("root_token", b.call(aten.where.self, moved, bonus, b.slot("root_token"), name="new_root"))
    b.update("remaining", b.call(aten.sub.Tensor, b.slot("remaining"), emitted, name="new_remaining"))
    b.update("finished", b.call(aten.logical_or.default, b.slot("finished"), stopped, name="new_finished"))
    features = path = None
    if ctx.aux:
        features = b.input("features", (BATCH, ctx.nodes, ctx.features_width), ctx.dtype)
        path = _path(b, ctx)
    with b.spec("draft"):
        commit_draft(b, ctx, draft, path, tokens, emitted, features)
    return b.finish()


def lower_flush(ctx: LowerContext) -> GraphModule:
    """flush(state) -> state: nothing is pending in the naive program."""
    return StepBuilder(ctx.slots, ctx.weights, ("commit.update",)).finish()
