"""What the checks hand to modules beside each other is the same for each of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specc.check.drafts import as_bag
from specc.testing import make_tree

VOCABULARY = 11


def subject(is_chain: bool) -> Any:
    """A rejection spec with drawn drafts, as far as its inputs are concerned."""
    spec = SimpleNamespace(
        is_chain=is_chain,
        accept=SimpleNamespace(method="rejection", rule="true_q"),
        sampling=SimpleNamespace(temperature=0.8),
    )
    return SimpleNamespace(spec=spec, vocabulary=VOCABULARY, as_computed=lambda law: law)


def law(tokens: list[list[int]], nodes: int, seed: int) -> Tensor:
    """[B,N,V] for chains in a module of `nodes` nodes."""
    trees = [make_tree(row, list(range(-1, len(row) - 1)), nodes) for row in tokens]
    law = as_bag(subject(is_chain=False), trees, seed)["q_probs"]
    assert law is not None
    return law


chains = st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=4), min_size=1, max_size=3)


@settings(max_examples=50, deadline=None)
@given(tokens=chains, more=st.integers(0, 20), seed=st.integers(0, 2**31))
def test_a_chains_law_is_the_same_in_modules_of_any_size(tokens: list[list[int]], more: int, seed: int) -> None:
    """A module of four nodes and one of more judge the same chains by the same law (I12 compares their samples)."""
    small, large = law(tokens, 4, seed), law(tokens, 4 + more, seed)
    assert torch.equal(small, large[:, :4])
    torch.testing.assert_close(small.sum(-1), torch.ones(small.shape[:2], dtype=small.dtype))


@settings(max_examples=30, deadline=None)
@given(tokens=chains, seed=st.integers(0, 2**31))
def test_rows_behind_change_nothing_and_nodes_differ(tokens: list[list[int]], seed: int) -> None:
    """A batch's first row has the law it has alone; no two nodes share theirs."""
    together = law(tokens, 4, seed)
    assert torch.equal(law(tokens[:1], 4, seed), together[:1])
    flat = together.flatten(0, 1)
    assert len({tuple(row.tolist()) for row in flat}) == len(flat)
