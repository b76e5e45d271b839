"""Any tree, padding among it, into verify, accept and commit of Triton modules: the reference's results."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specc.check.machines import copied
from specc.testing import draft_trees
from specc.testing.tensors import tree_tensors
from tests.backends.triton.lockstep import PROMPTS, STEPS, Lockstep
from tests.backends.triton.modules import VOCABULARY, Cell, modules
from tests.cells import spread

CELLS = (Cell("llama", "lookup tree", "path, deferred"), Cell("delta", "lookup tree", "windowed"))
MORE = (
    Cell("pangu", "lookup tree", "slow path"),
    Cell("delta", "lookup tree", "snapshots", schedule="serial"),
    Cell("experts", "lookup tree", "deferred"),
)


@st.composite
def bags(draw: st.DrawFn, roots: list[int]) -> dict[str, Tensor | None]:
    """A tree for every row, of its own shape; siblings have different tokens."""
    spec = CELLS[0].loaded().spec
    tree = draft_trees(num_nodes=spec.num_nodes, vocab_size=VOCABULARY, max_depth=spec.depth)
    trees = [draw(tree) for _ in PROMPTS]
    rooted = [replace(one, tokens=(root, *one.tokens[1:])) for one, root in zip(trees, roots, strict=True)]
    tokens, parent, valid = tree_tensors(rooted)
    return {"tokens": tokens, "parent": parent, "valid": valid}


def started(cell: Cell) -> Lockstep:
    """After the prompts and a step, whose commit may be pending; the same state for every example."""
    made = modules(cell)
    if "started" not in made.seen:
        both = Lockstep(made)
        both.prefill()
        both.speculate(seed=5)
        made.seen["started"] = both
    known: Lockstep = made.seen["started"]
    return replace(known, state=known.state, texts=[list(text) for text in known.texts])


def check(cell: Cell, data: st.DataObject, steps: int) -> None:
    both = started(cell)
    both.state = copied(modules(cell).seen["started"].state)
    for _ in range(steps):
        bag: dict[str, Tensor | None] = data.draw(bags(both.roots))
        both.state["finished"] = torch.tensor([False, data.draw(st.booleans())])
        for name in STEPS[1:]:
            bag |= both.step(name, bag)
    assert both.ties <= 1


@pytest.mark.parametrize("cell", CELLS, ids=str)
@settings(max_examples=3, deadline=None)
@given(data=st.data())
def test_trees(cell: Cell, data: st.DataObject) -> None:
    check(cell, data, 1)


@pytest.mark.slow
@pytest.mark.parametrize("cell", spread([*CELLS, *MORE], 3), ids=str)
@settings(max_examples=4, deadline=None)
@given(data=st.data())
def test_trees_with_commits_pending(cell: Cell, data: st.DataObject) -> None:
    check(cell, data, 2)
