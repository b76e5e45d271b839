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
    """The cache slot `name` ("k" or "v") with the accepted candidate rows, in every layer."""
    sliced = {"cache": b.slot(f"{name}_cache"), "candidate": b.slot(f"{name}_candidate")}
    invariant = {"start": length, "count": emitted}
    make: Callable[[BodyBuilder], Node]
    if config.kv == "length":

        def make(n: BodyBuilder) -> Node:
            return n.call(ops.append_rows, n["cache"], n["candidate"], n["start"], n["count"])
    else:
        invariant["path"] = b.input("path", (BATCH, ctx.max_path), torch.int64)

        def make(n: BodyBuilder) -> Node:
            return n.call(
                ops.commit_path, n["cache"], n["candidate"], n["path"], n["start"], n["count"], config.fast_reorder
            )

    return layer_map(b, ctx.target, sliced, invariant, make, f"{name}_commit")


def lower_commit(ctx: LowerContext, config: CommitConfig, draft: DraftConfig) -> GraphModule:
    """commit(state, accepted) -> state: K and V rows along one path (I27), length, root, drafter inputs.

    A row that emitted nothing (finished) keeps its root and length; its candidate rows are dropped.
    """
    b = StepBuilder(ctx.slots, ctx.weights, ("commit",))
    emitted = b.input("emitted", (BATCH,), torch.int64)
    tokens = b.input("emitted_tokens", (BATCH, ctx.max_path), torch.int64)
    bonus = b.input("bonus", (BATCH,), torch.int64)
    stopped = b.input("stopped", (BATCH,), torch.bool)
    length = b.slot("length")
    with b.spec("commit.kv", "commit.fast_reorder"):
        for name in ("k", "v"):
            b.update(f"{name}_cache", _commit_cache(b, ctx, config, name, length, emitted))
    b.update("length", b.call(aten.add.Tensor, length, emitted, name="new_length"))
    moved = b.call(aten.gt.Scalar, emitted, 0, name="moved")
    b.update("root_token", b.call(aten.where.self, moved, bonus, b.slot("root_token"), name="new_root"))
    b.update("remaining", b.call(aten.sub.Tensor, b.slot("remaining"), emitted, name="new_remaining"))
    b.update("finished", b.call(aten.logical_or.default, b.slot("finished"), stopped, name="new_finished"))
    features = path = None
    if ctx.aux_layers:
        width = len(ctx.aux_layers) * ctx.target.geometry.hidden_size
        features = b.input("features", (BATCH, ctx.nodes, width), ctx.dtype)
        path = b.input("path", (BATCH, ctx.max_path), torch.int64)
    with b.spec("draft"):
        commit_draft(b, ctx, draft, path, tokens, emitted, features)
    return b.finish()


def lower_flush(ctx: LowerContext) -> GraphModule:
    """flush(state) -> state: nothing is pending in the naive program."""
    return StepBuilder(ctx.slots, ctx.weights, ("commit.update",)).finish()
