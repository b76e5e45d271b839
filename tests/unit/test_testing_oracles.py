"""The reference answers for trees, acceptance and commit, against even simpler brute force."""

from __future__ import annotations

import itertools
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specc.testing import (
    Acceptance,
    DraftTree,
    ancestor_mask,
    commit_gather,
    compact_rows,
    depth,
    draft_trees,
    finish,
    greedy_accept,
    make_tree,
    packed_mask,
    path_to,
    positions,
    typical_threshold,
    typical_walk,
)
from specc.testing.oracles import acceptance_length, first_child, in_place_already, next_sibling, overlaps

#      0
#    1   2
#   3   4 5      node 6 is padding
TREE = make_tree([9, 1, 2, 3, 4, 5], [-1, 0, 0, 1, 2, 2], 7)


def test_small_tree_by_hand() -> None:
    assert depth(TREE) == [0, 1, 1, 2, 2, 2, 0]
    assert path_to(TREE, 5) == [0, 2, 5]
    assert packed_mask(TREE) == [0b1, 0b11, 0b101, 0b1011, 0b10101, 0b100101, 0b1000000]
    assert positions(TREE, 10) == [10, 11, 11, 12, 12, 12, 10]
    assert first_child(TREE) == [1, 3, 4, -1, -1, -1, -1]
    assert next_sibling(TREE) == [-1, 2, -1, -1, 5, -1, -1]


@given(draft_trees(max_nodes=12))
def test_mask_is_the_transitive_closure_of_the_parent_relation(tree: DraftTree) -> None:
    size = tree.num_nodes
    closure = [[i == j for j in range(size)] for i in range(size)]
    for node in range(1, size):
        if tree.valid[node]:
            closure[node][tree.parent[node]] = True
    for k, i, j in itertools.product(range(size), repeat=3):
        closure[i][j] |= closure[i][k] and closure[k][j]
    assert ancestor_mask(tree) == closure
    assert [bin(row).count("1") for row in packed_mask(tree)] == [d + 1 for d in depth(tree)]


@given(draft_trees(max_nodes=12))
def test_children_are_enumerated_by_first_child_and_next_sibling(tree: DraftTree) -> None:
    first, following = first_child(tree), next_sibling(tree)
    for node in range(tree.num_nodes):
        listed, child = [], first[node]
        while child >= 0:
            listed.append(child)
            child = following[child]
        assert listed == tree.children(node)


@given(draft_trees(max_nodes=12, vocab_size=4), st.integers(0, 2**32 - 1))
def test_greedy_accepts_the_longest_path_that_the_target_would_emit(tree: DraftTree, seed: int) -> None:
    rng = Random(seed)
    argmax = [rng.randrange(4) for _ in range(tree.num_nodes)]
    # Brute force: of all root paths, those on which each token is the argmax at the node before.
    good = [
        path_to(tree, node)
        for node in range(tree.num_nodes)
        if tree.valid[node] and all(tree.tokens[b] == argmax[a] for a, b in itertools.pairwise(path_to(tree, node)))
    ]
    longest = max(good, key=len)
    got = greedy_accept(tree, argmax, num_steps=11)
    assert list(got.path) == longest + [0] * (12 - len(longest))
    assert (got.accept_length, got.bonus, got.stopped) == (len(longest) - 1, argmax[longest[-1]], False)


@given(draft_trees(max_nodes=10, vocab_size=4), st.integers(0, 2**32 - 1), st.sets(st.integers(0, 3)), st.data())
def test_stop_cuts_the_emitted_text_at_the_first_stop_or_at_the_limit(
    tree: DraftTree, seed: int, stop_tokens: set[int], data: st.DataObject
) -> None:
    rng = Random(seed)
    argmax = [rng.randrange(4) for _ in range(tree.num_nodes)]
    left = data.draw(st.none() | st.integers(1, 6))
    whole = greedy_accept(tree, argmax, 9).emitted(tree)
    got = greedy_accept(tree, argmax, 9, stop_tokens, left)
    expected = whole[:left] if left is not None else whole
    stops = [place for place, token in enumerate(expected) if token in stop_tokens]
    expected = expected[: stops[0] + 1] if stops else expected
    assert got.emitted(tree) == expected
    assert got.accept_length == len(expected) - 1
    assert got.stopped == (bool(stops) or (left is not None and len(whole) >= left))
    assert set(got.path[got.accept_length + 1 :]) <= {0}


def test_stop_token_inside_a_path_becomes_the_bonus() -> None:
    got = finish(TREE, [2, 4], bonus=7, num_steps=3, stop_tokens={2})
    assert got == Acceptance((0, 0, 0, 0), 0, 2, True)
    got = finish(TREE, [2, 4], bonus=7, num_steps=3, stop_tokens={4})
    assert got == Acceptance((0, 2, 0, 0), 1, 4, True)
    assert finish(TREE, [2, 4], bonus=7, num_steps=3, tokens_left=3) == Acceptance((0, 2, 4, 0), 2, 7, True)
    assert finish(TREE, [2, 4], bonus=7, num_steps=3, tokens_left=4).stopped is False


def test_a_path_longer_than_num_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="longer than num_steps"):
        finish(TREE, [2, 4], bonus=7, num_steps=1)


def test_typical_threshold_is_epsilon_when_certain_and_follows_entropy_when_not() -> None:
    assert typical_threshold([1.0, 0.0], epsilon=0.3, alpha=0.5) == 0.3
    assert typical_threshold([0.25] * 4, epsilon=0.3, alpha=0.5) == pytest.approx(0.125)


def test_typical_takes_the_first_child_above_the_threshold() -> None:
    tree = make_tree([0, 1, 2, 3], [-1, 0, 0, 2])
    flat, sure = [0.25] * 4, [0.0, 0.0, 0.1, 0.9]
    assert typical_walk(tree, [flat, flat, flat, flat], epsilon=0.3, alpha=0.5) == [1]
    assert typical_walk(tree, [[0.0, 0.04, 0.96, 0.0], flat, sure, flat], epsilon=0.3, alpha=0.5) == [2, 3]
    assert typical_walk(tree, [sure, flat, flat, flat], epsilon=0.3, alpha=0.5) == []


@given(draft_trees(max_nodes=12), st.integers(0, 5), st.data())
def test_ascending_compaction_is_a_gather_and_leaves_committed_rows(
    tree: DraftTree, length: int, data: st.DataObject
) -> None:
    node = data.draw(st.sampled_from([i for i in range(tree.num_nodes) if tree.valid[i]]))
    accepted = finish(tree, path_to(tree, node)[1:], bonus=0, num_steps=12)
    rows = list(range(100, 100 + length + tree.num_nodes))
    gathered = commit_gather(rows[:length], rows[length:], accepted)
    copied = compact_rows(rows, length, accepted)
    assert copied[: length + accepted.accept_length + 1] == gathered
    assert copied[:length] == rows[:length]
    if in_place_already(accepted):
        assert copied == rows


@given(draft_trees(max_nodes=12), st.data())
def test_descending_compaction_differs_exactly_where_order_matters(tree: DraftTree, data: st.DataObject) -> None:
    node = data.draw(st.sampled_from([i for i in range(tree.num_nodes) if tree.valid[i]]))
    accepted = finish(tree, path_to(tree, node)[1:], bonus=0, num_steps=12)
    rows = list(range(tree.num_nodes))
    same = compact_rows(rows, 0, accepted, "descending") == compact_rows(rows, 0, accepted)
    assert same == (not overlaps(accepted))


def test_order_matters_for_some_path() -> None:
    accepted = Acceptance((0, 2, 4), 2, 0, False)
    assert overlaps(accepted)
    assert compact_rows([0, 1, 2, 3, 4], 0, accepted)[:3] == [0, 2, 4]
    assert compact_rows([0, 1, 2, 3, 4], 0, accepted, "descending")[:3] == [0, 4, 4]
    with pytest.raises(ValueError, match="ascending or descending"):
        compact_rows([0], 0, accepted, "sideways")


def test_acceptance_length_counts_the_bonus() -> None:
    assert acceptance_length([0, 1, 2]) == 2.0
