"""Each invariant check holds on right data and is seen failing on a planted fault."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specc.invariants import INVARIANT_NAMES, INVARIANTS, Applies, applicable, invariant
from specc.testing import (
    CHECKS,
    DraftTree,
    InvariantViolation,
    ancestor_mask,
    check_ancestor_closed,
    check_blocks,
    check_commit,
    check_distinct_siblings,
    check_indices,
    check_length,
    check_mask,
    check_padding,
    check_parent,
    check_path,
    check_positions,
    check_superset,
    check_vocabulary_map,
    draft_trees,
    finish,
    make_tree,
    path_to,
    positions,
    render_tree,
)

TREE = make_tree([9, 1, 2, 3], [-1, 0, 0, 2], 5)


def test_registry_holds_28_distinct_named_invariants() -> None:
    assert [entry.id for entry in INVARIANTS] == [f"I{n}" for n in range(1, 29)]
    assert len(set(INVARIANT_NAMES)) == 28
    for name in ("index-range", "acyclic", "ancestor-closed", "no-leak", "lossless"):
        assert name in INVARIANT_NAMES
    assert invariant("I23") is invariant("lossless")
    assert set(CHECKS) <= set(INVARIANT_NAMES)
    with pytest.raises(KeyError):
        invariant("I29")


def test_applicable_selects_by_what_the_target_has() -> None:
    names = {entry.name for entry in applicable(frozenset({Applies.KV}))}
    assert "commit-gather" in names
    assert not names & {"state-along-path", "paged-blocks"}
    assert "paged-blocks" in {entry.name for entry in applicable(frozenset({Applies.KV, Applies.PAGED}))}


@given(draft_trees(max_nodes=10), st.integers(0, 9), st.data())
def test_right_trees_satisfy_every_check(tree: DraftTree, prefix: int, data: st.DataObject) -> None:
    check_parent(tree)
    check_padding(tree)
    check_distinct_siblings(tree)
    check_mask(tree, ancestor_mask(tree))
    check_positions(tree, positions(tree, prefix), prefix)
    check_ancestor_closed([p - 1 for p in tree.parent[1 : tree.num_valid]], range(tree.num_valid - 1))
    node = data.draw(st.sampled_from([i for i in range(tree.num_nodes) if tree.valid[i]]))
    accepted = finish(tree, path_to(tree, node)[1:], 0, num_steps=10)
    check_path(tree, accepted.path, accepted.accept_length)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (replace(TREE, parent=(-1, 0, 2, 1, 0)), "node 2 has parent 2"),
        (replace(TREE, parent=(-1, 0, 3, 1, 0)), "node 2 has parent 3"),
        (replace(TREE, parent=(-1, -1, 0, 2, 0)), "node 1 has parent -1"),
        (replace(TREE, parent=(0, 0, 0, 2, 0)), "node 0 has parent 0"),
        (replace(TREE, valid=(False, True, True, True, False)), "valid False"),
        (replace(TREE, tokens=(1, 2)), "lengths"),
        (DraftTree((), (), ()), "lengths"),
    ],
)
def test_i1_finds(fault: DraftTree, expected: str) -> None:
    with pytest.raises(InvariantViolation, match=expected) as caught:
        check_parent(fault)
    assert caught.value.id == "I1"


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (replace(TREE, tokens=(9, 1, 2, 3, 7)), "token 7, parent 0"),
        (replace(TREE, parent=(-1, 0, 0, 2, 3)), "token 0, parent 3"),
        (DraftTree((9, 0, 2), (-1, 0, 0), (True, False, True)), "follows a padding node"),
    ],
)
def test_i14_finds(fault: DraftTree, expected: str) -> None:
    with pytest.raises(InvariantViolation, match=expected) as caught:
        check_padding(fault)
    assert caught.value.id == "I14"


def test_i2_finds_an_orphan() -> None:
    check_ancestor_closed([-1, -1, 0, 2], [0, 2, 3])
    with pytest.raises(InvariantViolation, match=r"I2 .*candidate 3 is kept without its parent 2"):
        check_ancestor_closed([-1, -1, 0, 2], [0, 3])


@given(draft_trees(max_nodes=8), st.data())
def test_i3_finds_every_flipped_bit(tree: DraftTree, data: st.DataObject) -> None:
    mask = ancestor_mask(tree)
    row, column = data.draw(st.tuples(*[st.integers(0, tree.num_nodes - 1)] * 2))
    mask[row][column] = not mask[row][column]
    with pytest.raises(InvariantViolation, match=f"I3 .*node {row} sees"):
        check_mask(tree, mask)


def test_i3_finds_a_wrong_size() -> None:
    with pytest.raises(InvariantViolation, match="5 x 5"):
        check_mask(TREE, [[True]])


def test_i4_finds_positions_from_shifted_parents_and_exempts_padding() -> None:
    check_positions(TREE, [7, 8, 8, 9, 123], 7)
    with pytest.raises(InvariantViolation, match=r"I4 .*node 3 is at position 10, not 9"):
        check_positions(TREE, [7, 8, 8, 10, 7], 7)


def test_i5_finds_duplicated_siblings_but_not_cousins_or_padding() -> None:
    check_distinct_siblings(make_tree([0, 1, 2, 3, 3], [-1, 0, 0, 1, 2], 7))
    with pytest.raises(InvariantViolation, match=r"I5 .*children of node 0 have tokens \[2, 2\]"):
        check_distinct_siblings(make_tree([0, 2, 2], [-1, 0, 0]))


@pytest.mark.parametrize("index", [-1, 4])
def test_i6_finds_an_index_out_of_range(index: int) -> None:
    check_indices([0, 3], 4)
    with pytest.raises(InvariantViolation, match=f"I6 .*row 1 is {index}"):
        check_indices([0, index], 4, "row")


@pytest.mark.parametrize(
    ("path", "accept_length", "pattern"),
    [
        ([0, 2, 3], 3, "accept_length is 3"),
        ([0, 2, 3], -1, "accept_length is -1"),
        ([1, 0, 0], 0, "starts at node 1"),
        ([0, 3, 0], 1, "3 is no child of 0"),
        ([0, 1, 3], 2, "3 is no child of 1"),
        ([0, 4, 0], 1, "4 is no child of 0"),
        ([0, 0, 0], 1, "0 is no child of 0"),
        ([0, 9, 0], 1, "9 is no child of 0"),
        ([0, 2, 3], 1, "behind the accepted part"),
    ],
)
def test_i7_finds(path: list[int], accept_length: int, pattern: str) -> None:
    check_path(TREE, [0, 2, 3], 2)
    with pytest.raises(InvariantViolation, match=f"I7 .*{pattern}"):
        check_path(TREE, path, accept_length)


def test_i8_finds_moved_prefix_wrong_row_and_missing_row() -> None:
    candidates = ["r", "a", "b", "c"]
    check_commit(["x"], candidates, ["x", "r", "b", "c", "junk"], [0, 2, 3], 2)
    for after in (["y", "r", "b", "c"], ["x", "r", "c", "c"], ["x", "r", "b"]):
        with pytest.raises(InvariantViolation, match="I8 "):
            check_commit(["x"], candidates, after, [0, 2, 3], 2)


def test_i9_counts_the_root_and_leaves_idle_rows() -> None:
    check_length(5, 8, 2)
    check_length(5, 5, 2, live=False)
    with pytest.raises(InvariantViolation, match="I9 "):
        check_length(5, 7, 2)
    with pytest.raises(InvariantViolation, match="I9 "):
        check_length(5, 6, 0, live=False)


def test_i10_finds_a_lost_and_a_doubly_freed_block() -> None:
    check_blocks([3, 4, 5], [4], [5, 3])
    for committed, freed in ([4], [5]), ([4], [3, 5, 5]), ([4, 3], [3, 5]):
        with pytest.raises(InvariantViolation, match="I10 "):
            check_blocks([3, 4, 5], committed, freed)


@pytest.mark.parametrize(
    ("d2t", "t2d", "pattern"),
    [
        ([0, 1], [True, False], "outside"),
        ([-1, 1], [True, False, True], "outside"),
        ([1, 0], [False, True], "two draft tokens"),
        ([0, 0], [True, False, True], "marks other"),
    ],
)
def test_i15_finds(d2t: list[int], t2d: list[bool], pattern: str) -> None:
    check_vocabulary_map([0, 1], [True, False, True])
    with pytest.raises(InvariantViolation, match=f"I15 .*{pattern}"):
        check_vocabulary_map(d2t, t2d)


def test_i26_finds_a_larger_tree_that_accepts_less() -> None:
    check_superset(1, 1)
    with pytest.raises(InvariantViolation, match="I26 "):
        check_superset(2, 1, TREE)


def test_a_violation_shows_the_tree_and_the_statement() -> None:
    with pytest.raises(InvariantViolation) as caught:
        check_path(TREE, [0, 3, 0], 1)
    assert caught.value.id == "I7"
    assert str(caught.value).splitlines() == [
        "I7 path-valid: path[1] = 3 is no child of 0",
        "  (the accepted path runs from the root by parents, then is padded with 0)",
        "0:9 *",
        "├─ 1:1",
        "└─ 2:2",
        "   └─ 3:3 *",
        "padding: 4",
    ]


@given(draft_trees(max_nodes=10))
def test_drawing_shows_every_node_once(tree: DraftTree) -> None:
    text = render_tree(tree, notes={0: "root"})
    for node in range(tree.num_valid):
        assert sum(f" {node}:" in f" {line}" for line in text.splitlines()) == 1
    assert text.splitlines()[0].endswith("root")


def test_drawing_survives_broken_trees() -> None:
    loop = DraftTree((1, 2, 3), (-1, 2, 1), (True, True, True))
    assert "unreachable: 1:2 (parent 2)" in render_tree(loop)
    assert render_tree(DraftTree((), (), ())) == "(empty)"
    assert "2:?" in render_tree(DraftTree((1,), (-1, 0, 0), (True, True, True)))
