"""A bigram drafter: the children of a node are the table's candidates for its token. No network, cache or state.

Row t of `draft_next_token` [V,K] holds the K tokens that follow token t most often, best first, `draft_next_log_prob`
[V,K] their log-probabilities. Chains, dynamic trees (EAGLE-2's, numbered as in `specc.lower.drafts.dynamic`) and static
trees are those of a drafter whose distribution depends on the last token only.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.fx import Node

from specc.ir import ops
from specc.ir.build import BodyBuilder, GraphBuilder
from specc.lower.config import DraftConfig
from specc.lower.context import LowerContext
from specc.lower.drafts.chain import chain_of
from specc.lower.drafts.children import child_scores, keep_likely
from specc.lower.drafts.dynamic import Candidates, best_of, choose, joined, numbered, pack
from specc.lower.drafts.result import Draft
from specc.lower.drafts.state import PREFIX
from specc.lower.drafts.static import Shape, at_parents, placed
from specc.lower.step import StepBuilder
from specc.models.bigram import NEXT_LOG_PROB, NEXT_TOKEN, BigramGeometry

aten = torch.ops.aten
TABLES = (NEXT_TOKEN, NEXT_LOG_PROB)


def bigram_draft(b: StepBuilder, ctx: LowerContext, draft: DraftConfig) -> Draft:
    """The draft of a bigram drafter. Raises ValueError for one without tables, and for drawn drafts."""
    if draft.bigram is None or draft.draws:
        raise ValueError("a bigram drafter needs the sizes of its tables, and has no law to draw from")
    if draft.choices:
        return _static(b, ctx, draft, draft.bigram)
    width = 1 if ctx.chain else min(draft.top_k, draft.bigram.candidates_per_token)
    tables = _tables(b, width)
    root = b.call(aten.unsqueeze.default, b.slot("root_token"), 1, name="root")
    return _chain(b, ctx, draft, tables, root) if ctx.chain else _dynamic(b, ctx, draft, tables, root)


def _tables(b: StepBuilder, width: int) -> dict[str, Node]:
    """The first `width` columns of both tables [V,width]."""
    found = {}
    for name in TABLES:
        whole = b.weight(PREFIX + name)
        narrow = whole.meta["val"].shape[1] > width
        found[name] = b.call(aten.narrow.default, whole, 1, 0, width, name=f"best_{name}") if narrow else whole
    return found


def _next(b: GraphBuilder, tables: Mapping[str, Node], token: Node) -> tuple[Node, Node]:
    """What follows tokens [B,M]: tokens and log-probabilities [B,M,width], best first."""
    following = b.call(aten.index.Tensor, tables[NEXT_TOKEN], [token], name="following")
    own = b.call(aten.index.Tensor, tables[NEXT_LOG_PROB], [token], name="following_log_prob")
    # A child that scored above its parent would be kept without it.
    return following, b.call(aten.clamp_max.default, own, 0.0, name="own_log_prob")


def _chain(b: StepBuilder, ctx: LowerContext, draft: DraftConfig, tables: dict[str, Node], root: Node) -> Draft:
    """Node i + 1 is the best follower of node i: a loop that carries the token [B,1]."""
    inside = BodyBuilder("token", carried={"token": root}, sliced={}, invariant=tables, keys=b.keys)
    found = _next(inside, {name: inside[name] for name in TABLES}, inside["token"])
    token, log_prob = (inside.call(aten.squeeze.dim, part, 2) for part in found)
    tokens, log_probs = inside.close(b, ctx.nodes - 1, [token, token, log_prob], "chain")[1:]
    return chain_of(b, draft, tokens, log_probs)


def _dynamic(b: StepBuilder, ctx: LowerContext, draft: DraftConfig, tables: dict[str, Node], root: Node) -> Draft:
    """EAGLE-2's tree: level 1, then a loop over the frontier [B,K] for levels 2 … num_steps."""
    token, log_prob = (b.call(aten.squeeze.dim, part, 1) for part in _next(b, tables, root))
    levels = [Candidates(token, b.call(aten.full_like.default, token, -1), log_prob, log_prob)]
    if draft.num_steps > 1:
        levels.append(_later_levels(b, draft, tables, levels[0]))
    return choose(b, ctx, draft, joined(b, levels))


def _later_levels(outer: StepBuilder, draft: DraftConfig, tables: dict[str, Node], first: Candidates) -> Candidates:
    width = first.token.meta["val"].shape[1]
    zero = outer.call(aten.zeros_like.default, first.token)
    number = outer.call(aten.add.Tensor, zero, outer.call(ops.iota, zero, width), name="frontier")
    carried = {"token": first.token, "number": number, "score": first.score}
    # Levels side by side along dim 1, as tokens are: the whole tree can then be one kernel.
    b = BodyBuilder("token", carried=carried, sliced={}, invariant=tables, keys=outer.keys)
    token, log_prob = _next(b, {name: b[name] for name in TABLES}, b["token"])
    found = numbered(b, token, log_prob, child_scores(b, b["score"], log_prob))
    after, _ = best_of(b, found, width)
    level = [
        b.call(aten.unsqueeze.default, part, 1) for part in (found.token, found.parent, found.log_prob, found.score)
    ]
    results = b.close(outer, draft.num_steps - 1, [*(after[name] for name in carried), *level], "levels")
    # [B, levels, K*K] -> [B, levels*K*K]
    return Candidates(*(outer.call(aten.flatten.using_ints, part, 1, 2) for part in results[len(carried) :]))


def _static(b: StepBuilder, ctx: LowerContext, draft: DraftConfig, geometry: BigramGeometry) -> Draft:
    """The tree of `choices`, level by level; a chain of ranks, too, if the program is a chain."""
    shape = Shape.of(draft.choices)
    width = max(path[-1] for path in shape.choices) + 1
    if width > geometry.candidates_per_token:
        raise ValueError(
            f"rank {width - 1} of `choices` exceeds the table's {geometry.candidates_per_token} candidates"
        )
    tables = _tables(b, width)
    root = b.call(aten.unsqueeze.default, b.slot("root_token"), 1, name="root")
    levels = [placed(b, shape, [-1], _next(b, tables, root), None)]
    for depth in range(1, shape.depth):
        parents = [number for number in shape.level(depth) if shape.children(number)]
        token, score = (at_parents(b, shape, parents, part) for part in (levels[-1].token, levels[-1].score))
        levels.append(placed(b, shape, parents, _next(b, tables, token), score))
    found = joined(b, levels)
    kept = b.call(aten.eq.Scalar, b.call(aten.zeros_like.default, found.token), 0, name="all_chosen")
    with b.spec("draft.prune"):
        kept = keep_likely(b, draft, kept, found.score)
    return pack(b, ctx, kept, found)[0]
