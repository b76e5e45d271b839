"""A chain of drafted tokens: the drafter decodes token by token, without masks or parents."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.fx import Node

from specc.ir import ops
from specc.ir.build import BodyBuilder, GraphBuilder
from specc.lower.config import DraftConfig
from specc.lower.context import LowerContext
from specc.lower.drafts.catch_up import Root, catch_up, weight_nodes
from specc.lower.drafts.children import children, keep_likely
from specc.lower.drafts.model import DraftModel, Rows, draft_logits, draft_model, forward
from specc.lower.drafts.result import Draft
from specc.lower.drafts.tables import node_tables
from specc.lower.sampling import DRAFT_DRAW
from specc.lower.step import StepBuilder

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Link:
    """One more token of the chain: token [B,1], its log-probability [B,1] and law [B,1,V] (drawn drafts only)."""

    token: Node
    log_prob: Node
    law: Node | None


def _link(
    b: GraphBuilder,
    model: DraftModel,
    draft: DraftConfig,
    w: Mapping[str, Node],
    hidden: Node,
    state: Mapping[str, Node],
    node: Node | int,
) -> Link:
    """The child of chain node `node` (an int) from the drafter's output [B,1,H]; `state`: length, and rng if drawn."""
    counters = None
    if draft.draws:
        position = b.call(aten.unsqueeze.default, state["text_length"], 1)
        after = b.call(operator.add, node, 1) if isinstance(node, Node) else node + 1
        position = b.call(aten.add.Tensor, position, after, name="drawn_position")
        purpose = b.call(operator.add, node, DRAFT_DRAW) if isinstance(node, Node) else node + DRAFT_DRAW
        counters = (state["rng"], position, b.call(aten.full_like.default, position, purpose))
    found = children(b, model, draft, w, draft_logits(b, model, w, hidden), 1, counters)
    token, log_prob = (b.call(aten.squeeze.dim, part, 2) for part in (found.token, found.log_prob))
    return Link(token, log_prob, found.law)


def model_chain(b: StepBuilder, ctx: LowerContext, draft: DraftConfig) -> Draft:
    """Node i + 1 is the best (or drawn) child of node i; node 0 is the root."""
    model = draft_model(ctx, draft)
    w = weight_nodes(b, model)
    root = catch_up(b, model, w)
    drawn = {"rng": b.slot("rng"), "text_length": b.slot("length")} if draft.draws else {}
    links = [_link(b, model, draft, w, root.hidden, drawn, 0)]
    if ctx.nodes > 2:
        links.append(_later_links(b, model, draft, w, root, links[0], drawn, ctx.nodes - 2))
    tokens = b.call(aten.cat.default, [link.token for link in links], 1, name="drafted")
    log_probs = b.call(aten.cat.default, [link.log_prob for link in links], 1, name="drafted_log_probs")
    return chain_of(b, draft, tokens, log_probs, _laws(b, links))


def chain_of(b: StepBuilder, draft: DraftConfig, tokens: Node, log_probs: Node, q_probs: Node | None = None) -> Draft:
    """The chain of drafted tokens and their log-probabilities [B,N-1] below the root, pruned."""
    zeros = b.call(aten.zeros_like.default, tokens)
    valid = b.call(aten.eq.Scalar, zeros, 0, name="all_valid")
    if draft.margin is not None or draft.min_log_prob is not None:
        score = b.call(aten.cumsum.default, log_probs, 1, name="path_log_prob")
        valid = keep_likely(b, draft, valid, score)
        tokens = b.call(aten.where.self, valid, tokens, zeros)
        log_probs = b.call(aten.where.self, valid, log_probs, b.call(aten.zeros_like.default, log_probs))
    root_token = b.call(aten.unsqueeze.default, b.slot("root_token"), 1)
    certain = b.call(ops.full_rows, root_token, [-1, 1], 0, torch.float32)
    return Draft(
        tokens=b.call(aten.cat.default, [root_token, tokens], 1, name="tokens"),
        parent=None,
        valid=b.call(aten.constant_pad_nd.default, valid, [1, 0], True, name="valid"),
        log_probs=b.call(aten.cat.default, [certain, log_probs], 1, name="log_probs"),
        q_probs=q_probs,
    )


def _laws(b: StepBuilder, links: list[Link]) -> Node | None:
    """The law of each node's child [B,N,V]; zeros for the last node, which has none."""
    laws = [link.law for link in links if link.law is not None]
    if not laws:
        return None
    together = b.call(aten.cat.default, laws, 1) if len(laws) > 1 else laws[0]
    return b.call(aten.constant_pad_nd.default, together, [0, 0, 0, 1], 0.0, name="q_probs")


def _later_links(
    outer: StepBuilder,
    model: DraftModel,
    draft: DraftConfig,
    w: Mapping[str, Node],
    root: Root,
    first: Link,
    drawn: Mapping[str, Node],
    count: int,
) -> Link:
    """Links 2 … count + 1 side by side: a loop that feeds each token back into the drafter."""
    carried = {"token": first.token, **node_tables(outer, model, first.token, count)}
    if model.eagle:
        carried["hidden"] = root.hidden
    invariant = {**w, **root.state, **drawn, "root_position": root.position}
    b = BodyBuilder("step", carried=carried, sliced={}, invariant=invariant, keys=outer.keys)
    end = b.call(operator.add, b.index, 1, name="node")
    position = b.call(aten.add.Tensor, b["root_position"], end, name="positions")
    state = {name: b[name] for name in ("k_cache", "v_cache", "length", "k_table", "v_table")}
    inside = {name: b[name] for name in w}
    hidden = b["hidden"] if model.eagle else None
    out = forward(b, model, inside, Rows(b["token"], position, hidden), state, (b.index, end))
    link = _link(b, model, draft, inside, out.hidden, {name: b[name] for name in drawn}, end)
    after = {"token": link.token, "k_table": out.k, "v_table": out.v, "hidden": out.hidden}
    stacked = [link.token, link.log_prob] + ([link.law] if link.law is not None else [])
    results = b.close(outer, count, [*(after[name] for name in carried), *stacked], "chain")[len(carried) :]
    # [count, B, 1, …] -> [B, count, …]
    merged = [outer.call(aten.transpose.int, outer.call(aten.squeeze.dim, part, 2), 0, 1) for part in results]
    return Link(merged[0], merged[1], merged[2] if draft.draws else None)
