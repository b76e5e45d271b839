"""Ranking and packing of draft candidates against the ops' reference implementations."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.backends.triton.ops import draft
from specc.ir import ops


@settings(max_examples=40, deadline=None)
@given(
    values=st.lists(st.sampled_from([0.0, -0.0, -0.5, -1.0, -7.0, -math.inf, math.nan]), min_size=2, max_size=40),
    batch=st.sampled_from([1, 2]),
)
def test_places_of_scores(values: list[float], batch: int) -> None:
    scores = torch.tensor(values[: len(values) // batch * batch]).view(batch, -1)
    assert torch.equal(draft.score_rank(scores), ops.score_rank(scores))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 40), nodes=st.integers(1, 20), batch=st.integers(1, 3))
def test_packed_trees(seed: int, count: int, nodes: int, batch: int) -> None:
    """Ancestor-closed choices of fewer than `nodes` candidates; a root's child has any number outside."""
    made = torch.Generator().manual_seed(seed)
    parent = torch.zeros(batch, count, dtype=torch.int64)
    chosen = torch.zeros(batch, count, dtype=torch.bool)
    for row in range(batch):
        for candidate in range(count):
            above = int(torch.randint(-2, candidate + 1, (1,), generator=made))
            above = count + 3 if above == candidate else above
            parent[row, candidate] = above
            reachable = not 0 <= above < count or bool(chosen[row, above])
            likely = float(torch.rand(1, generator=made)) < 0.6
            chosen[row, candidate] = reachable and likely and int(chosen[row].sum()) < nodes - 1
    token = torch.randint(0, 99, (batch, count), generator=made)
    log_prob, root = -torch.rand(batch, count, generator=made), torch.randint(0, 99, (batch,), generator=made)
    found = draft.pack_tree(chosen, token, parent, log_prob, root, nodes)
    expected = ops.pack_tree(chosen, token, parent, log_prob, root, nodes)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
        assert one.dtype == other.dtype


def test_a_table_is_made_once() -> None:
    like = torch.zeros(2)
    first = draft.int_table(like, [1, 2, 3, 4], [2, 2])
    assert torch.equal(first, ops.int_table(like, [1, 2, 3, 4], [2, 2]))
    assert draft.int_table(like, [1, 2, 3, 4], [2, 2]) is first
    assert draft.int_table(like, [1, 2, 3, 4], [4]).shape == (4,)
