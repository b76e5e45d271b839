"""`verify` in its naive form."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from specc.ir.dims import BATCH
from specc.lower.context import LowerContext
from specc.lower.mixers import recorded
from specc.lower.stack import positions
from specc.lower.step import StepBuilder
from specc.lower.target import token_loop
from specc.lower.transformer import ModelInfo, norm

aten = torch.ops.aten


def head(b: StepBuilder, model: ModelInfo, hidden: Node, name: str = "logits") -> Node:
    """Final norm and output projection: hidden [B,M,H] -> logits [B,M,V]."""
    geometry = model.geometry
    normed = norm(b, hidden, b.weight(model.name("norm")), geometry.rms_norm_eps, "normed", geometry.norm_offset)
    return b.call(aten.linear.default, normed, b.weight(model.head), name=name)


def candidate_tables(ctx: LowerContext, tree: bool) -> dict[str, str]:
    """Candidate slots, and the table of the token loop that each of them gets."""
    found: dict[str, str] = {}
    for position in positions(ctx.target.geometry):
        prefix = position.prefix
        if not position.recurrent:
            found |= {f"{prefix}{name}_candidate": f"{prefix}{name}_table" for name in ("k", "v")}
            continue
        found |= {prefix + name: prefix + name for name in recorded(ctx)}
        if tree and ctx.state_commit == "snapshots":
            found[f"{prefix}state_candidate"] = f"{prefix}state_table"
    return found


def lower_verify(ctx: LowerContext) -> GraphModule:
    """verify(state, tokens, parent, valid) -> candidate rows, logits [B,N,V], features [B,N,F].

    Chains have no `parent` input: node i is the child of node i - 1.
    """
    b = StepBuilder(ctx.slots, ctx.weights, ("verify", "target"))
    tokens = b.input("tokens", (BATCH, ctx.nodes), torch.int64)
    parent = valid = None
    if not ctx.chain:
        parent = b.input("parent", (BATCH, ctx.nodes), torch.int64)
        valid = b.input("valid", (BATCH, ctx.nodes), torch.bool)
    rows = token_loop(b, ctx, tokens, parent, valid, record=True, trip=ctx.nodes)
    with b.spec("target"):
        logits = head(b, ctx.target, rows.hidden)
    for slot, table in candidate_tables(ctx, tree=not ctx.chain).items():
        b.update(slot, rows.tables[table])
    b.result("logits", logits)
    if rows.features is not None:
        b.result("features", rows.features)
    return b.finish()
