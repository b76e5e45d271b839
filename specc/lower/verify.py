"""`verify` of a transformer target in its naive form."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from specc.ir.dims import BATCH
from specc.lower.context import LowerContext
from specc.lower.step import StepBuilder
from specc.lower.target import token_loop
from specc.lower.transformer import ModelInfo, norm

aten = torch.ops.aten


def head(b: StepBuilder, model: ModelInfo, hidden: Node, name: str = "logits") -> Node:
    """Final norm and output projection: hidden [B,M,H] -> logits [B,M,V]."""
    normed = norm(b, hidden, b.weight(model.name("norm")), model.geometry.rms_norm_eps, "normed")
    return b.call(aten.linear.default, normed, b.weight(model.head), name=name)


def lower_verify(ctx: LowerContext) -> GraphModule:
    """verify(state, tokens, parent, valid) -> candidate K/V rows, logits [B,N,V], features [B,N,F].

    Chains have no `parent` input: node i is the child of node i - 1.
    """
    b = StepBuilder(ctx.slots, ctx.weights, ("verify", "target"))
    tokens = b.input("tokens", (BATCH, ctx.nodes), torch.int64)
    parent = valid = None
    if not ctx.chain:
        parent = b.input("parent", (BATCH, ctx.nodes), torch.int64)
        valid = b.input("valid", (BATCH, ctx.nodes), torch.bool)
    rows = token_loop(b, ctx, ctx.target, tokens, parent, valid, trip=ctx.nodes)
    with b.spec("target"):
        logits = head(b, ctx.target, rows.hidden)
    b.update("k_candidate", rows.k_rows)
    b.update("v_candidate", rows.v_rows)
    b.result("logits", logits)
    if rows.features is not None:
        b.result("features", rows.features)
    return b.finish()
