"""The model of the time of a step, intervals of shares, and the plan of what is timed."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.spec.defaults import dynamic_capacity
from specc.tune import timing
from specc.tune.ranks import wilson
from specc.tune.timing import EDGES, FEWEST_POINTS, ROUNDS, Point, StepModel, Timed, fit, planned, time_rounds
from specc.tune.variants import Tree

PLAN = planned(4, 6, 31, "eagle3")


def points(base: float, node: float, level: float) -> list[Point]:
    made = []
    for tree in PLAN:
        seconds = base + node * tree.nodes + level * tree.steps
        made.append(Point(tree, seconds, seconds, seconds, 9))
    return made


def cost(model: StepModel, found: list[Point]) -> float:
    return sum((model.seconds(point.tree.nodes, point.tree.steps) / point.seconds - 1) ** 2 for point in found)


@settings(deadline=None)
@given(st.floats(1e-4, 1e-2), st.floats(0, 1e-4), st.floats(0, 1e-3))
def test_times_that_follow_the_model_are_found(base: float, node: float, level: float) -> None:
    model = fit(points(base, node, level))
    assert model.worst is not None
    assert model.worst < 1e-6
    assert model.left_out is not None
    assert model.left_out < 1e-5
    assert model.seconds(13, 3) == pytest.approx(base + 13 * node + 3 * level, rel=1e-6)


@settings(deadline=None)
@given(st.lists(st.floats(0.5, 2), min_size=len(PLAN), max_size=len(PLAN)), st.randoms(use_true_random=False))
def test_no_other_model_without_negative_parts_is_nearer(noise: list[float], random: object) -> None:
    found = [
        Point(one.tree, one.seconds * factor, one.seconds, one.seconds, 9)
        for one, factor in zip(points(1e-3, 1e-5, 1e-4), noise, strict=True)
    ]
    model = fit(found)
    assert min(model.base, model.node, model.level) >= 0
    for step in (0.9, 1.1, 1.01, 0.99):
        for part in range(3):
            values = [model.base, model.node, model.level]
            values[part] = values[part] * step + (1e-7 if step > 1 else 0)
            assert cost(model, found) <= cost(StepModel(values[0], values[1], values[2], None, None, ()), found) + 1e-12


@settings(deadline=None)
@given(st.floats(1e-4, 1e-2), st.floats(0, 1e-4), st.floats(1e-5, 1e-3), st.floats(1e-4, 1e-2), st.booleans())
def test_a_step_that_takes_longer_above_a_tile_is_found(
    base: float, node: float, level: float, edge: float, wide: bool
) -> None:
    nodes, edges = (40, (16, 32)) if wide else (31, (16,))
    made = []
    for tree in planned(4, 6, nodes, "eagle3", EDGES):
        seconds = (
            base + node * tree.nodes + level * tree.steps + edge * (tree.nodes > 15) + 2 * edge * (tree.nodes > 31)
        )
        made.append(Point(tree, seconds, seconds, seconds, 9))
    model = fit(made, EDGES)
    assert [rows for rows, _ in model.edges] == list(edges)
    assert model.seconds(15, 4) == pytest.approx(base + 15 * node + 4 * level, rel=1e-5)
    assert model.seconds(16, 4) == pytest.approx(base + 16 * node + 4 * level + edge, rel=1e-5)
    smooth = fit(made)
    assert smooth.seconds(16, 4) - smooth.seconds(15, 4) < 0.9 * (edge + node)  # what knows of no edge spreads it


def test_trees_are_timed_in_turn_and_the_least_time_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second round is disturbed, the third is quieter than the first; what is known isn't timed again."""
    first, second, third = PLAN[:3]
    calls: list[Timed] = []

    def steps(decoder: object, prompts: object, tree: Tree, seconds: float, *, plain: bool = False) -> Point:
        assert decoder == tree
        calls.append((tree, plain))
        spent = {0: 5.0, 1: 9.0, 2: 4.0, 3: 6.0}[(len(calls) - 1) // 3]
        return Point(tree, spent, spent, spent, 9)

    monkeypatch.setattr(timing, "time_steps", steps)
    wanted: list[Timed] = [(first, False), (first, True), (second, False), (third, False)]
    known = {(third, False): Point(third, 1.0, 1.0, 1.0, 9)}
    made: list[Tree] = []

    def decoder_of(tree: Tree) -> Any:
        made.append(tree)
        return tree

    found = time_rounds(wanted, decoder_of, [[1]], time.monotonic() + 600, known)
    assert made == [first, second]
    assert calls == wanted[:3] * ROUNDS
    assert {one: point.seconds for one, point in found.items()} == dict.fromkeys(wanted[:3], 4.0)
    calls.clear()
    late = time_rounds(wanted, decoder_of, [[1]], time.monotonic() - 1, {})
    assert len(late) == FEWEST_POINTS


def test_a_model_through_all_points_does_not_boast_of_its_error() -> None:
    two = points(1e-3, 1e-5, 0)[:2]
    assert fit(two).worst is None
    assert fit(two[:1]).seconds(1, 1) > 0
    with pytest.raises(ValueError, match="needs a point"):
        fit([])


@pytest.mark.parametrize("method", ["eagle3", "prompt_lookup"])
@pytest.mark.parametrize(("top_k", "levels", "nodes"), [(4, 8, 31), (4, 1, 8), (1, 4, 4), (2, 3, 4), (3, 2, 63)])
def test_planned_trees_are_legal_and_distinct(method: str, top_k: int, levels: int, nodes: int) -> None:
    plan = planned(top_k, levels, nodes, method)
    assert plan
    assert len(set(plan)) == len(plan)
    for tree in plan:
        assert 1 <= tree.steps <= levels
        assert tree.steps <= tree.nodes <= max(nodes, levels)
        assert tree.nodes <= dynamic_capacity(method, top_k, tree.steps)
        assert tree.kind == ("chain" if top_k == 1 else "dynamic")


def test_an_interval_holds_its_share_and_narrows() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    for hits, trials in ((0, 5), (5, 5), (3, 10), (300, 1000)):
        low, high = wilson(hits, trials)
        assert 0 <= low <= hits / trials <= high <= 1
    # Wilson (1927), the interval of 8 of 10 at 95%: 0.490 to 0.943.
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)


def test_a_label_names_the_tree() -> None:
    assert Tree("chain", 3, 3, 1).label == "chain of 3"
    assert Tree("dynamic", 7, 3, 2, (), 4.0).label == "dynamic 7 nodes, 3 levels, top_k 2, margin 4"
