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
    """The tree of what followed earlier occurrences (see `trie`)."""
    return trie(b, ctx.nodes, draft)


def trie(b: StepBuilder, nodes: int, draft: DraftConfig) -> Draft:
    """The continuations after the latest matches merged into a tree (a trie), at most top_k children each.

    Matches are taken latest first, at most W = num_speculative_tokens of them: each that adds anything adds a node.
    Each adds its continuation of S = num_steps tokens: what is there already is shared, a new token becomes a child
    unless its parent has top_k children or the budget is spent; then this continuation ends.

    All at once: candidate (w, s) is token s of continuation w. It is a node of its own if no earlier continuation
    shares its first s + 1 tokens; else it stands for the first that does, its owner.
    """
    history, length = b.slot("history"), b.slot("length")
    count = min(nodes - 1, history.meta["val"].shape[1])
    end = _latest(b, suffix_matches(b, history, length, draft), count, "latest_ends")
    token, in_text = _continuations(b, history, length, end, draft.num_steps)
    prefix = _same_prefix(b, token, in_text)
    owner = b.call(aten.argmax.default, prefix, 2, name="owner")
    match = b.call(aten.unsqueeze.default, b.call(ops.iota, end, count), 1)
    own = b.call(aten.eq.Tensor, owner, match)
    new = b.call(aten.logical_and.default, own, in_text, name="is_new")
    room = _has_room(b, prefix, new, owner, draft.top_k)
    kept = b.call(aten.logical_and.default, room, in_text)
    kept = b.call(aten.cumprod.default, b.call(aten._to_copy.default, kept, dtype=torch.int64), 2, name="kept")
    chosen = b.call(aten.logical_and.default, new, b.call(aten.ne.Scalar, kept, 0))
    chosen = b.call(aten.flatten.using_ints, chosen, 1, 2, name="chosen")
    number = b.call(aten.cumsum.default, chosen, 1)
    within = b.call(aten.le.Scalar, number, nodes - 1)
    chosen = b.call(aten.logical_and.default, chosen, within, name="chosen_within_budget")
    flat = b.call(aten.flatten.using_ints, token, 1, 2)
    no_law = b.call(aten._to_copy.default, b.call(aten.zeros_like.default, flat), dtype=torch.float32)
    parts = (chosen, flat, _parents(b, owner), no_law, b.slot("root_token"), nodes)
    packed = b.call(ops.pack_tree, *parts, name="tree")
    return Draft(b.item(packed, 0, "tokens"), b.item(packed, 1, "parent"), b.item(packed, 2, "valid"))


def _continuations(b: StepBuilder, history: Node, length: Node, end: Node, steps: int) -> tuple[Node, Node]:
    """The `steps` tokens behind each match end [B,W]: token and whether it is in the text, [B,W,S]."""
    width = end.meta["val"].shape[1]
    place = b.call(aten.add.Tensor, b.call(aten.unsqueeze.default, end, 2), b.call(ops.iota, end, steps))
    place = b.call(aten.flatten.using_ints, place, 1, 2, name="copied_place")
    inside = b.call(aten.le.Tensor, place, _column(b, length))
    inside = b.call(aten.unflatten.int, inside, 1, [width, steps])
    token = b.call(aten.unflatten.int, _read(b, history, place), 1, [width, steps], name="copied_token")
    is_match = b.call(aten.unsqueeze.default, b.call(aten.ge.Scalar, end, 0), 2)
    return token, b.call(aten.logical_and.default, inside, is_match, name="copied")


def _same_prefix(b: StepBuilder, token: Node, in_text: Node) -> Node:
    """int64 [B,W,W,S]: 1 where continuations w and v share their tokens 0 … s, all in the text."""

    def pairs(node: Node, op: torch._ops.OpOverload) -> Node:
        return b.call(op, b.call(aten.unsqueeze.default, node, 2), b.call(aten.unsqueeze.default, node, 1))

    same = b.call(aten.logical_and.default, pairs(token, aten.eq.Tensor), pairs(in_text, aten.logical_and.default))
    return b.call(aten.cumprod.default, b.call(aten._to_copy.default, same, dtype=torch.int64), 3, name="same_prefix")


def _has_room(b: StepBuilder, prefix: Node, new: Node, owner: Node, top_k: int) -> Node:
    """bool [B,W,S]: fewer than top_k siblings were there before the candidate's owner."""
    _, width, _, steps = prefix.meta["val"].shape
    shorter = b.call(aten.narrow.default, prefix, 3, 0, steps - 1)
    same_parent = b.call(aten.constant_pad_nd.default, shorter, [1, 0], 1, name="same_parent")
    number = b.call(ops.iota, prefix, width)
    earlier = b.call(aten.lt.Tensor, number, b.call(aten.unsqueeze.default, number, 1))
    earlier = b.call(aten.unsqueeze.default, earlier, 2, name="earlier")
    sibling = b.call(aten.mul.Tensor, same_parent, b.call(aten.unsqueeze.default, new, 1))
    before = b.call(aten.sum.dim_IntList, b.call(aten.mul.Tensor, sibling, earlier), [2], name="siblings_before")
    room = b.call(aten.lt.Scalar, before, top_k)
    return b.call(aten.gather.default, room, 1, owner, name="has_room")


def _parents(b: StepBuilder, owner: Node) -> Node:
    """int64 [B,W*S]: the candidate number w * S + s of each candidate's parent, -1 for children of the root."""
    steps = owner.meta["val"].shape[2]
    step = b.call(ops.iota, owner, steps)
    number = b.call(aten.add.Tensor, b.call(aten.mul.Tensor, owner, steps), step)
    above = b.call(aten.narrow.default, number, 2, 0, steps - 1)
    parent = b.call(aten.constant_pad_nd.default, above, [1, 0], -1)
    return b.call(aten.flatten.using_ints, parent, 1, 2, name="parent_candidate")
