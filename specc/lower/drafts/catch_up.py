"""Runs the drafter over committed tokens: the recent ones at the start of a draft, and prompt chunks.

A draft model's row i belongs to token i. A head's row i pairs the target's feature at i with token i + 1. Rows of
accepted tokens are always computed from what was committed (a head: from the target's features), never kept from
drafting (design 03).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.fx import Node

from specc.ir import ops
from specc.lower.drafts.model import CACHES, DraftModel, Outputs, Rows, forward, project_features
from specc.lower.layers import append_layers
from specc.lower.step import StepBuilder

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Root:
    """The drafter at the root: its caches and committed rows [B] with the root's, the root's output hidden [B,1,H]
    and the position of its row [B,1]. A node at depth d has its row at that position + d."""

    k_cache: Node
    v_cache: Node
    length: Node
    hidden: Node
    position: Node

    @property
    def state(self) -> dict[str, Node]:
        """The committed part of `forward`'s state."""
        return {"k_cache": self.k_cache, "v_cache": self.v_cache, "length": self.length}


def weight_nodes(b: StepBuilder, model: DraftModel) -> dict[str, Node]:
    """Every weight that the drafter reads, by program name."""
    return {name: b.weight(name) for name in model.weights}


def _column(b: StepBuilder, node: Node) -> Node:
    return b.call(aten.unsqueeze.default, node, 1)


def _run(
    b: StepBuilder,
    model: DraftModel,
    w: Mapping[str, Node],
    caches: Mapping[str, Node],
    rows: tuple[Node, Node | None],
    start: Node,
    count: Node,
) -> tuple[Outputs, dict[str, Node]]:
    """A chain of tokens and features `rows` [B,M] from row `start` [B]: outputs, and the caches with the first
    `count` [B] rows appended."""
    tokens, features = rows
    offset = b.call(ops.iota, tokens, -2)
    positions = b.call(aten.add.Tensor, _column(b, start), offset, name="draft_positions")
    hidden = None if features is None else project_features(b, model, w, features)
    state = {"k_cache": caches[CACHES[0]], "v_cache": caches[CACHES[1]], "length": start}
    out = forward(b, model, w, Rows(tokens, positions, hidden), state)
    after = {
        name: append_layers(b, model.info, caches[name], new, start, count, name)
        for name, new in zip(CACHES, (out.k, out.v), strict=True)
    }
    return out, after


def _row_number(b: StepBuilder, node: Node, name: str) -> Node:
    """Never negative in a reachable state: no more tokens are recent than there are. The clamp states it, so that
    index analysis can prove the address."""
    return b.call(aten.clamp_min.default, node, 0, name=name)


def catch_up(b: StepBuilder, model: DraftModel, w: Mapping[str, Node]) -> Root:
    """Computes the rows of the recent tokens and stores them; running it twice changes nothing. Finished rows keep
    their caches."""
    length, count = b.slot("length"), b.slot("recent_count")
    committed = b.call(aten.add.Tensor, length, model.offset, name="draft_length")
    start = _row_number(b, b.call(aten.sub.Tensor, committed, count), "recent_start")
    written = b.call(aten.masked_fill.Scalar, count, b.slot("finished"), 0, name="written")
    features = b.slot("recent_features") if model.eagle else None
    caches = {name: b.slot(name) for name in CACHES}
    out, after = _run(b, model, w, caches, (b.slot("recent_tokens"), features), start, written)
    for name in CACHES:
        b.update(name, after[name])
    last = _column(b, b.call(aten.clamp_min.default, b.call(aten.sub.Tensor, count, 1), 0))
    batch = b.call(ops.batch_index, last)
    hidden = b.call(aten.index.Tensor, out.hidden, [batch, last], name="root_hidden")
    position = _column(b, b.call(aten.sub.Tensor, committed, 1))
    return Root(after[CACHES[0]], after[CACHES[1]], committed, hidden, position)


def prefill_rows(
    b: StepBuilder, model: DraftModel, ids: Node, lengths: Node, features: Node | None, start: Node
) -> None:
    """Appends the drafter's rows of a prompt chunk: ids [B,T], lengths [B], features [B,T,F], start [B] (committed).

    The recent tokens without the root are caught up first; the chunk's first token takes the root's place. A head pairs
    that token with the newest recent feature; at the start of a text there is none, and its rows begin one later.
    """
    w = weight_nodes(b, model)
    caches = {name: b.slot(name) for name in CACHES}
    count = b.slot("recent_count")
    begin = b.call(aten.add.Tensor, start, model.offset)
    begin = _row_number(b, b.call(aten.sub.Tensor, begin, count), "recent_start")
    moved = b.call(aten.gt.Scalar, lengths, 0)
    left = b.call(aten.clamp_min.default, b.call(aten.sub.Tensor, count, 1), 0)
    left = b.call(aten.where.self, moved, left, b.call(aten.zeros_like.default, left), name="left_behind")
    recent = b.slot("recent_features") if model.eagle else None
    _, caches = _run(b, model, w, caches, (b.slot("recent_tokens"), recent), begin, left)
    first = start
    if model.eagle and features is not None:
        fresh = b.call(aten.eq.Scalar, start, 0, name="starts_text")
        ids, features = _shifted(b, ids, features, fresh, left)
        skipped = b.call(aten._to_copy.default, fresh, dtype=torch.int64)
        first = b.call(aten.add.Tensor, b.call(aten.sub.Tensor, start, 1), skipped)
        first = _row_number(b, first, "first_row")
        lengths = b.call(aten.clamp_min.default, b.call(aten.sub.Tensor, lengths, skipped), 0, name="new_rows")
    _, caches = _run(b, model, w, caches, (ids, features), first, lengths)
    for name in CACHES:
        b.update(name, caches[name])


def _shifted(b: StepBuilder, ids: Node, features: Node, fresh: Node, last: Node) -> tuple[Node, Node]:
    """The tokens and features that a head pairs. A chunk that goes on: token j with feature j - 1 (the newest recent
    one, number `last`, for j = 0). At the start of a text: token j + 1 with feature j; its last row is not used."""
    batch = b.call(ops.batch_index, last)
    newest = b.call(aten.index.Tensor, b.slot("recent_features"), [batch, _column(b, last)], name="newest_feature")
    before = b.call(aten.roll.default, features, [1], [1])
    before = b.call(aten.select_scatter.default, before, b.call(aten.squeeze.dim, newest, 1), 1, 0)
    column = _column(b, fresh)
    tokens = b.call(aten.where.self, column, b.call(aten.roll.default, ids, [-1], [1]), ids, name="paired_tokens")
    wide = b.call(aten.unsqueeze.default, column, 2)
    return tokens, b.call(aten.where.self, wide, features, before, name="paired_features")
