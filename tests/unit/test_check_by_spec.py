"""I20 compares a program with the module generated from it: what logits that are no numbers excuse, and what not."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from specc.check import Workbench
from specc.check.by_spec import _same_behaviour
from specc.check.findings import CheckFailure, Checks
from specc.check.machines import Bag, Generated, Interpreted, Results, State
from specc.check.subject import Subject
from specc.check.weights import program_weights
from specc.spec import load

SPEC = Path(__file__).resolve().parents[2] / "specs" / "smollm2-prompt-lookup-tree.yaml"
PLACE = (0, 0, 0)
"""A token of a live row's root or last position: nothing blanks it."""


@lru_cache(maxsize=1)
def subject() -> Subject:
    return Workbench.of(load(SPEC)).subject(0)


@dataclass
class Spoiled:
    """A machine that is wrong from one step on. `nan`: where logits are NaN, all of them if `whole`; `root`: where
    another token is picked."""

    machine: Interpreted | Generated
    nan: str = ""
    whole: bool = False
    root: str = ""
    steps: list[str] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.machine, name)

    def step(self, step: str, state: State, bag: Bag) -> tuple[State, Results]:
        state, results = self.machine.step(step, state, bag)
        self.steps.append(step)
        if step == self.root:
            state = {**state, "root_token": (state["root_token"] + 1) % subject().vocabulary}
        if step == self.nan:
            logits = results["logits"].clone()
            logits[... if self.whole else PLACE[-logits.dim() :]] = float("nan")
            results = {**results, "logits": logits}
        return state, results


def machines() -> tuple[Spoiled, Spoiled]:
    """The interpreter and the module, both sound yet."""
    made = subject()
    weights = program_weights(made.final.weights, made.naive, made.weights)
    one = Interpreted("interpreter", made.final, weights, strict=True)
    return Spoiled(one), Spoiled(replace(made.generated, edge=False))


def compared(one: Any, other: Any) -> Checks:
    checks = Checks()
    _same_behaviour(subject(), checks, "here", one, other)
    return checks


def test_a_sound_module_goes_through_all_steps() -> None:
    one, other = machines()
    assert compared(one, other).counts["I20"] == 9
    assert one.steps == other.steps == ["prefill", *["draft", "verify", "accept", "commit"] * 2]


@pytest.mark.parametrize("step", ["prefill", "verify"])
@pytest.mark.parametrize("whole", [False, True])
def test_a_modules_nan_logits_are_a_difference(step: str, whole: bool) -> None:
    one, other = machines()
    other.nan, other.whole = step, whole
    with pytest.raises(CheckFailure, match=f"here: {step}: .*`logits`: at .* it is nan, not"):
        compared(one, other)


@pytest.mark.parametrize("step", ["prefill", "verify"])
def test_numbers_where_the_program_has_none_are_a_difference(step: str) -> None:
    one, other = machines()
    one.nan = step
    with pytest.raises(CheckFailure, match=f"here: {step}: .*`logits`: at .*, not nan"):
        compared(one, other)


@pytest.mark.parametrize("step", ["prefill", "verify"])
def test_where_both_have_none_any_token_may_be_picked_and_nothing_follows(step: str) -> None:
    one, other = machines()
    one.nan = other.nan = other.root = step
    compared(one, other)
    assert one.steps == other.steps
    assert one.steps[-1] == step


@pytest.mark.parametrize("step", ["prefill", "commit"])
def test_another_token_is_a_difference_where_there_are_numbers(step: str) -> None:
    one, other = machines()
    other.root = step
    with pytest.raises(CheckFailure, match=f"here: {step}: .*`root_token`"):
        compared(one, other)
