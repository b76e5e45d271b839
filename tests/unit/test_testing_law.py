"""The exact output law: right rules pass as equality of fractions, each planted wrong rule is told apart."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from random import Random

import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.testing import (
    ALPHA,
    TARGET_ONLY,
    TRUE_Q,
    Node,
    at_horizon,
    differences,
    drawn_tree_law,
    fixed_tree_law,
    p_value,
    target_law,
)
from specc.testing.chi_square import survival
from specc.testing.law import (
    ACCEPT_ALWAYS,
    NO_Q_UPDATE,
    NO_RESIDUAL,
    ONE_COIN,
    Conditional,
    Distribution,
    Law,
    MassError,
    Rule,
    normalized,
    sibling_draws,
)

VOCAB = 3


def conditional(weights: list[list[int]]) -> Conditional:
    """A law per text, chosen from a table of integer weights by the text's tokens."""

    def law(text: tuple[int, ...]) -> Distribution:
        row = weights[(len(text) + 2 * sum(text)) % len(weights)]
        return normalized([Fraction(weight) for weight in row])

    return law


rows = st.lists(st.integers(0, 5), min_size=VOCAB, max_size=VOCAB).filter(any)
conditionals = st.lists(rows, min_size=1, max_size=5).map(conditional)


@st.composite
def fixed_trees(draw: st.DrawFn, levels: int = 2) -> Node:
    tokens = draw(st.lists(st.integers(0, VOCAB - 1), unique=True, max_size=VOCAB)) if levels else []
    return Node(tuple((token, draw(fixed_trees(levels - 1))) for token in tokens))


def gap(target: Conditional, law: Law, horizon: int) -> Law:
    return differences(at_horizon(law, target, horizon), target_law(target, horizon))


@given(conditionals, fixed_trees(), st.integers(1, 3))
def test_target_only_emits_the_target_law_exactly(target: Conditional, tree: Node, horizon: int) -> None:
    for rule in (TARGET_ONLY, ONE_COIN):
        law = fixed_tree_law(target, tree, rule)
        assert sum(law.values()) == 1
        assert gap(target, law, horizon) == {}


@settings(max_examples=25)
@given(conditionals, conditionals, st.lists(st.integers(0, 3), max_size=2), st.integers(1, 2))
def test_true_q_emits_the_target_law_exactly(
    target: Conditional, drafter: Conditional, branching: list[int], horizon: int
) -> None:
    law = drawn_tree_law(target, drafter, branching, TRUE_Q)
    assert sum(law.values()) == 1
    assert gap(target, law, horizon) == {}


TARGET = conditional([[3, 2, 1], [1, 1, 4], [2, 5, 1]])
# Four tokens: with three, a residual often has one token left, and then some wrong rules come out right.
TARGET_OF_FOUR = conditional([[4, 3, 2, 1], [2, 3, 4, 1]])
DRAFTER_OF_FOUR = conditional([[1, 2, 3, 4], [1, 1, 1, 1]])
TREE = Node(((1, Node(((0, Node()), (2, Node())))), (0, Node(((2, Node()),)))))
DUPLICATED = Node(((0, Node()), (0, Node()), (1, Node())))


@pytest.mark.parametrize("rule", [ACCEPT_ALWAYS, NO_RESIDUAL], ids=lambda rule: rule.name)
def test_planted_wrong_rule_on_a_fixed_tree_is_found(rule: Rule) -> None:
    assert gap(TARGET, fixed_tree_law(TARGET, TREE, rule), 1)


def test_a_fault_at_depth_two_shows_in_the_joint_law_only() -> None:
    # Below the first level every draft is accepted, so the first token's law is still right.
    lazy = Rule(
        "planted: right at the root only",
        accept=lambda p, q, x, spent: Fraction(1) if p == TARGET((0,)) else p[x],
        reject=TARGET_ONLY.reject,
    )
    assert TARGET((0,)) != TARGET(())
    law = fixed_tree_law(TARGET, Node(((0, Node(((1, Node()),))),)), lazy)
    assert gap(TARGET, law, 1) == {}
    assert gap(TARGET, law, 2)


@pytest.mark.parametrize("rule", [ACCEPT_ALWAYS, NO_Q_UPDATE], ids=lambda rule: rule.name)
def test_planted_wrong_rule_on_drawn_trees_is_found(rule: Rule) -> None:
    right = drawn_tree_law(TARGET_OF_FOUR, DRAFTER_OF_FOUR, [2, 1])
    assert gap(TARGET_OF_FOUR, right, 1) == {}
    wrong = drawn_tree_law(TARGET_OF_FOUR, DRAFTER_OF_FOUR, [2, 1], rule)
    assert gap(TARGET_OF_FOUR, wrong, 1)


def test_duplicated_siblings_break_the_one_coin_rule() -> None:
    assert gap(TARGET, fixed_tree_law(TARGET, DUPLICATED, ONE_COIN), 1)
    # The sequential rule strikes the token out of p: its duplicate is never accepted, harmless but useless.
    assert gap(TARGET, fixed_tree_law(TARGET, DUPLICATED, TARGET_ONLY), 1) == {}


def test_true_q_with_siblings_drawn_with_replacement_is_wrong() -> None:
    late = conditional([[1, 1, 4], [2, 1, 1]])
    rule = Rule("q(x) struck out although drawn again", TRUE_Q.accept, TRUE_Q.reject)
    safe = Rule(
        rule.name,
        accept=lambda p, q, x, spent: min(Fraction(1), p[x] / q[x]) if q[x] else Fraction(0),
        reject=rule.reject,
        bonus=lambda p, tried: p if any(p) else TARGET(()),
    )
    assert gap(TARGET, drawn_tree_law(TARGET, late, [3], safe, replace=True), 1)


def test_siblings_are_drawn_in_order_without_replacement() -> None:
    half, third = Fraction(1, 2), Fraction(1, 3)
    law = sibling_draws((half, third, Fraction(1, 6)), 2)
    assert law[(0, 1)] == half * (third / half)
    assert law[(2, 0)] == Fraction(1, 6) * (half / Fraction(5, 6))
    assert sum(law.values()) == 1
    assert sibling_draws((Fraction(1), Fraction(0)), 2) == {(0,): Fraction(1)}


def test_no_mass_left_is_an_error() -> None:
    with pytest.raises(MassError):
        normalized([Fraction(0), Fraction(0)])


@given(st.floats(0.0, 200.0), st.integers(1, 60))
def test_survival_function_agrees_with_scipy(statistic: float, degrees: int) -> None:
    expected = float(scipy.stats.chi2.sf(statistic, degrees))
    assert survival(statistic, degrees) == pytest.approx(expected, rel=1e-8, abs=1e-14)


def test_chi_square_accepts_samples_of_the_law_and_rejects_a_wrong_one() -> None:
    law = {text: float(mass) for text, mass in target_law(TARGET, 2).items()}
    texts = sorted(law)
    rng = Random(7)
    counts = Counter(rng.choices(texts, [law[text] for text in texts], k=20_000))
    observed = [counts[text] for text in texts]
    assert p_value(observed, [law[text] for text in texts]) > ALPHA
    wrong = at_horizon(fixed_tree_law(TARGET, TREE, NO_RESIDUAL), TARGET, 2)
    assert p_value(observed, [float(wrong.get(text, 0)) for text in texts]) < ALPHA


def test_chi_square_rejects_an_impossible_outcome_and_a_test_that_cannot_fail() -> None:
    assert p_value([10, 10, 1], [0.5, 0.5, 0.0]) == 0.0
    with pytest.raises(ValueError, match="fewer than two"):
        p_value([2, 2], [0.5, 0.5])


def test_rare_categories_are_merged_not_dropped() -> None:
    law = [0.5, 0.496] + [0.001] * 4
    assert p_value([1000, 992, 2, 2, 2, 2], law) > 0.9
    assert p_value([1000, 892, 26, 25, 25, 32], law) < ALPHA
    assert math.isclose(p_value([1000, 990, 10, 0, 0, 0], law), p_value([1000, 990, 3, 2, 4, 1], law))
    # Too few even together: they join the last category.
    assert p_value([500, 496, 1, 1, 1, 1], law) == pytest.approx(1.0)
    assert p_value([600, 396, 1, 1, 1, 1], law) < ALPHA
