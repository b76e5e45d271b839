"""The children of draft nodes: by rank, or drawn without replacement; and pruning by path probability."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.fx import Node

from specc.ir import ops
from specc.ir.build import GraphBuilder
from specc.lower.config import DraftConfig
from specc.lower.drafts.model import DraftModel, target_ids
from specc.lower.sampling import compute_dtype

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Children:
    """Children of M nodes, best (or first drawn) first: target ids and log-probabilities [B,M,k], and the law they
    were drawn from [B,M,V] over the target's vocabulary (drawn drafts only)."""

    token: Node
    log_prob: Node
    law: Node | None


def children(
    b: GraphBuilder,
    model: DraftModel,
    draft: DraftConfig,
    w: Mapping[str, Node],
    logits: Node,
    count: int,
    counters: tuple[Node, Node, Node] | None,
) -> Children:
    """`count` distinct children of each node from its logits [B,M,Vd]; log_prob is float32, clamped to <= 0.

    Ranked: the best by (log-probability desc, id asc), NaN last. Drawn: the first `count` of log q + Gumbel noise,
    which is a draw without replacement from q = softmax(logits / temperature) (Kool et al. 2019, Gumbel-top-k).
    `counters` (drawn only): rng [B], the position of the drawn tokens [B,M] and the purpose [B,M] of the noise.
    """
    law = None
    if draft.draws and counters is not None:
        index, own, law = drawn(b, logits, draft.temperature, count, counters)
        law = _target_law(b, model, w, law)
    else:
        wide = b.call(aten._to_copy.default, logits, dtype=compute_dtype(logits.meta["val"].dtype))
        log_probs = b.call(aten.log_softmax.int, wide, -1, name="draft_log_law")
        # Rounding can leave a log-probability above 0, and a child would then score above its parent.
        own, index = _best(b, b.call(aten.clamp_max.default, log_probs, 0.0), count)
    own = b.call(aten._to_copy.default, own, dtype=torch.float32)
    own = b.call(aten.clamp_max.default, own, 0.0, name="own_log_prob")
    return Children(target_ids(b, model, w, index), own, law)


def drawn(
    b: GraphBuilder, logits: Node, temperature: float, count: int, counters: tuple[Node, Node, Node]
) -> tuple[Node, Node, Node]:
    """Ids and log-probabilities [B,M,count] of children drawn from logits [B,M,Vd], and the law [B,M,Vd]."""
    wide = b.call(aten._to_copy.default, logits, dtype=compute_dtype(logits.meta["val"].dtype))
    wide = b.call(aten.div.Scalar, wide, temperature)
    log_probs = b.call(aten.log_softmax.int, wide, -1, name="draft_log_law")
    keys = b.call(aten.add.Tensor, log_probs, _gumbel(b, counters, logits.meta["val"].shape[-1]), name="perturbed")
    _, index = _best(b, keys, count)
    own = b.call(aten.gather.default, log_probs, -1, index, name="draft_log_prob")
    return index, own, b.call(aten.exp.default, log_probs)


def _best(b: GraphBuilder, scores: Node, count: int) -> tuple[Node, Node]:
    found = b.call(ops.stable_topk, scores, count)
    return b.item(found, 0), b.item(found, 1, "child_id")


def _gumbel(b: GraphBuilder, counters: tuple[Node, Node, Node], size: int) -> Node:
    """-log(-log u) [B,M,size]."""
    uniform = b.call(ops.counter_uniform_rows, *counters, size, name="draw_uniform")
    inner = b.call(aten.neg.default, b.call(aten.log.default, uniform))
    return b.call(aten.neg.default, b.call(aten.log.default, inner), name="gumbel")


def _target_law(b: GraphBuilder, model: DraftModel, w: Mapping[str, Node], law: Node) -> Node:
    """The law [B,M,Vd] over draft ids as [B,M,V] over target ids; 0 where the drafter has no such token."""
    if model.d2t is None:
        return law
    table = w[model.d2t]
    ids = b.call(aten.add.Tensor, table, b.call(ops.iota, table, table.meta["val"].shape[0]), name="target_ids")
    rows, vocabulary = law.meta["val"].shape[1], model.info.geometry.vocab_size
    empty = b.call(ops.full_rows, law, [-1, rows, vocabulary], 0, law.meta["val"].dtype)
    return b.call(aten.index_copy.default, empty, 2, ids, law, name="draft_law")


def keep_likely(b: GraphBuilder, draft: DraftConfig, chosen: Node, score: Node) -> Node:
    """The chosen candidates [B,C] with cumulative float32 score >= best - margin and >= min_log_prob.

    A parent's score is never below its child's, so what is kept is ancestor-closed (design 03, "Pruning").
    """
    kept = chosen
    if draft.margin is not None:
        low = b.call(aten.masked_fill.Scalar, score, b.call(aten.logical_not.default, chosen), -math.inf)
        best = b.call(aten.amax.default, low, [1], True, name="best_score")
        bar = b.call(aten.sub.Tensor, best, draft.margin)
        kept = b.call(aten.logical_and.default, kept, b.call(aten.ge.Tensor, score, bar), name="within_margin")
    if draft.min_log_prob is not None:
        likely = b.call(aten.ge.Scalar, score, draft.min_log_prob)
        kept = b.call(aten.logical_and.default, kept, likely, name="likely_enough")
    return kept


def child_scores(b: GraphBuilder, parent_score: Node, log_prob: Node) -> Node:
    """Cumulative scores [B,M,k] of children: their parents' [B,M] plus their own, in float32."""
    return b.call(aten.add.Tensor, b.call(aten.unsqueeze.default, parent_score, 2), log_prob, name="child_score")
