"""The tree strategies: what they promise, and that they reach the shapes that matter."""

from __future__ import annotations

import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from specc.testing import (
    DraftBatch,
    DraftTree,
    chain_trees,
    check_distinct_siblings,
    check_padding,
    check_parent,
    choices,
    depth,
    draft_batches,
    draft_trees,
    make_tree,
    node_tokens,
    parents,
    path_to,
    prefix_lengths,
    star_trees,
    vocabularies,
)

SHAPES = st.tuples(st.integers(1, 10), st.none() | st.integers(0, 4), st.none() | st.integers(1, 4))


@given(SHAPES, st.integers(1, 5), st.booleans(), st.data())
def test_draft_trees_keep_their_bounds(
    shape: tuple[int, int | None, int | None], vocab_size: int, padding: bool, data: st.DataObject
) -> None:
    size, max_depth, max_children = shape
    strategy = draft_trees(size, 16, vocab_size, max_depth, max_children, padding)
    tree = data.draw(strategy)
    for check in (check_parent, check_padding, check_distinct_siblings):
        check(tree)
    assert tree.num_nodes == size
    assert max_depth is None or max(depth(tree)) <= max_depth
    width = vocab_size if max_children is None else min(max_children, vocab_size)
    assert all(len(tree.children(node)) <= width for node in range(size))
    assert all(0 <= token < vocab_size for token in tree.tokens)
    if not padding and max_depth is None and max_children is None and vocab_size > 9:
        assert not tree.has_padding


@given(draft_trees(6, max_depth=0, padding=False))
def test_depth_zero_leaves_the_root_alone(tree: DraftTree) -> None:
    assert tree.num_valid == 1


@pytest.mark.parametrize(
    "wanted",
    [
        pytest.param(lambda t: t.num_nodes == 16 and not t.has_padding, id="full"),
        pytest.param(lambda t: t.num_valid == 1 and t.num_nodes > 4, id="lone root with padding"),
        pytest.param(lambda t: max(depth(t)) >= 6, id="deep"),
        pytest.param(lambda t: len(t.children(0)) >= 6, id="wide"),
        pytest.param(lambda t: path_to(t, t.num_valid - 1) != list(range(t.num_valid)), id="branching"),
        pytest.param(lambda t: len(t.children(1)) >= 2 and len(t.children(2)) >= 2, id="bushy"),
    ],
)
def test_draft_trees_reach(wanted: object) -> None:
    assert callable(wanted)
    find(draft_trees(), wanted, settings=settings(max_examples=2000, derandomize=True, database=None))


def test_counterexamples_shrink_to_the_smallest_tree() -> None:
    quiet = settings(max_examples=2000, derandomize=True, database=None)
    tree = find(draft_trees(), lambda t: len(t.children(0)) >= 2, settings=quiet)
    assert tree.parent == (-1, 0, 0)
    assert tree.tokens == (0, 0, 1)


@given(st.integers(1, 8), st.data())
def test_parents_fill_their_minimum(size: int, data: st.DataObject) -> None:
    assert len(data.draw(parents(size, size))) == size


@given(chain_trees(5), star_trees(5))
def test_chains_and_stars(chain: DraftTree, star: DraftTree) -> None:
    assert chain.parent == (-1, 0, 1, 2, 3)
    assert star.parent == (-1, 0, 0, 0, 0)
    check_distinct_siblings(star)


def test_more_siblings_than_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="more children"):
        find(node_tokens([-1, 0, 0], 1), lambda tokens: True)


@given(choices(max_choices=9, max_depth=3, top_k=3))
def test_choices_are_prefix_closed_sorted_and_distinct(paths: list[list[int]]) -> None:
    keys = [tuple(path) for path in paths]
    assert keys == sorted(set(keys), key=lambda key: (len(key), key))
    assert all(key[:-1] in {(), *keys} for key in keys)
    assert 1 <= len(keys) <= 9
    assert all(len(key) <= 3 and max(key) < 3 for key in keys)


def test_choices_reach_a_younger_sibling_without_the_elder() -> None:
    quiet = settings(max_examples=2000, derandomize=True, database=None)
    assert find(choices(), lambda paths: [1] in paths and [0] not in paths, settings=quiet) == [[1]]


@given(draft_batches(max_batch=3, max_nodes=6, vocab_size=4))
def test_batches_are_rectangular(batch: DraftBatch) -> None:
    sizes = {len(row) for table in (batch.tokens, batch.parent, batch.valid) for row in table}
    assert len(sizes) == 1
    assert len(batch.prefix_lengths) == len(batch.trees) <= 3


def test_batches_reach_ragged_rows() -> None:
    quiet = settings(max_examples=2000, derandomize=True, database=None)
    find(draft_batches(), lambda b: len({t.num_valid for t in b.trees}) == 3, settings=quiet)
    find(draft_batches(), lambda b: b.trees[0].num_nodes == 1, settings=quiet)


@given(vocabularies(3, 5), prefix_lengths(7))
def test_sizes_are_in_range(vocab_size: int, prefix: int) -> None:
    assert 3 <= vocab_size <= 5
    assert 0 <= prefix <= 7


def test_make_tree_refuses_what_does_not_fit() -> None:
    for tokens, parent, size in ([1], [-1, 0], 3), ([1, 2], [-1, 0], 1):
        with pytest.raises(ValueError, match="do not make a tree"):
            make_tree(tokens, parent, size)
