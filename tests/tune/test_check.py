"""Which trees are run at the end, and what their run decides."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from specc.runtime.generate import Request
from specc.tune import check as checking
from specc.tune.check import FEWEST_STEPS, check, decided, finalists
from specc.tune.choose import Bounds, Choice, Margin
from specc.tune.evidence import Replay
from specc.tune.report import Checked, Findings
from specc.tune.timing import Point, StepModel
from specc.tune.variants import KINDS, Tree

WIDE, CHAIN, FLAT = Tree("dynamic", 7, 3, 2), Tree("chain", 4, 4, 1), Tree("static", 2, 1, 2, ((0,), (1,)))
SLOW, QUICK = Tree("dynamic", 8, 3, 2), Tree("dynamic", 6, 3, 2)
MANY = 2 * FEWEST_STEPS


def choice(tree: Tree) -> Choice:
    return Choice(tree, Replay(10, 30, 100), 0.001)


def findings(*timed: tuple[Tree, float]) -> Findings:
    """The source has a chain, and the model expects the wide tree to be the fastest."""
    points = tuple(Point(tree, seconds, seconds, seconds, 9) for tree, seconds in timed)
    best: Any = {"dynamic": choice(WIDE), "static": choice(FLAT), "chain": choice(CHAIN)}
    model = StepModel(1.0, 0.0, 0.0, None, None, points)
    return Findings(
        "text", 1, 10, (), model, None, Bounds(7, 4, 2, KINDS, "eagle3"), (), best, choice(CHAIN), choice(WIDE)
    )


def checked(*rates: tuple[Tree, float], steps: int = MANY) -> list[Checked]:
    return [Checked(choice(tree), 3.0, steps, rate, None) for tree, rate in rates]


def test_the_sources_tree_and_the_fastest_that_were_timed_are_run_too_and_each_once() -> None:
    found = findings((SLOW, 3.0), (QUICK, 1.0), (WIDE, 2.0))
    timed = [choice(tree) for tree in (SLOW, QUICK, WIDE)]
    assert [one.tree for one in finalists(found, timed)] == [WIDE, CHAIN, QUICK, FLAT]


def test_the_fastest_tree_of_the_run_is_chosen_and_the_notes_say_so() -> None:
    before = replace(findings(), margins=[Margin(1.0, 2.0, 1.0, 0.1)])
    assert decided(before, checked((WIDE, 100.0), (CHAIN, 90.0))).margins
    made = decided(before, checked((WIDE, 100.0), (CHAIN, 90.0), (QUICK, 120.0)))
    assert made.chosen.tree == QUICK
    assert made.margins == ()  # they were the other tree's
    assert len(made.checked) == 3
    told, missed = made.notes
    assert "chain of 4 90" in told
    assert WIDE.label in missed


def test_a_source_that_nothing_beats_keeps_its_tree() -> None:
    made = decided(findings(), checked((WIDE, 100.0), (CHAIN, 101.0)))
    assert made.chosen.tree == CHAIN
    assert "kept" in made.notes[-1]
    assert decided(findings(), checked((WIDE, 102.0), (CHAIN, 101.0))).chosen.tree == WIDE


def test_a_few_steps_decide_nothing() -> None:
    made = decided(findings(), checked((WIDE, 100.0), (CHAIN, 200.0), steps=FEWEST_STEPS - 1))
    assert made.chosen.tree == WIDE
    assert "too few steps" in made.notes[-1]
    assert decided(findings(), checked((WIDE, 1.0))).notes == ()


def test_trees_run_on_the_same_prompts_and_their_least_time_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt takes 4 s. The first tree has time for two of three; a pass takes less, or more, than the one before."""
    now, calls = [0.0], list[tuple[str, int]]()

    def decode(decoder: Any, requests: list[Request], *_: object, **__: object) -> Any:
        calls.append((decoder.label, requests[0].number))
        now[0] += 4.0
        return requests[0]

    def metrics(made: list[Any]) -> Any:
        seconds = (10.0, 11.0, 7.0, 12.0, 9.0, 8.0)[len(calls) // 2 - 1]
        return SimpleNamespace(seconds=seconds, acceptance_length=2.0, steps=7, tokens_per_second=100 / seconds)

    monkeypatch.setattr(checking, "decode_batch", decode)
    monkeypatch.setattr(checking, "run_metrics", metrics)
    monkeypatch.setattr(checking, "time_steps", lambda *_: None)
    monkeypatch.setattr(checking, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def rates(count: int, seconds: float) -> list[float]:
        now[0], calls[:] = 50.0, []
        requests, trees = [Request(number, "p", (1,)) for number in range(count)], [choice(WIDE), choice(CHAIN)]
        built: Any = lambda tree: tree  # noqa: E731
        return [one.tokens_per_second for one in check(built, trees, requests, 8, 0, seconds, lambda _: None)]

    assert rates(3, 14.0) == [10.0, 100 / 11]  # no second pass
    assert calls == [(WIDE.label, 0), (WIDE.label, 1), (CHAIN.label, 0), (CHAIN.label, 1)]
    assert rates(2, 17.0) == [100 / 7, 100 / 11]  # a second pass, which is ended
    assert rates(2, 99.0) == [100 / 7, 100 / 8]
