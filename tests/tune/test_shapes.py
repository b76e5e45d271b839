"""The dynamic program over static trees, against all trees of a size."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.tune.shapes import RankPath, best_shapes, expected_accepted


def all_trees(nodes: int, depth: int, ranks: int) -> Iterator[frozenset[RankPath]]:
    """Every prefix-closed set of `nodes` rank paths, grown node by node."""
    level: set[frozenset[RankPath]] = {frozenset()}
    for _ in range(nodes):
        level = {
            tree | {(*above, rank)}
            for tree in level
            for above in {(), *tree}
            for rank in range(ranks)
            if len(above) < depth and (*above, rank) not in tree
        }
    yield from level


@st.composite
def shares(draw: st.DrawFn) -> list[list[float]]:
    depth, ranks = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    parts = st.lists(st.integers(0, 6), min_size=ranks + 1, max_size=ranks + 1)
    rows = [draw(parts) for _ in range(depth)]
    return [[part / max(sum(row), 1) for part in row[:-1]] for row in rows]


@settings(max_examples=40, deadline=None)
@given(shares(), st.integers(1, 5))
def test_the_program_finds_the_best_of_all_trees(probabilities: list[list[float]], nodes: int) -> None:
    depth, ranks = len(probabilities), len(probabilities[0])
    for count, shape in enumerate(best_shapes(probabilities, nodes, depth)):
        values = [expected_accepted(sorted(tree), probabilities) for tree in all_trees(count, depth, ranks)]
        if not values:
            assert shape is None
            continue
        assert shape is not None
        assert len(shape.choices) == len(set(shape.choices)) == count
        assert math.isclose(shape.value, max(values), abs_tol=1e-12)
        assert math.isclose(shape.value, expected_accepted(shape.choices, probabilities), abs_tol=1e-12)


@settings(max_examples=40, deadline=None)
@given(shares(), st.integers(1, 9))
def test_choices_have_the_form_that_specs_want(probabilities: list[list[float]], nodes: int) -> None:
    for shape in best_shapes(probabilities, nodes, len(probabilities)):
        if shape is not None:
            assert list(shape.choices) == sorted(shape.choices, key=lambda path: (len(path), path))
            assert all(path[:-1] in {(), *shape.choices} for path in shape.choices)
            assert shape.depth <= len(probabilities)


def test_more_nodes_and_more_levels_are_never_worse() -> None:
    probabilities = [[0.6, 0.2, 0.1], [0.5, 0.2, 0.1], [0.4, 0.3, 0.1]]
    by_depth = [best_shapes(probabilities, 9, depth) for depth in (1, 2, 3)]
    for shapes in by_depth:
        values = [shape.value for shape in shapes if shape is not None]
        assert values == sorted(values)
    for shallow, deep in zip(by_depth[1], by_depth[2], strict=True):
        assert shallow is None or (deep is not None and deep.value >= shallow.value - 1e-12)


def test_a_sure_drafter_gets_a_chain_and_an_undecided_one_siblings() -> None:
    sure = best_shapes([[0.9, 0.05]] * 4, 4, 4)[4]
    undecided = best_shapes([[0.3, 0.3, 0.3]] * 3, 3, 3)[3]
    assert sure is not None
    assert undecided is not None
    assert sure.choices == ((0,), (0, 0), (0, 0, 0), (0, 0, 0, 0))
    assert undecided.choices == ((0,), (1,), (2,))


def test_what_is_no_probability_is_refused() -> None:
    for wrong in ([[0.7, 0.6]], [[-0.1]], [[1.5]]):
        with pytest.raises(ValueError, match="no probabilities"):
            best_shapes(wrong, 2, 1)
    with pytest.raises(ValueError, match="1 depths"):
        best_shapes([[0.5]], 2, 2)
