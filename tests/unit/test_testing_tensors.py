"""Trees go to tensors and come back."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

from specc.testing import Acceptance, DraftBatch, draft_batches, make_tree
from specc.testing.tensors import acceptances, tree_tensors, trees_of


@given(draft_batches(max_batch=3, max_nodes=6))
def test_trees_survive_the_way_to_tensors_and_back(batch: DraftBatch) -> None:
    tokens, parent, valid = tree_tensors(batch.trees)
    assert tokens.dtype == parent.dtype == torch.int64
    assert valid.dtype == torch.bool
    assert tokens.tolist() == batch.tokens
    assert parent.tolist() == batch.parent
    assert trees_of(tokens, parent, valid) == list(batch.trees)


def test_chains_need_no_parent() -> None:
    chain = make_tree([5, 6, 7], [-1, 0, 1], 5)
    tokens, _, valid = tree_tensors([chain])
    assert trees_of(tokens, None, valid) == [chain]


def test_trees_of_different_sizes_are_no_batch() -> None:
    with pytest.raises(ValueError, match="same number of nodes"):
        tree_tensors([make_tree([1], [-1]), make_tree([1], [-1], 2)])


def test_acceptances_are_read_row_by_row() -> None:
    got = acceptances(
        torch.tensor([[0, 2], [0, 0]]), torch.tensor([1, 0]), torch.tensor([9, 8]), torch.tensor([False, True])
    )
    assert got == [Acceptance((0, 2), 1, 9, False), Acceptance((0, 0), 0, 8, True)]
