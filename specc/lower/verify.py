"""`verify` and `prefill` of a transformer target in their naive form."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from specc.ir import ops
from specc.ir.dims import BATCH, CHUNK
from specc.lower.context import LowerContext
from specc.lower.layers import append_layers
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


def lower_prefill(ctx: LowerContext) -> GraphModule:
    """Transitional: the target's part of prefill; see `prefill.py`."""
    b = StepBuilder(ctx.slots, ctx.weights, ("target", "runtime"))
    ids = b.input("input_ids", (BATCH, CHUNK), torch.int64)
    lengths = b.input("lengths", (BATCH,), torch.int64)
    rows = token_loop(b, ctx, ctx.target, ids, None, None, trip=None)
    batch = b.call(ops.batch_index, ids, name="batch_rows")
    last = b.call(aten.unsqueeze.default, b.call(aten.sub.Tensor, lengths, 1), 1, name="last_row")
    hidden = b.call(aten.index.Tensor, rows.hidden, [batch, last], name="last_hidden")
    logits = b.call(aten.squeeze.dim, head(b, ctx.target, hidden, "last_logits"), 1, name="logits")
    length = b.slot("length")
    for cache, table in (("k_cache", rows.k_rows), ("v_cache", rows.v_rows)):
        b.update(cache, append_layers(b, ctx.target, b.slot(cache), table, length, lengths, cache))
    b.update("length", b.call(aten.add.Tensor, length, lengths, name="new_length"))
    b.result("logits", logits)
    return b.finish()
