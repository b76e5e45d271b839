"""What a step of a tree costs: measured at a handful of trees, and a model fitted through them.

The model is t = base + node * N + level * D seconds for N drafted nodes on D levels, without negative parts: on a
device that is bound by launches and weight reads the levels cost (the drafter runs once per level), on a CPU the nodes.
Kernels take the N + 1 rows that are verified in tiles of 16, 32, ... rows: where they are used, every edge that is
crossed adds a time of its own.
Its error is measured: at the points themselves, and at each point by the model of all others.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from specc.runtime.module import DecoderLike
from specc.spec.defaults import dynamic_capacity
from specc.tune.variants import Tree

WARM_UP = 3
FEWEST, STEPS, FEWEST_POINTS = 5, 60, 3
"""Steps of a measurement: however little time there is, and with time enough; trees that are timed in any case."""
ROUNDS = 4
"""So often all trees are timed, in turn; the least time counts, for disturbances of a machine add time."""
EDGES = (16, 32, 64)
"""Rows of the kernels' tiles."""
Timed = tuple[Tree, bool]
"""A tree, and whether plain steps of its module are meant."""


@dataclass(frozen=True, slots=True)
class Point:
    """The time of a step of one tree: median and quartiles in seconds, over `steps` steps."""

    tree: Tree
    seconds: float
    low: float
    high: float
    steps: int

    def as_json(self) -> dict[str, Any]:
        tree = self.tree
        return {
            "tree": tree.label,
            "nodes": tree.nodes,
            "levels": tree.steps,
            "top_k": tree.top_k,
            "us": round(self.seconds * 1e6, 1),
            "us_p25": round(self.low * 1e6, 1),
            "us_p75": round(self.high * 1e6, 1),
            "steps": self.steps,
        }


@dataclass(frozen=True, slots=True)
class StepModel:
    """t = base + node * N + level * D in seconds, and for each of the `edges` (rows, seconds) that N + 1 is above its
    seconds. `worst` is the largest relative error at the points (None: no more points than terms, which fit anything),
    `left_out` at a point that the model was fitted without."""

    base: float
    node: float
    level: float
    worst: float | None
    left_out: float | None
    points: tuple[Point, ...]
    edges: tuple[tuple[int, float], ...] = ()

    def seconds(self, nodes: int, levels: int) -> float:
        """The modelled time of a step."""
        crossed = sum(seconds for rows, seconds in self.edges if nodes + 1 > rows)
        return self.base + self.node * nodes + self.level * levels + crossed


def time_steps(
    decoder: DecoderLike, prompts: Sequence[Sequence[int]], tree: Tree, seconds: float, *, plain: bool = False
) -> Point:
    """The time of a step from the host, read-back included: the prompts are decoded again and again, one batch at a
    time, until there are `STEPS` steps, or `FEWEST` and `seconds` are over."""
    spent: list[float] = []
    deadline, warm = time.monotonic() + seconds, 0
    while len(spent) < STEPS and (len(spent) < FEWEST or time.monotonic() < deadline):
        decoder.start(prompts, 10 * STEPS)
        while len(spent) < STEPS and not bool(decoder.state.finished.all()):
            began = time.perf_counter()
            _ = decoder.plain_step() if plain else decoder.step()
            if warm < WARM_UP:
                warm += 1
                continue
            spent.append(time.perf_counter() - began)
            if len(spent) >= FEWEST and time.monotonic() > deadline:
                break
    ordered = sorted(spent)
    quarter = len(ordered) // 4
    return Point(tree, statistics.median(ordered), ordered[quarter], ordered[-1 - quarter], len(ordered))


def time_rounds(
    wanted: Sequence[Timed],
    decoder_of: Callable[[Tree], DecoderLike],
    prompts: Sequence[Sequence[int]],
    deadline: float,
    known: Mapping[Timed, Point],
) -> dict[Timed, Point]:
    """The times of the wanted steps that aren't `known`: all in turn, `ROUNDS` times over or until `deadline` (of
    time.monotonic). The first `FEWEST_POINTS` are timed however late it is."""
    found: dict[Timed, Point] = {}
    decoders: dict[Tree, DecoderLike] = {}
    missing = [one for one in wanted if one not in known]
    for number in range(ROUNDS):
        for place, (tree, plain) in enumerate(missing):
            left = deadline - time.monotonic()
            if left <= 0 and (number or place >= FEWEST_POINTS):
                return found
            each = max(0.2, left / (len(missing) * (ROUNDS - number) - place))
            if tree not in decoders:
                decoders[tree] = decoder_of(tree)
            point = time_steps(decoders[tree], prompts, tree, each, plain=plain)
            before = found.get((tree, plain))
            found[tree, plain] = point if before is None or point.seconds < before.seconds else before
    return found


def fit(points: Sequence[Point], edges: Sequence[int] = ()) -> StepModel:
    """The least-squares model of relative errors without negative parts. `edges`: rows above which a step may take
    longer at once; those that no two points lie apart by are left out. Raises ValueError without points.

    With non-negative coefficients wanted, the best of all subsets of terms whose own solution is non-negative is the
    constrained optimum.
    """
    if not points:
        raise ValueError("a model of the time of a step needs a point")
    rows = [point.tree.nodes + 1 for point in points]
    apart = [edge for edge in edges if min(rows) <= edge < max(rows)]
    found = _coefficients(points, apart)
    errors = [abs(_predict(found, apart, point) / point.seconds - 1) for point in points]
    left_out = None
    if len(points) > 3:
        others = [(point, _coefficients([other for other in points if other is not point], apart)) for point in points]
        left_out = max(abs(_predict(model, apart, point) / point.seconds - 1) for point, model in others)
    worst = max(errors) if len(points) > sum(value > 0 for value in found) else None
    crossed = tuple(zip(apart, found[3:], strict=True))
    return StepModel(found[0], found[1], found[2], worst, left_out, tuple(points), crossed)


def _terms(point: Point, edges: Sequence[int]) -> list[float]:
    """What the coefficients are multiplied with."""
    nodes = point.tree.nodes
    return [1.0, nodes, point.tree.steps, *(float(nodes + 1 > edge) for edge in edges)]


def _predict(coefficients: Sequence[float], edges: Sequence[int], point: Point) -> float:
    return sum(one * term for one, term in zip(coefficients, _terms(point, edges), strict=True))


def _coefficients(points: Sequence[Point], edges: Sequence[int]) -> tuple[float, ...]:
    """Base, node, level and the edges: the terms' columns are divided by the times, so that relative errors are
    minimised."""
    columns = np.array([_terms(point, edges) for point in points])
    scaled = columns / np.array([[point.seconds] for point in points])
    count = columns.shape[1]
    best, least = (0.0,) * count, float("inf")
    for terms in (subset for size in range(1, count + 1) for subset in combinations(range(count), size)):
        if len(terms) > len(points):
            continue
        part = scaled[:, terms]
        solution = np.linalg.lstsq(part, np.ones(len(points)), rcond=None)[0]
        residual = float(((part @ solution - 1) ** 2).sum())
        if (solution >= 0).all() and residual < least - 1e-15:
            values = [0.0] * count
            for term, value in zip(terms, solution, strict=True):
                values[term] = float(value)
            best, least = tuple(values), residual
    return best


def planned(top_k: int, levels: int, most_nodes: int, method: str, edges: Sequence[int] = ()) -> list[Tree]:
    """The trees to time, the most telling first: corners of nodes x levels, both sides of the edges, then points
    between.

    Prompt lookup has top_k * levels candidates, other drafters top_k + (levels - 1) * top_k^2.
    """
    few = max(1, min(levels, 2))
    middle = max(few, (levels + few) // 2)
    beside = [(edge + above, middle) for edge in edges if edge <= most_nodes for above in (-1, 0)]
    wanted = [
        (15, middle), (most_nodes, levels), (4, few), *beside, (most_nodes, few), (7, middle), (levels, levels),
        (15, levels), (7, few),
    ]  # fmt: skip
    found: list[Tree] = []
    for nodes, steps in wanted:
        nodes = max(steps, min(nodes, most_nodes, dynamic_capacity(method, top_k, steps)))
        tree = Tree("dynamic", nodes, steps, top_k) if top_k > 1 else Tree("chain", steps, steps, 1)
        if tree not in found:
            found.append(tree)
    return found
