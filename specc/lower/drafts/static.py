"""Static trees: `choices` fixes the shape, the drafter the tokens.

Choice [r1, …, rd] is the child of rank rd of the node of [r1, …, r(d-1)]. Only nodes with children run through the
drafter, all of a level at once; the levels differ in width and are written out one after the other. Drawn drafts take
the j-th draw for the j-th child in the tree.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.fx import Node

from specc.ir import ops
from specc.lower.config import DraftConfig
from specc.lower.context import LowerContext
from specc.lower.drafts.catch_up import Root, catch_up, weight_nodes
from specc.lower.drafts.children import child_scores, children, keep_likely
from specc.lower.drafts.dynamic import Candidates, joined, pack
from specc.lower.drafts.model import DraftModel, Rows, draft_logits, draft_model, forward
from specc.lower.drafts.result import Draft
from specc.lower.drafts.tables import node_tables
from specc.lower.sampling import DRAFT_DRAW
from specc.lower.step import StepBuilder

aten = torch.ops.aten
RankPath = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """The structure of a static tree. Candidates are numbered by (length, ranks); -1 is the root."""

    choices: tuple[RankPath, ...]

    @classmethod
    def of(cls, choices: tuple[RankPath, ...]) -> Shape:
        """Raises ValueError for choices that are not closed under prefixes or occur twice."""
        ordered = tuple(sorted(choices, key=lambda path: (len(path), path)))
        if len(set(ordered)) < len(ordered) or any(path[:-1] not in {(), *ordered} for path in ordered):
            raise ValueError("choices must be distinct rank paths, each with its prefixes")
        return cls(ordered)

    def number(self, path: RankPath) -> int:
        """A path's candidate number."""
        return self.choices.index(path) if path else -1

    def level(self, depth: int) -> list[int]:
        """The candidates at a depth."""
        return [number for number, path in enumerate(self.choices) if len(path) == depth]

    def children(self, number: int) -> list[int]:
        """The children of a candidate, by rank."""
        path = self.choices[number] if number >= 0 else ()
        return [child for child, other in enumerate(self.choices) if other[:-1] == path]

    def parent(self, number: int) -> int:
        """The parent's number."""
        return self.number(self.choices[number][:-1])

    @property
    def depth(self) -> int:
        """Levels below the root."""
        return len(self.choices[-1])

    @property
    def expanded(self) -> list[int]:
        """The candidates that have children, in order: each has one row in the drafter's tables."""
        return [number for number in range(len(self.choices)) if self.children(number)]

    def ancestors(self, number: int) -> list[int]:
        """A candidate and its ancestors."""
        return [self.number(self.choices[number][:length]) for length in range(1, len(self.choices[number]) + 1)]


@dataclass(frozen=True, slots=True)
class _Level:
    """What one level leaves: its candidates, their parents' outputs for a head [B,M,H], its laws [B,rows,V]."""

    candidates: Candidates
    law: Node | None


def static_tree(b: StepBuilder, ctx: LowerContext, draft: DraftConfig) -> Draft:
    """The tree of `choices`; q_probs for drawn drafts. A chain of ranks, too, if the program is a chain."""
    model = draft_model(ctx, draft)
    w = weight_nodes(b, model)
    root = catch_up(b, model, w)
    shape = Shape.of(draft.choices)
    levels, hidden = [_level(b, model, draft, w, shape, [-1], root.hidden, None)], root.hidden
    tables = node_tables(b, model, root.position, max(len(shape.expanded), 1))
    rows = [-1]
    for depth in range(1, shape.depth):
        parents = [number for number in shape.level(depth) if shape.children(number)]
        features = _pick(b, hidden, [rows.index(shape.parent(number)) for number in parents])
        hidden = _run(b, model, w, shape, root, tables, parents, levels[-1], features)
        levels.append(_level(b, model, draft, w, shape, parents, hidden, levels[-1]))
        rows = parents
    found = joined(b, [level.candidates for level in levels])
    kept = b.call(aten.eq.Scalar, b.call(aten.zeros_like.default, found.token), 0, name="all_chosen")
    if draft.draws:
        # A drafter with too few possible tokens runs out of draws; what it could not draw is not in the tree.
        kept = b.call(aten.gt.Scalar, found.score, -math.inf, name="drawn")
    with b.spec("draft.prune"):
        kept = keep_likely(b, draft, kept, found.score)
    made, source = pack(b, ctx, kept, found)
    return Draft(made.tokens, made.parent, made.valid, made.log_probs, _laws(b, shape, levels, source))


def _pick(b: StepBuilder, table: Node, places: list[int]) -> Node:
    """table [B,M,…] at fixed places of dim 1."""
    return b.call(aten.index_select.default, table, 1, b.call(ops.int_table, table, places, [len(places)]))


def _column(b: StepBuilder, node: Node) -> Node:
    return b.call(aten.unsqueeze.default, node, 1)


def _level(
    b: StepBuilder,
    model: DraftModel,
    draft: DraftConfig,
    w: Mapping[str, Node],
    shape: Shape,
    parents: list[int],
    hidden: Node,
    above: _Level | None,
) -> _Level:
    """The children of `parents` (all of one depth) from the drafter's outputs there [B,len(parents),H]."""
    ranks = _ranks(shape, parents, draft.draws)
    count = max(ranks.values()) + 1
    if count > model.vocabulary:
        raise ValueError(f"rank {count - 1} of `choices` exceeds the draft vocabulary of {model.vocabulary} tokens")
    counters = _counters(b, shape, parents) if draft.draws else None
    found = children(b, model, draft, w, draft_logits(b, model, w, hidden), count, counters)
    above_score = None if above is None else at_parents(b, shape, parents, above.candidates.score)
    return _Level(placed(b, shape, parents, (found.token, found.log_prob), above_score, ranks), found.law)


def _ranks(shape: Shape, parents: list[int], draws: bool) -> dict[int, int]:
    """Which of its parent's children a candidate is: by its rank, or drawn ones one after the other."""
    ranks: dict[int, int] = {}
    for parent in parents:
        for place, child in enumerate(shape.children(parent)):
            ranks[child] = place if draws else shape.choices[child][-1]
    return ranks


def placed(
    b: StepBuilder,
    shape: Shape,
    parents: list[int],
    found: tuple[Node, Node],
    above_score: Node | None,
    ranks: Mapping[int, int] | None = None,
) -> Candidates:
    """The children of `parents` as candidates [B,kids], of tokens and log-probabilities [B,len(parents),count] by rank;
    `above_score` [B,len(parents)]: the parents' own, None for the root."""
    ranks = ranks or _ranks(shape, parents, draws=False)
    token, log_prob = found
    count = token.meta["val"].shape[2]
    kids = [(row, child) for row, parent in enumerate(parents) for child in shape.children(parent)]
    score = log_prob if above_score is None else child_scores(b, above_score, log_prob)
    places = [row * count + ranks[child] for row, child in kids]
    token, log_prob, score = (
        _pick(b, b.call(aten.flatten.using_ints, part, 1, 2), places) for part in (token, log_prob, score)
    )
    above_number = b.call(ops.int_table, token, [parents[row] for row, _ in kids], [len(kids)])
    parent = b.call(aten.add.Tensor, b.call(aten.zeros_like.default, token), above_number)
    return Candidates(token, parent, log_prob, score)


def at_parents(b: StepBuilder, shape: Shape, parents: list[int], values: Node) -> Node:
    """values [B,M] of a whole level at those candidates that have children."""
    level = shape.level(len(shape.choices[parents[0]]))
    return _pick(b, values, [level.index(number) for number in parents])


def _counters(b: StepBuilder, shape: Shape, parents: list[int]) -> tuple[Node, Node, Node]:
    """rng, position of the drawn tokens and purpose of the noise [B,len(parents)]."""
    depth = len(shape.choices[parents[0]]) if parents[0] >= 0 else 0
    zero = b.call(ops.full_rows, b.slot("length"), [-1, len(parents)], 0, torch.int64)
    position = b.call(aten.add.Tensor, b.call(aten.add.Tensor, zero, _column(b, b.slot("length"))), depth + 1)
    purposes = [DRAFT_DRAW + 1 + number for number in parents]
    purpose = b.call(aten.add.Tensor, zero, b.call(ops.int_table, zero, purposes, [len(parents)]))
    return b.slot("rng"), position, purpose


def _run(
    b: StepBuilder,
    model: DraftModel,
    w: Mapping[str, Node],
    shape: Shape,
    root: Root,
    tables: dict[str, Node],
    parents: list[int],
    above: _Level,
    features: Node,
) -> Node:
    """The drafter on the candidates `parents`, which enter the tables: its outputs [B,len(parents),H]."""
    expanded = shape.expanded
    first = expanded.index(parents[0])
    seen = [int(other in shape.ancestors(number)) for number in parents for other in expanded]
    fixed = b.call(ops.int_table, root.position, seen, [len(parents), len(expanded)])
    nothing = b.call(ops.full_rows, root.position, [-1, len(parents), len(expanded)], 0, torch.int64)
    mask = b.call(aten.ne.Scalar, b.call(aten.add.Tensor, nothing, fixed), 0, name="mask")
    depth = len(shape.choices[parents[0]])
    zero = b.call(ops.full_rows, root.position, [-1, len(parents)], depth, torch.int64)
    positions = b.call(aten.add.Tensor, zero, root.position, name="positions")
    tokens = at_parents(b, shape, parents, above.candidates.token)
    state = {**root.state, **tables, "mask": mask}
    out = forward(
        b, model, w, Rows(tokens, positions, features if model.eagle else None), state, (first, first + len(parents))
    )
    tables["k_table"], tables["v_table"] = out.k, out.v
    return out.hidden


def _laws(b: StepBuilder, shape: Shape, levels: list[_Level], source: Node) -> Node | None:
    """The law of each node's children [B,N,V], zeros where it has none; `source` as `pack` gives it."""
    laws = [level.law for level in levels if level.law is not None]
    if not laws:
        return None
    rows = b.call(aten.cat.default, laws, 1) if len(laws) > 1 else laws[0]
    rows = b.call(aten.constant_pad_nd.default, rows, [0, 0, 0, 1], 0.0, name="laws")
    places = {-1: 0} | {number: row for row, number in enumerate(shape.expanded, start=1)}
    none = len(places)
    row_of = [places.get(number, none) for number in range(-1, len(shape.choices))]
    table = b.call(ops.int_table, source, row_of, [len(row_of)])
    row = b.call(aten.index.Tensor, table, [source], name="law_row")
    return b.call(aten.index.Tensor, rows, [b.call(ops.batch_index, source), row], name="q_probs")
