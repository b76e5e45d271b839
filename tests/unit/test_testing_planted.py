"""Planted trees: well formed, and accepted often enough to count."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specc.testing import (
    Acceptance,
    DraftTree,
    Exercise,
    PlantedShape,
    check_distinct_siblings,
    check_padding,
    check_parent,
    depth,
    greedy_accept,
    make_tree,
    plant_tree,
)


def accept(tree: DraftTree, continuation: list[int], num_steps: int) -> Acceptance:
    """Greedy acceptance by a target that emits `continuation` and, off it, a token that nobody drafts."""
    argmax = [-1] * tree.num_nodes
    node = 0
    for token in continuation[1:]:
        argmax[node] = token
        match = [child for child in tree.children(node) if tree.tokens[child] == token]
        if not match:
            break
        node = match[0]
    return greedy_accept(tree, argmax, num_steps)


@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 16),
    st.integers(1, 6),
    st.integers(1, 4),
    st.lists(st.integers(0, 5), min_size=1, max_size=8),
)
def test_planted_tree_is_well_formed_and_within_bounds(
    seed: int, num_nodes: int, num_steps: int, top_k: int, continuation: list[int]
) -> None:
    tree = plant_tree(continuation, 6, PlantedShape(num_nodes, num_steps, top_k), Random(seed))
    for check in (check_parent, check_padding, check_distinct_siblings):
        check(tree)
    assert tree.num_nodes == num_nodes
    assert tree.tokens[0] == continuation[0]
    assert max(depth(tree)) <= num_steps
    assert all(len(tree.children(node)) <= top_k for node in range(num_nodes))
    assert all(0 <= token < 6 for token in tree.tokens)


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 2), min_size=2, max_size=5))
def test_decoys_are_never_right(seed: int, continuation: list[int]) -> None:
    shape = PlantedShape(8, 4, 2, nothing_right=1.0)
    tree = plant_tree(continuation, 3, shape, Random(seed))
    assert accept(tree, continuation, 4).accept_length == 0


@given(st.integers(0, 2**32 - 1), st.integers(1, 4))
def test_the_right_first_token_is_drafted_unless_an_error_is_drawn(seed: int, num_steps: int) -> None:
    shape = PlantedShape(2, num_steps, 1, nothing_right=0.0, short=0.0)
    tree = plant_tree([3, 1], 4, shape, Random(seed))
    assert tree.tokens == (3, 1)


@pytest.mark.parametrize(("num_nodes", "num_steps", "top_k"), [(16, 5, 4), (8, 3, 2), (6, 3, 3), (32, 8, 4)])
def test_planted_trees_exercise_acceptance(num_nodes: int, num_steps: int, top_k: int) -> None:
    rng = Random(11)
    shape = PlantedShape(num_nodes, num_steps, top_k)
    seen = Exercise()
    for _ in range(400):
        continuation = [rng.randrange(12) for _ in range(num_steps + 2)]
        tree = plant_tree(continuation, 12, shape, rng)
        seen.record(tree, accept(tree, continuation, num_steps))
    seen.require()
    assert 0.02 * seen.steps < seen.accept_none < 0.5 * seen.steps


def test_random_trees_do_not_count() -> None:
    rng = Random(3)
    seen = Exercise()
    for _ in range(400):
        parent = [-1] + [rng.randrange(i) for i in range(1, 16)]
        tree = make_tree([rng.randrange(97) for _ in parent], parent)
        seen.record(tree, accept(tree, [rng.randrange(97) for _ in range(8)], 15))
    assert seen.accept_branch < 0.05 * seen.steps
    with pytest.raises(AssertionError, match=r"accept >= 2: .*accept a branch: .*padding nodes"):
        seen.require()


def test_exercise_counts_what_it_says() -> None:
    chain = make_tree([1, 2, 3], [-1, 0, 1])
    branchy = make_tree([1, 2, 3, 4], [-1, 0, 0, 2], 5)
    seen = Exercise()
    seen.record(chain, Acceptance((0, 1, 2), 2, 9, False))
    seen.record(branchy, Acceptance((0, 2, 0), 1, 9, False))
    seen.record(branchy, Acceptance((0, 0, 0), 0, 9, False))
    seen.record_idle()
    assert seen == Exercise(steps=4, accept_two=1, accept_branch=1, padding=3, accept_none=1)
    seen.add(seen)
    assert seen == Exercise(steps=8, accept_two=2, accept_branch=2, padding=6, accept_none=2)
    assert Exercise().shortfalls() == ["no step was run"]
    assert len(seen.shortfalls()) == 1
    seen.require(two=0.25)
