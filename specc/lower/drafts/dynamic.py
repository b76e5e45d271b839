"""EAGLE-2 dynamic trees (arXiv:2406.16858, section 4; design 03).

Level 1: the root's top_k children. Each further level: the drafter runs on the frontier (top_k nodes, each seeing its
ancestors), takes top_k children of each, and the frontier becomes the best top_k of these by cumulative
log-probability. Candidates are numbered level by level, frontier node by frontier node, best child first; the best
num_speculative_tokens of all by (score desc, number asc) are the tree.
"""

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
from specc.lower.drafts.children import child_scores, children, keep_likely
from specc.lower.drafts.model import DraftModel, Rows, draft_logits, draft_model, forward
from specc.lower.drafts.result import Draft
from specc.lower.drafts.tables import node_tables
from specc.lower.step import StepBuilder

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Candidates:
    """Candidates [B,C]: token, parent (a lower number, -1: the root), log_prob and cumulative score in float32."""

    token: Node
    parent: Node
    log_prob: Node
    score: Node


def model_tree(b: StepBuilder, ctx: LowerContext, draft: DraftConfig) -> Draft:
    """A dynamic tree from a drafter with weights."""
    model = draft_model(ctx, draft)
    w = weight_nodes(b, model)
    root = catch_up(b, model, w)
    first = _first_level(b, model, draft, w, root)
    levels = [first]
    if draft.num_steps > 1:
        levels.append(_later_levels(b, model, draft, w, root, first))
    return choose(b, ctx, draft, joined(b, levels))


def branching(model: DraftModel, draft: DraftConfig) -> int:
    """top_k, or the draft vocabulary where that is smaller: siblings are distinct (I5)."""
    return min(draft.top_k, model.vocabulary)


def _first_level(
    b: StepBuilder, model: DraftModel, draft: DraftConfig, w: Mapping[str, Node], root: Root
) -> Candidates:
    width = branching(model, draft)
    found = children(b, model, draft, w, draft_logits(b, model, w, root.hidden), width, None)
    token, log_prob = (b.call(aten.squeeze.dim, part, 1) for part in (found.token, found.log_prob))
    return Candidates(token, b.call(aten.full_like.default, token, -1), log_prob, log_prob)


def _own_rows(b: GraphBuilder, like: Node, first: Node | int, width: int, rows: int) -> Node:
    """bool [width,rows]: frontier node j has table row first + j."""
    row = b.call(aten.unsqueeze.default, b.call(ops.iota, like, width), 1)
    row = b.call(aten.add.Tensor, row, first)
    return b.call(aten.eq.Tensor, b.call(ops.iota, like, rows), row, name="own_row")


def _later_levels(
    outer: StepBuilder,
    model: DraftModel,
    draft: DraftConfig,
    w: Mapping[str, Node],
    root: Root,
    first: Candidates,
) -> Candidates:
    """Levels 2 … num_steps: a loop that carries the frontier [B,K], its ancestors' table rows, and the tables."""
    width, trips = branching(model, draft), draft.num_steps - 1
    rows = trips * width
    number = outer.call(ops.iota, first.token, width)
    zero = outer.call(aten.zeros_like.default, first.token)
    nothing = outer.call(ops.full_rows, first.token, [-1, width, rows], False, torch.bool)
    carried = {
        "token": first.token,
        "number": outer.call(aten.add.Tensor, zero, number, name="frontier"),
        "score": first.score,
        "mask": outer.call(aten.logical_or.default, nothing, _own_rows(outer, zero, 0, width, rows), name="mask"),
        **node_tables(outer, model, first.token, rows),
    }
    if model.eagle:
        shape = outer.call(ops.full_rows, first.token, [-1, width, 1], 0, model.info.dtype)
        carried["hidden"] = outer.call(aten.add.Tensor, root.hidden, shape, name="root_features")
    invariant = {**w, **root.state, "root_position": root.position}
    b = BodyBuilder("step", carried=carried, sliced={}, invariant=invariant, keys=outer.keys)
    found, out = _expand(b, model, draft, w, width)
    after = _next_frontier(b, found, out, width, rows)
    after |= {"k_table": out[1], "v_table": out[2]}
    stacked = [found.token, found.parent, found.log_prob, found.score]
    results = b.close(outer, trips, [*(after[name] for name in carried), *stacked], "levels")[len(carried) :]
    return beside(outer, results)


def beside(outer: StepBuilder, levels: list[Node]) -> Candidates:
    """What the levels of a loop stacked [levels,B,K*K] as candidates [B,levels*K*K]."""
    flat = [outer.call(aten.flatten.using_ints, outer.call(aten.transpose.int, part, 0, 1), 1, 2) for part in levels]
    return Candidates(*flat)


def _expand(
    b: BodyBuilder, model: DraftModel, draft: DraftConfig, w: Mapping[str, Node], width: int
) -> tuple[Candidates, tuple[Node, Node, Node]]:
    """Runs the drafter on the frontier: its candidates [B,K*K], and (hidden [B,K,H], tables)."""
    first = b.call(operator.mul, b.index, width, name="first_row")
    end = b.call(operator.add, first, width, name="end_row")
    depth = b.call(operator.add, b.index, 1, name="depth")
    like = b.call(aten.zeros_like.default, b["token"])
    position = b.call(aten.add.Tensor, b.call(aten.add.Tensor, like, b["root_position"]), depth, name="positions")
    state = {name: b[name] for name in ("k_cache", "v_cache", "length", "k_table", "v_table", "mask")}
    inside = {name: b[name] for name in w}
    hidden = b["hidden"] if model.eagle else None
    out = forward(b, model, inside, Rows(b["token"], position, hidden), state, (first, end))
    found = children(b, model, draft, inside, draft_logits(b, model, inside, out.hidden), width, None)
    score = child_scores(b, b["score"], found.log_prob)
    return numbered(b, found.token, found.log_prob, score), (out.hidden, out.k, out.v)


def numbered(b: BodyBuilder, token: Node, log_prob: Node, score: Node) -> Candidates:
    """The children [B,K,K] of the frontier b["number"] as candidates [B,K*K]."""
    parent = b.call(aten.add.Tensor, b.call(aten.zeros_like.default, token), _last(b, b["number"]))
    return Candidates(*(b.call(aten.flatten.using_ints, part, 1, 2) for part in (token, parent, log_prob, score)))


def _last(b: GraphBuilder, node: Node) -> Node:
    return b.call(aten.unsqueeze.default, node, -1)


def _next_frontier(
    b: BodyBuilder, found: Candidates, out: tuple[Node, Node, Node], width: int, rows: int
) -> dict[str, Node]:
    """The best K of the new candidates: tokens, numbers, scores, masks and (for a head) their parents' outputs."""
    after, place = best_of(b, found, width)
    above = b.call(aten.div.Tensor_mode, place, width, rounding_mode="floor", name="frontier_parent")
    batch = b.call(ops.batch_index, place)
    following = b.call(operator.mul, b.call(operator.add, b.index, 1), width, name="next_first_row")
    seen = b.call(aten.index.Tensor, b["mask"], [batch, above], name="parent_mask")
    own = _own_rows(b, place, following, width, rows)
    return {
        **after,
        "mask": b.call(aten.logical_or.default, seen, own, name="frontier_mask"),
        "hidden": b.call(aten.index.Tensor, out[0], [batch, above], name="frontier_features"),
    }


def best_of(b: BodyBuilder, found: Candidates, width: int) -> tuple[dict[str, Node], Node]:
    """The best K of this level's candidates [B,K*K]: their tokens, numbers and scores [B,K], and their places."""
    best = b.call(ops.stable_topk, found.score, width)
    score, place = b.item(best, 0, "frontier_score"), b.item(best, 1, "frontier_place")
    # Candidates of this level start behind K of level 1 and K*K of each level between.
    start = b.call(operator.add, b.call(operator.mul, b.index, width * width), width, name="level_start")
    token = b.call(aten.gather.default, found.token, 1, place, name="frontier_token")
    number = b.call(aten.add.Tensor, place, start, name="frontier_number")
    return {"token": token, "number": number, "score": score}, place


def joined(b: StepBuilder, levels: list[Candidates]) -> Candidates:
    """All levels' candidates, in order."""
    if len(levels) == 1:
        return levels[0]
    parts = [[level.token, level.parent, level.log_prob, level.score] for level in levels]
    names = ("candidate_token", "candidate_parent", "candidate_log_prob", "candidate_score")
    columns = zip(*parts, strict=True)
    return Candidates(
        *(b.call(aten.cat.default, list(column), 1, name=name) for column, name in zip(columns, names, strict=True))
    )


def choose(b: StepBuilder, ctx: LowerContext, draft: DraftConfig, found: Candidates) -> Draft:
    """The best num_speculative_tokens candidates, pruned, as a tree; ancestor-closed by construction."""
    rank = b.call(ops.score_rank, found.score, name="rank")
    chosen = b.call(aten.lt.Scalar, rank, ctx.nodes - 1, name="reranked")
    with b.spec("draft.prune"):
        chosen = keep_likely(b, draft, chosen, found.score)
    return pack(b, ctx, chosen, found)[0]


def pack(b: StepBuilder, ctx: LowerContext, chosen: Node, found: Candidates) -> tuple[Draft, Node]:
    """The tree of the chosen candidates, and each node's source: 1 + its candidate, 0 for the root and padding."""
    parts = (chosen, found.token, found.parent, found.log_prob, b.slot("root_token"), ctx.nodes)
    packed = b.call(ops.pack_tree, *parts, name="tree")
    names = ("tokens", "parent", "valid", "log_probs", "source")
    tokens, parent, valid, log_probs, source = (b.item(packed, place, name) for place, name in enumerate(names))
    return Draft(tokens, None if ctx.chain else parent, valid, log_probs), source
