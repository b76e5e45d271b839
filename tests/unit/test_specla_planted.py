"""Drafts of a given quality: legal trees around a text, right as often as their law says."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.bench.specla.planted import (
    break_even,
    children_of,
    depth_of,
    expected_acceptance_length,
    planted,
    right_path,
)
from specc.bench.specla.sensitivity import SHAPES
from specc.testing.draft_tree import DraftTree

VOCABULARY = 11


@st.composite
def shapes(draw: st.DrawFn) -> list[int]:
    """Parents of a tree of at most 12 nodes with at most 4 children each."""
    parent = [-1]
    for _ in range(draw(st.integers(0, 11))):
        open_nodes = [node for node in range(len(parent)) if parent.count(node) < 4]
        parent.append(draw(st.sampled_from(open_nodes)))
    return parent


def accepted(tree: DraftTree, text: list[int]) -> list[int]:
    """The nodes that greedy acceptance takes where the target says `text`, from below the root on."""
    path, node = list[int](), 0
    while True:
        right = [below for below in tree.children(node) if len(path) + 1 < len(text)]
        right = [below for below in right if tree.tokens[below] == text[len(path) + 1]]
        if not right:
            return path
        node = right[0]
        path.append(node)


@given(shapes(), st.sampled_from([0.0, 0.3, 0.7, 1.0]), st.integers(0, 99), st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_exactly_the_drawn_path_is_right_and_siblings_differ(parent: list[int], p: float, seed: int, size: int) -> None:
    text = [Random(seed).randrange(VOCABULARY) for _ in range(size)]
    tree = planted(parent, text, VOCABULARY, p, Random(seed))
    assert list(tree.parent) == parent
    assert tree.num_valid == len(parent)
    assert tree.tokens[0] == text[0]
    for below in children_of(parent):
        assert len({tree.tokens[node] for node in below}) == len(below)
    assert accepted(tree, text) == right_path(parent, size - 1, p, Random(seed))


@given(shapes())
@settings(max_examples=30, deadline=None)
def test_the_oracle_takes_the_eldest_path_and_no_chance_takes_nothing(parent: list[int]) -> None:
    path = right_path(parent, 99, 1.0, Random(0))
    eldest, node = list[int](), 0
    while children_of(parent)[node]:
        node = children_of(parent)[node][0]
        eldest.append(node)
    assert path == eldest
    assert expected_acceptance_length(parent, 1.0) == len(eldest) + 1
    assert right_path(parent, 99, 0.0, Random(0)) == []
    assert expected_acceptance_length(parent, 0.0) == 1


@pytest.mark.parametrize("name", sorted(SHAPES))
@pytest.mark.parametrize("p", [0.3, 0.7, 0.9])
def test_drawn_paths_are_as_long_as_expected(name: str, p: float) -> None:
    parent, rng = SHAPES[name].parent, Random(1)
    lengths = [1 + len(right_path(parent, 99, p, rng)) for _ in range(4000)]
    assert sum(lengths) / len(lengths) == pytest.approx(expected_acceptance_length(parent, p), rel=0.05)


def test_a_chain_follows_the_geometric_law() -> None:
    chain = SHAPES["chain of 8"].parent
    assert expected_acceptance_length(chain, 0.7) == pytest.approx((1 - 0.7**9) / 0.3)
    assert [SHAPES[name].depth for name in SHAPES] == [8, 6, 12]
    assert [len(SHAPES[name].parent) for name in SHAPES] == [9, 16, 16]
    assert depth_of([-1]) == 0


def test_a_vocabulary_too_small_for_the_siblings_is_refused() -> None:
    with pytest.raises(ValueError, match="3 siblings need more than 3 tokens"):
        planted([-1, 0, 0, 0], [0, 1], 3, 0.0, Random(0))


def test_break_even_lies_between_measured_points() -> None:
    assert break_even([(0.0, 0.5), (0.5, 0.8), (1.0, 1.8)]) == pytest.approx(0.6)
    assert break_even([(0.0, 1.1), (1.0, 2.0)]) == 0.0
    assert break_even([(0.0, 0.5), (1.0, 0.9)]) is None
    # A speed-up that falls below 1 again does not count before that.
    assert break_even([(0.0, 0.9), (0.2, 1.1), (0.4, 0.9), (0.6, 1.1)]) == pytest.approx(0.5)
    assert break_even([]) is None
