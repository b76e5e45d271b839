"""`prefill` (a prompt chunk) and `decode` (one plain step) in their naive form: chains of tokens, then an append."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from specc.ir import ops
from specc.ir.dims import BATCH, CHUNK
from specc.lower.config import AcceptConfig, DraftConfig
from specc.lower.context import LowerContext
from specc.lower.drafts import draft_prefill
from specc.lower.layers import append_layers
from specc.lower.sampling import pick_token
from specc.lower.stack import Position, committed_of, delta_of, positions
from specc.lower.step import StepBuilder
from specc.lower.target import TokenRows, token_loop
from specc.lower.verify import head

aten = torch.ops.aten


def _last_hidden(b: StepBuilder, hidden: Node, like: Node, lengths: Node) -> Node:
    """Row lengths[b] - 1 of hidden [B,T,H] as [B,1,H]; a row without tokens reads -1, whose value nobody uses."""
    batch = b.call(ops.batch_index, like, name="batch_rows")
    last = b.call(aten.unsqueeze.default, b.call(aten.sub.Tensor, lengths, 1), 1, name="last_row")
    return b.call(aten.index.Tensor, hidden, [batch, last], name="last_hidden")


def _is_stop(b: StepBuilder, token: Node, accept: AcceptConfig) -> Node:
    """bool [B]: whether `token` [B] ends the sequence."""
    stop = b.call(aten.zeros_like.default, token, dtype=torch.bool)
    for number in accept.stop_tokens:
        stop = b.call(aten.logical_or.default, stop, b.call(aten.eq.Scalar, token, number), name="is_stop")
    return stop


def _kept(ctx: LowerContext, position: Position) -> list[str]:
    """The committed slots of a position."""
    names = committed_of(delta_of(ctx.target.geometry)) if position.recurrent else ("k_cache", "v_cache")
    return [position.prefix + name for name in names]


def _append(b: StepBuilder, ctx: LowerContext, rows: TokenRows, count: Node) -> tuple[Node, Node]:
    """Commits every token: K/V rows are appended, states and windows replaced; returns the old and the new length."""
    length = b.slot("length")
    for position in positions(ctx.target.geometry):
        for name in _kept(ctx, position):
            if position.recurrent:
                b.update(name, rows.tables[name])
                continue
            table = rows.tables[name.replace("_cache", "_table")]
            b.update(name, append_layers(b, ctx.target, b.slot(name), table, length, count, name))
    after = b.call(aten.add.Tensor, length, count, name="new_length")
    b.update("length", after)
    return length, after


def _live_tokens(b: StepBuilder, ctx: LowerContext, ids: Node, lengths: Node) -> Node | None:
    """bool [B,T]: tokens below lengths [B]; nothing where no layer recurs."""
    if not ctx.target.geometry.recurrent:
        return None
    column = b.call(ops.iota, ids, -2, name="column")
    return b.call(aten.lt.Tensor, column, b.call(aten.unsqueeze.default, lengths, 1), name="live_tokens")


def lower_prefill(ctx: LowerContext, accept: AcceptConfig, draft: DraftConfig) -> GraphModule:
    """prefill(state, input_ids [B,T], lengths [B]): appends the rows, picks the root; logits [B,V] of the last token.

    A chain of T tokens; rows at or beyond lengths[b] are padding, lengths[b] = 0 leaves row b untouched. A prompt may
    come in several calls; each picks a root token and the next call's first token replaces it.
    """
    b = StepBuilder(ctx.slots, ctx.weights, ("target", "runtime"))
    ids = b.input("input_ids", (BATCH, CHUNK), torch.int64)
    lengths = b.input("lengths", (BATCH,), torch.int64)
    rows = token_loop(b, ctx, ids, live=_live_tokens(b, ctx, ids, lengths), trip=None)
    hidden = _last_hidden(b, rows.hidden, ids, lengths)
    logits = b.call(aten.squeeze.dim, head(b, ctx.target, hidden, "last_logits"), 1, name="logits")
    before, after = _append(b, ctx, rows, lengths)
    live = b.call(aten.gt.Scalar, lengths, 0, name="live")
    with b.spec("accept", "sampling"):
        picked = pick_token(b, accept, logits, after)
        root = b.call(aten.where.self, live, picked, b.slot("root_token"), name="new_root")
        b.update("root_token", root)
        stop = _is_stop(b, root, accept)
        b.update("finished", b.call(aten.where.self, live, stop, b.slot("finished"), name="new_finished"))
    with b.spec("draft"):
        draft_prefill(b, ctx, draft, ids, lengths, root, rows.features, before)
    b.result("logits", logits)
    return b.finish()


def lower_decode(ctx: LowerContext, accept: AcceptConfig) -> GraphModule:
    """decode(state): one plain step, the baseline of every comparison; logits [B,V] after the root token.

    Commits the root token and picks the next one; finished rows are untouched. The drafter's slots are left behind, so
    a sequence that was decoded plainly stays plain until it is reset.
    """
    b = StepBuilder(ctx.slots, ctx.weights, ("target", "sampling"))
    finished = b.slot("finished")
    remaining = b.slot("remaining")
    tokens = b.call(aten.unsqueeze.default, b.slot("root_token"), 1, name="tokens")
    room = b.call(aten.lt.Scalar, b.slot("length"), ctx.max_sequence_length)
    allowed = b.call(aten.logical_and.default, b.call(aten.gt.Scalar, remaining, 0), room)
    live = b.call(aten.logical_and.default, b.call(aten.logical_not.default, finished), allowed, name="live")
    count = b.call(aten._to_copy.default, live, dtype=torch.int64, name="count")
    recurs = ctx.target.geometry.recurrent
    alive = b.call(aten.unsqueeze.default, live, 1, name="live_token") if recurs else None
    rows = token_loop(b, ctx, tokens, live=alive, trip=1)
    logits = b.call(aten.squeeze.dim, head(b, ctx.target, rows.hidden, "row_logits"), 1, name="logits")
    _, after = _append(b, ctx, rows, count)
    picked = pick_token(b, accept, logits, after)
    root = b.call(aten.where.self, live, picked, b.slot("root_token"), name="new_root")
    b.update("root_token", root)
    left = b.call(aten.sub.Tensor, remaining, count, name="new_remaining")
    b.update("remaining", left)
    full = b.call(aten.ge.Scalar, after, ctx.max_sequence_length, name="full")
    spent = b.call(aten.logical_or.default, b.call(aten.le.Scalar, left, 0), full)
    ended = b.call(aten.logical_or.default, _is_stop(b, root, accept), spent)
    b.update("finished", b.call(aten.logical_or.default, finished, ended, name="new_finished"))
    b.result("logits", logits)
    b.result("emitted", count)
    return b.finish()
