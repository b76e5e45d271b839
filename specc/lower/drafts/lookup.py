"""Prompt lookup: what followed earlier occurrences of the text's last n-gram is the draft. No weights.

The text of a row is `history[: length + 1]`, which ends with the root. The longest n in ngram_max … ngram_min for
which the last n tokens occurred before decides; later occurrences come first (design 03, "Prompt lookup").
"""

from __future__ import annotations

import operator

import torch
from torch.fx import Node

from specc.ir import ops
from specc.ir.build import BodyBuilder, GraphBuilder
from specc.lower.config import DraftConfig
from specc.lower.context import LowerContext
from specc.lower.drafts.result import Draft
from specc.lower.step import StepBuilder

aten = torch.ops.aten


def _column(b: GraphBuilder, node: Node) -> Node:
    """[B] -> [B,1]."""
    return b.call(aten.unsqueeze.default, node, 1)


def _read(b: GraphBuilder, table: Node, column: Node, name: str | None = None) -> Node:
    """table [B,W] at column [B,M], clamped to [0, W): what lies outside must be masked by the caller."""
    inside = b.call(aten.clamp.default, column, 0, table.meta["val"].shape[1] - 1)
    return b.call(aten.gather.default, table, 1, inside, name=name)


def suffix_matches(b: StepBuilder, history: Node, length: Node, draft: DraftConfig) -> Node:
    """bool [B,W] over history [B,W]: True at e if the longest matching suffix also ends right before e <= length.

    A loop over j = 0 … ngram_max - 1 counts at each e how many tokens before e equal those before the end of the
    text; a match of n tokens needs e >= n.
    """
    width = history.meta["val"].shape[1]
    place = b.call(ops.iota, history, width, name="place")
    zero = b.call(aten.zeros_like.default, history)
    alive = b.call(aten.le.Tensor, place, _column(b, length), name="in_text")
    carried = {"alive": alive, "matched": zero}
    body = BodyBuilder(
        "step",
        carried=carried,
        sliced={},
        invariant={"history": history, "length": length, "place": place},
        keys=b.keys,
    )
    back = body.call(operator.add, body.index, 1, name="back")
    before = body.call(aten.roll.default, body["history"], [back], [1], name="token_before")
    at_end = body.call(aten.sub.Tensor, _column(body, body["length"]), body.index)
    same = body.call(aten.eq.Tensor, before, _read(body, body["history"], at_end, "suffix_token"))
    exists = body.call(aten.ge.Scalar, body["place"], back)
    same = body.call(aten.logical_and.default, same, exists)
    still = body.call(aten.logical_and.default, body["alive"], same, name="still_equal")
    count = body.call(aten.add.Tensor, body["matched"], still, name="matched_tokens")
    matched = body.close(b, draft.ngram_max, [still, count], "suffix")[1]
    best = b.call(aten.amax.default, matched, [1], True, name="longest")
    longest = b.call(aten.eq.Tensor, matched, best)
    enough = b.call(aten.ge.Scalar, matched, draft.ngram_min)
    return b.call(aten.logical_and.default, longest, enough, name="match_ends")


def _latest(b: StepBuilder, ends: Node, place_count: int, name: str) -> Node:
    """The latest `place_count` places of ends [B,W], latest first, then -1: int64 [B,place_count]."""
    place = b.call(ops.iota, ends, ends.meta["val"].shape[1])
    none = b.call(aten.full_like.default, b.call(aten._to_copy.default, ends, dtype=torch.int64), -1)
    keyed = b.call(aten.where.self, ends, place, none)
    found = b.call(aten.topk.default, keyed, place_count, 1)
    return b.item(found, 0, name)


def lookup_chain(b: StepBuilder, ctx: LowerContext, draft: DraftConfig) -> Draft:
    """The tokens that followed the latest match, up to the end of the text; the rest is padding."""
    history, length = b.slot("history"), b.slot("length")
    end = _latest(b, suffix_matches(b, history, length, draft), 1, "latest_end")
    offset = b.call(ops.iota, end, ctx.nodes - 1, name="offset")
    place = b.call(aten.add.Tensor, end, offset, name="copied_place")
    inside = b.call(aten.le.Tensor, place, _column(b, length))
    valid = b.call(aten.logical_and.default, inside, b.call(aten.ge.Scalar, end, 0), name="copied")
    token = _read(b, history, place, "copied_token")
    token = b.call(aten.where.self, valid, token, b.call(aten.zeros_like.default, token))
    root = _column(b, b.slot("root_token"))
    root_valid = b.call(ops.full_rows, root, [-1, 1], True, torch.bool)
    return Draft(
        tokens=b.call(aten.cat.default, [root, token], 1, name="tokens"),
        parent=None,
        valid=b.call(aten.cat.default, [root_valid, valid], 1, name="valid"),
    )


def lookup_tree(b: StepBuilder, ctx: LowerContext, draft: DraftConfig) -> Draft:
    """The continuations after the latest matches merged into a tree (a trie), at most top_k children each.

    Matches are taken latest first, at most num_speculative_tokens of them: each that adds anything adds a node. Each
    adds its continuation of num_steps tokens: what is there already is shared, a new token becomes a child unless
    its parent has top_k children or the budget is spent; then this continuation ends.
    """
    history, length = b.slot("history"), b.slot("length")
    width = history.meta["val"].shape[1]
    count = min(ctx.nodes - 1, width)
    ends = _latest(b, suffix_matches(b, history, length, draft), count, "latest_ends")
    root = b.slot("root_token")
    tokens = b.call(ops.full_rows, root, [-1, ctx.nodes], 0, torch.int64)
    node = b.call(ops.iota, root, ctx.nodes, name="node")
    is_root = b.call(aten.eq.Scalar, node, 0)
    tokens = b.call(aten.where.self, is_root, _column(b, root), tokens, name="root_only")
    parent = b.call(ops.full_rows, root, [-1, ctx.nodes], 0, torch.int64)
    minus = b.call(aten._to_copy.default, is_root, dtype=torch.int64, name="root_flag")
    parent = b.call(aten.sub.Tensor, parent, minus, name="root_parent")
    used = b.call(ops.full_rows, root, [-1, 1], 1, torch.int64, name="used")
    carried = {"tokens": tokens, "parent": parent, "used": used}
    sliced = {"end": b.call(aten.transpose.int, ends, 0, 1)}
    body = BodyBuilder(
        "step",
        carried=carried,
        sliced=sliced,
        invariant={"history": history, "length": length, "node": node},
        keys=b.keys,
    )
    results = _insert(body, draft)
    tokens, parent, used = body.close(b, count, results, "matches")
    return Draft(tokens=tokens, parent=parent, valid=b.call(aten.lt.Tensor, node, used, name="valid"))


def _insert(outer: BodyBuilder, draft: DraftConfig) -> list[Node]:
    """One continuation, token by token, into the trie: new tokens [B,N], parent [B,N], used [B,1]."""
    end = _column(outer, outer["end"])
    alive = outer.call(aten.ge.Scalar, end, 0, name="is_match")
    at = outer.call(aten.zeros_like.default, end, name="at_root")
    carried = {"tokens": outer["tokens"], "parent": outer["parent"], "used": outer["used"], "alive": alive, "at": at}
    invariant = {"end": end, "history": outer["history"], "length": outer["length"], "node": outer["node"]}
    b = BodyBuilder("step", carried=carried, sliced={}, invariant=invariant, keys=outer.keys)
    place = b.call(aten.add.Tensor, b["end"], b.index, name="place")
    token = _read(b, b["history"], place, "next_token")
    in_text = b.call(aten.le.Tensor, place, _column(b, b["length"]))
    alive = b.call(aten.logical_and.default, b["alive"], in_text, name="continues")
    taken = b.call(aten.lt.Tensor, b["node"], b["used"])
    child = b.call(aten.logical_and.default, taken, b.call(aten.eq.Tensor, b["parent"], b["at"]), name="children")
    same = b.call(aten.logical_and.default, child, b.call(aten.eq.Tensor, b["tokens"], token), name="same_child")
    found = b.call(aten.any.dim, same, 1, True, name="found")
    shared = b.call(aten.argmax.default, b.call(aten._to_copy.default, same, dtype=torch.int64), 1, True)
    siblings = b.call(aten.sum.dim_IntList, child, [1], True)
    room = b.call(aten.lt.Scalar, siblings, draft.top_k)
    nodes = b["tokens"].meta["val"].shape[1]
    room = b.call(aten.logical_and.default, room, b.call(aten.lt.Scalar, b["used"], nodes), name="has_room")
    new = b.call(aten.logical_and.default, b.call(aten.logical_not.default, found), room)
    new = b.call(aten.logical_and.default, new, alive, name="is_new")
    here = b.call(aten.logical_and.default, b.call(aten.eq.Tensor, b["node"], b["used"]), new, name="new_place")
    tokens = b.call(aten.where.self, here, token, b["tokens"], name="tokens_with")
    parent = b.call(aten.where.self, here, b["at"], b["parent"], name="parent_with")
    reached = b.call(aten.where.self, found, shared, b["used"])
    alive = b.call(aten.logical_and.default, alive, b.call(aten.logical_or.default, found, new), name="goes_on")
    at = b.call(aten.where.self, alive, reached, b["at"], name="reached")
    used = b.call(aten.add.Tensor, b["used"], new, name="used_with")
    return b.close(outer, draft.num_steps, [tokens, parent, used, alive, at], "continuation")[:3]
