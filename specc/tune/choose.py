"""The choice: expected acceptance length over the time of a step, for chains, static trees and dynamic trees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from specc.spec.defaults import dynamic_capacity
from specc.tune.evidence import (
    NEVER,
    Bools,
    Evidence,
    Ints,
    Recorded,
    Replay,
    accepted,
    accepted_static,
    replay,
)
from specc.tune.ranks import by_depth, probabilities
from specc.tune.shapes import best_shapes
from specc.tune.timing import StepModel
from specc.tune.variants import Kind, Tree

REPLAYED = 12
"""Static trees that are replayed: the best by the dynamic program's own value."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A tree with what it is expected to do. `unknown`: share of positions at which it might accept more than is known;
    `expected`: acceptance length by rank probabilities alone (static trees)."""

    tree: Tree
    replay: Replay
    seconds: float
    unknown: float = 0.0
    expected: float | None = None

    @property
    def rate(self) -> float:
        """Tokens per second of one row."""
        return self.replay.acceptance_length / self.seconds

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "tree": self.tree.label,
            "kind_of_tree": self.tree.kind,
            "nodes": self.tree.nodes,
            "levels": self.tree.steps,
            "top_k": self.tree.top_k,
            "acceptance_length": round(self.replay.acceptance_length, 4),
            "standard_error": round(self.replay.standard_error, 4),
            "steps": self.replay.steps,
            "step_us": round(self.seconds * 1e6, 1),
            "tokens_per_second": round(self.rate, 2),
            "unknown": round(self.unknown, 4),
        }
        if self.tree.choices:
            found["choices"] = [list(path) for path in self.tree.choices]
        if self.expected is not None:
            found["expected_by_ranks"] = round(self.expected, 4)
        return found


@dataclass(frozen=True, slots=True)
class Bounds:
    """The trees that are considered."""

    nodes: int
    levels: int
    top_k: int
    kinds: tuple[Kind, ...]
    method: str

    def cut(self, tree: Tree) -> Tree:
        """The part of a tree that evidence within these bounds can judge."""
        steps, top_k = min(tree.steps, self.levels), min(tree.top_k, self.top_k)
        if tree.kind == "static":
            choices = tuple(path for path in tree.choices if len(path) <= steps and max(path) < top_k)
            return replace(tree, nodes=len(choices), steps=steps, top_k=top_k, choices=choices)
        most = steps if tree.kind == "chain" else dynamic_capacity(self.method, top_k, steps)
        return replace(tree, nodes=min(tree.nodes, most), steps=steps, top_k=top_k)


def judged(evidence: Evidence, tree: Tree, model: StepModel, floor: float | None = None) -> Choice:
    """What a tree is expected to do, pruned by its margin and by `floor` (`prune.min_path_log_prob`)."""
    if tree.kind == "static":
        counts, unknown = accepted_static(evidence.ranks, tree.choices)
    elif isinstance(evidence, Recorded) and not (tree.margin is None and floor is None):
        counts, unknown = pruned_counts(evidence, tree, floor)[0], evidence.unknown(tree.top_k, tree.steps)
    else:
        counts = accepted(evidence.thresholds(tree.top_k, tree.steps), tree.nodes)
        unknown = evidence.unknown(tree.top_k, tree.steps)
    seconds = model.seconds(tree.nodes, tree.steps)
    return Choice(tree, replay(evidence.spans, counts), seconds, float(unknown.mean()))


def ranked_grid(evidence: Evidence, model: StepModel, bounds: Bounds) -> list[Choice]:
    """Chains and dynamic trees of every size within the bounds, the fastest first."""
    found = []
    for top_k in range(1, bounds.top_k + 1):
        kind: Kind = "chain" if top_k == 1 else "dynamic"
        if kind not in bounds.kinds:
            continue
        for levels in range(1, bounds.levels + 1):
            thresholds, unknown = evidence.thresholds(top_k, levels), float(evidence.unknown(top_k, levels).mean())
            most = min(bounds.nodes, dynamic_capacity(bounds.method, top_k, levels))
            for nodes in range(max(levels, top_k), most + 1):
                tree = Tree(kind, nodes, levels, top_k)
                seconds = model.seconds(nodes, levels)
                found.append(Choice(tree, replay(evidence.spans, accepted(thresholds, nodes)), seconds, unknown))
    return sorted(found, key=_speed)


def ranked_static(evidence: Evidence, model: StepModel, bounds: Bounds) -> list[Choice]:
    """The best static trees by the dynamic program, replayed on the recorded text, the fastest first.

    The program knows the probability of each rank at each depth and takes levels as independent; the replay does not.
    """
    if "static" not in bounds.kinds or bounds.method == "prompt_lookup":
        return []
    shares = probabilities(by_depth(evidence.ranks, bounds.top_k))
    made = []
    for levels in range(1, bounds.levels + 1):
        for shape in best_shapes(shares, bounds.nodes, levels)[1:]:
            if shape is not None and shape.depth == levels:
                top_k = 1 + max(rank for path in shape.choices for rank in path)
                tree = Tree("static", len(shape.choices), levels, top_k, shape.choices)
                made.append((1 + shape.value, tree))
    made.sort(key=lambda pair: (-pair[0] / model.seconds(pair[1].nodes, pair[1].steps), pair[1].nodes))
    found = []
    for expected, tree in made[:REPLAYED]:
        choice = judged(evidence, tree, model)
        found.append(Choice(tree, choice.replay, choice.seconds, choice.unknown, expected))
    return sorted(found, key=_speed)


def _speed(choice: Choice) -> tuple[float, int, int]:
    return -choice.rate, choice.tree.nodes, choice.tree.steps


def best_of_each_kind(grid: Sequence[Choice], static: Sequence[Choice]) -> dict[Kind, Choice]:
    """Kind -> its fastest tree, the fastest kind first."""
    found: dict[Kind, Choice] = {}
    for choice in sorted([*grid, *static], key=_speed):
        found.setdefault(choice.tree.kind, choice)
    return found


def heat_map(grid: Sequence[Choice], bounds: Bounds, budgets: Sequence[int]) -> dict[str, Any]:
    """Modelled tokens per second by nodes and levels, the best top_k of each: as the report reads it."""
    best: dict[tuple[int, int], float] = {}
    for choice in grid:
        key = (choice.tree.nodes, choice.tree.steps)
        best[key] = max(best.get(key, 0.0), choice.rate)
    levels = list(range(1, bounds.levels + 1))
    return {
        "name": "budget",
        "title": "Tokens per second by drafted nodes and levels, the best top_k of each",
        "x": {"title": "levels", "values": levels},
        "y": {"title": "nodes", "values": list(budgets)},
        "values": [[_rounded(best.get((nodes, level))) for level in levels] for nodes in budgets],
        "unit": "tokens/s",
        "digits": 1,
        "kind": "modelled",
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def pruned_counts(evidence: Recorded, tree: Tree, floor: float | None = None) -> tuple[Ints, Ints]:
    """[P]: accepted tokens and kept nodes of a dynamic tree (or chain) with its margin, as `keep_likely` prunes: nodes
    with a score of at least best - margin, and of at least `floor`, in float32."""
    eligible = evidence.eligible(tree.top_k) & (evidence.level <= tree.steps)[None]
    order = np.argsort(np.where(eligible, -evidence.score, np.inf), axis=1, kind="stable")[:, : tree.nodes]
    chosen: Bools = np.zeros_like(eligible)
    np.put_along_axis(chosen, order, True, 1)
    chosen &= eligible
    bar = np.full(evidence.score.shape[0], -np.inf, dtype=np.float32)
    if tree.margin is not None:
        bar = np.where(chosen, evidence.score, -np.inf).max(1).astype(np.float32) - np.float32(tree.margin)
    if floor is not None:
        bar = np.maximum(bar, np.float32(floor))
    kept = chosen & (evidence.score >= bar[:, None])
    thresholds = evidence.thresholds(tree.top_k, tree.steps)
    path = np.maximum(evidence.path, 0)
    inside = (thresholds < min(tree.nodes, NEVER)) & np.take_along_axis(kept, path, 1)
    return np.cumprod(inside, axis=1).sum(1), kept.sum(1)


@dataclass(frozen=True, slots=True)
class Margin:
    """One threshold: acceptance length, its share of the unpruned tree's, and the share of nodes that it drops."""

    margin: float
    acceptance_length: float
    kept: float
    saved: float

    def as_json(self) -> Mapping[str, float]:
        return {
            "margin": self.margin,
            "acceptance_length": round(self.acceptance_length, 4),
            "acceptance_kept": round(self.kept, 4),
            "nodes_saved": round(self.saved, 4),
        }


def margins(evidence: Recorded, tree: Tree, values: Sequence[float], floor: float | None = None) -> Iterator[Margin]:
    """The effect of each `prune.path_log_prob_margin` on a dynamic tree or a chain."""
    whole, nodes = pruned_counts(evidence, Tree(tree.kind, tree.nodes, tree.steps, tree.top_k), floor)
    full = replay(evidence.spans, whole).acceptance_length
    for value in values:
        counts, kept = pruned_counts(evidence, Tree(tree.kind, tree.nodes, tree.steps, tree.top_k, (), value), floor)
        length = replay(evidence.spans, counts).acceptance_length
        yield Margin(value, length, length / full, 1 - float(kept.sum()) / max(int(nodes.sum()), 1))


def tightest(found: Sequence[Margin], keep: float) -> Margin | None:
    """The margin that saves most nodes and keeps the share `keep` of the acceptance length; None if none does."""
    enough = [one for one in found if one.kept >= keep]
    return max(enough, key=lambda one: (one.saved, -one.margin)) if enough else None
