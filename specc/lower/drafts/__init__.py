"""`draft`: from the state to a drafted tree, and the state that drafting needs.

`lower_draft` makes the step graph; `draft_slots`, `draft_prefill` and `commit_draft` declare and update the drafter's
part of the state.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from specc.ir import ops
from specc.lower.config import DraftConfig
from specc.lower.context import LowerContext
from specc.lower.drafts.bigram import bigram_draft
from specc.lower.drafts.chain import model_chain
from specc.lower.drafts.dynamic import model_tree
from specc.lower.drafts.lookup import lookup_chain, lookup_tree
from specc.lower.drafts.result import Draft
from specc.lower.drafts.state import commit_draft, draft_info, draft_prefill, draft_slots, draft_weights
from specc.lower.drafts.static import static_tree
from specc.lower.step import StepBuilder

__all__ = ["Draft", "commit_draft", "draft_info", "draft_prefill", "draft_slots", "draft_weights", "lower_draft"]

aten = torch.ops.aten


def lower_draft(ctx: LowerContext, draft: DraftConfig) -> GraphModule:
    """draft(state) -> tokens [B,N], parent [B,N] (trees), valid [B,N], log_probs [B,N], q_probs [B,N,V] (drawn).

    Finished rows draft nothing: only their root is valid, and their part of the state does not change.
    """
    b = StepBuilder(ctx.slots, ctx.weights, ("draft", f"draft.{draft.method}", "draft.tree"))
    made = _make(b, ctx, draft)
    live = b.call(aten.unsqueeze.default, b.call(aten.logical_not.default, b.slot("finished")), 1, name="live")
    node = b.call(ops.iota, made.tokens, ctx.nodes)
    is_root = b.call(aten.eq.Scalar, node, 0, name="is_root")
    kept = b.call(aten.logical_or.default, live, is_root, name="kept")

    def blank(node: Node, name: str) -> Node:
        return b.call(aten.where.self, kept, node, b.call(aten.zeros_like.default, node), name=name)

    b.result("tokens", blank(made.tokens, "tokens_out"))
    if made.parent is not None:
        b.result("parent", blank(made.parent, "parent_out"))
    b.result("valid", b.call(aten.logical_and.default, made.valid, kept, name="valid_out"))
    if made.log_probs is not None:
        b.result("log_probs", blank(made.log_probs, "log_probs_out"))
    if made.q_probs is not None:
        b.result("q_probs", made.q_probs)
    return b.finish()


def _make(b: StepBuilder, ctx: LowerContext, draft: DraftConfig) -> Draft:
    if draft.method == "none" or ctx.nodes == 1:
        return _root_only(b, ctx)
    if draft.method == "prompt_lookup":
        return lookup_chain(b, ctx, draft) if ctx.chain else lookup_tree(b, ctx, draft)
    if draft.method == "bigram":
        return bigram_draft(b, ctx, draft)
    if draft.choices:
        return static_tree(b, ctx, draft)
    return model_chain(b, ctx, draft) if ctx.chain else model_tree(b, ctx, draft)


def _root_only(b: StepBuilder, ctx: LowerContext) -> Draft:
    """The root and, for programs with more nodes, padding."""
    root = b.slot("root_token")
    node = b.call(ops.iota, root, ctx.nodes)
    first = b.call(aten.eq.Scalar, node, 0, name="first")
    zero = b.call(ops.full_rows, root, [-1, ctx.nodes], 0, torch.int64)
    tokens = b.call(aten.where.self, first, b.call(aten.unsqueeze.default, root, 1), zero, name="tokens")
    minus = b.call(aten._to_copy.default, first, dtype=torch.int64, name="is_first")
    parent = None if ctx.chain else b.call(aten.sub.Tensor, zero, minus, name="parent")
    valid = b.call(aten.logical_or.default, b.call(aten.ne.Scalar, zero, 0), first, name="valid")
    return Draft(tokens, parent, valid)
