"""Step functions of eager Ascend modules beside the reference's: any tree, padding among it, commits pending or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from specc.check.compare import mapping_difference
from specc.check.crew import comparable
from specc.check.machines import Bag, Generated, Results, State, copied
from specc.testing import draft_trees
from specc.testing.tensors import tree_tensors
from tests.backends.ascend.modules import NAMES, QUICK, Pair, pair, prompts
from tests.cells import spread

BOUND = 3e-5
"""Of the largest value: both modules compute in float32, in another order."""
STEPS = ("draft", "verify", "accept", "commit")
LEAVES_DRAFTER_BEHIND = ("decode", "flush")
"""After plain steps (here a flush stands behind one) the drafter's slots mean nothing until the next draft."""
DRAFTER = ("draft_", "recent_")


def padded(batch: int) -> Bag:
    """The inputs of a prefill."""
    texts = prompts(batch)
    longest = max(map(len, texts))
    ids = torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts])
    return {"input_ids": ids, "lengths": torch.tensor([len(text) for text in texts])}


class Sides:
    """Both modules over one batch, each with a state of its own; the Ascend module's never moves."""

    def __init__(self, both: Pair, batch: int) -> None:
        self.both = both
        self.machines = (both.ascend, both.reference)
        self.states: list[State] = [machine.start(batch) for machine in self.machines]
        rng = torch.tensor([977 * (row + 1) * (-1) ** row for row in range(batch)])
        for state in self.states:
            state["rng"].copy_(rng)
        self.addresses = {name: value.data_ptr() for name, value in self.states[0].items()}
        given = padded(batch)
        self.step("prefill", given, given["lengths"] > 0)  # type: ignore[operator]

    def step(self, name: str, bag: Bag, live: Tensor | None = None) -> Results:
        """One step in both modules from the same inputs; returns the reference's results."""
        live = ~self.states[1]["finished"] if live is None else live
        made: list[Results] = []
        for number, machine in enumerate(self.machines):
            self.states[number], results = machine.step(name, self.states[number], bag)
            made.append(results)
        where = {slot: value.data_ptr() for slot, value in self.states[0].items()}
        assert where == self.addresses, f"{name} moved a slot"
        got, wanted = (comparable(name, results, bag, live) for results in made)
        self.compare(name, got, wanted)
        seen = [self.both.observed(machine, state) for machine, state in zip(self.machines, self.states, strict=True)]
        if name in LEAVES_DRAFTER_BEHIND:
            seen = [{slot: value for slot, value in one.items() if not slot.startswith(DRAFTER)} for one in seen]
        self.compare(name, seen[0], seen[1])
        return made[1]

    def compare(self, where: str, got: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
        """Integers equal, floats within BOUND."""
        assert got.keys() == wanted.keys(), where
        text = mapping_difference(got, wanted, bound=BOUND)
        assert text is None, f"{where}: {text}"


@st.composite
def bags(draw: st.DrawFn, sides: Sides) -> dict[str, Tensor]:
    """A tree for every row, of its own shape; the root is the state's."""
    spec = sides.both.loaded.spec
    trees = draft_trees(num_nodes=spec.num_nodes, vocab_size=spec.target.geometry.vocab_size, max_depth=spec.depth)
    roots = sides.states[1]["root_token"].tolist()
    drawn = [draw(trees) for _ in roots]
    rooted = [replace(one, tokens=(root, *one.tokens[1:])) for one, root in zip(drawn, roots, strict=True)]
    tokens, parent, valid = tree_tensors(rooted)
    return {"tokens": tokens, "parent": parent, "valid": valid}


def is_tree(both: Pair) -> bool:
    """Whether verify takes any tree, not chains only."""
    return both.loaded.spec.draft.tree != "chain" and both.loaded.spec.draft.method != "none"


def check(name: str, batch: int, data: st.DataObject, steps: int) -> None:
    both = pair(name)
    sides = Sides(both, batch)
    for _ in range(steps):
        live = ~sides.states[1]["finished"]
        # What a drafter has not caught up with is learnt in draft, so it runs before any tree from elsewhere.
        bag = dict(sides.step("draft", {}))
        if is_tree(both) and both.greedy:
            bag |= data.draw(bags(sides))
        for step in STEPS[1:]:
            bag |= sides.step(step, bag, live)
    sides.step("decode", {})
    sides.step("flush", {})


@pytest.mark.parametrize("name", QUICK)
@settings(max_examples=3, deadline=None)
@given(data=st.data())
def test_trees(name: str, data: st.DataObject) -> None:
    check(name, 2, data, 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "batch"), spread([(name, (4, 1)[number % 2]) for number, name in enumerate(NAMES)], 6)
)
@settings(max_examples=3, deadline=None, phases=(Phase.generate,))
@given(data=st.data())
def test_trees_of_all_specs(name: str, batch: int, data: st.DataObject) -> None:
    check(name, batch, data, 4)


@pytest.mark.parametrize("name", QUICK)
def test_rows_are_saved_restored_and_cleared_in_place(name: str) -> None:
    """A restored row goes on as if nothing had happened; a cleared one is as fresh."""
    sides = Sides(pair(name), 3)
    machine, state = sides.both.ascend, sides.states[0]
    after, saved = machine.snapshot(state, [1])
    kept = copied(after)
    sides.states[0] = after
    bag: dict[str, Tensor | None] = {}
    for step in STEPS:
        bag |= sides.step(step, bag)
    back = machine.restore(sides.states[0], [1], saved)
    assert {slot: value.data_ptr() for slot, value in back.items()} == sides.addresses
    rows = {slot: value.select(machine.slots[slot].batch_dim, 1) for slot, value in back.items()}
    assert all(torch.equal(value, kept[slot].select(machine.slots[slot].batch_dim, 1)) for slot, value in rows.items())
    cleared = machine.reset(back, [0, 2])
    fresh = machine.start(3)
    for slot, value in cleared.items():
        dim = machine.slots[slot].batch_dim
        assert torch.equal(value.select(dim, 0), fresh[slot].select(dim, 0)), slot
    assert isinstance(machine, Generated)


def test_a_prefill_of_more_tokens_than_a_cache_has_room_for_is_refused() -> None:
    both = pair(QUICK[1])
    module = both.ascend.module
    ids = torch.zeros((1, module.PREFILL_CHUNK + 1), dtype=torch.int64)
    with pytest.raises(ValueError, match=f"one prefill takes at most {module.PREFILL_CHUNK}"):
        module.prefill(both.ascend.weights, module.init_state(1, "cpu"), ids, torch.tensor([1]))
