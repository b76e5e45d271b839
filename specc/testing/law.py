"""The exact output law of stochastic acceptance, by rational arithmetic (invariant I11).

Small vocabularies are enumerated: every draw of drafted siblings, every accept and reject, every bonus. No
floating point, no sampling. A rule is lossless when `output_law` equals `target_law`, as equality of
fractions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

Distribution = tuple[Fraction, ...]
Conditional = Callable[[tuple[int, ...]], Distribution]
"""Maps the tokens emitted since the root to the law of the next token."""
Law = dict[tuple[int, ...], Fraction]


class MassError(ValueError):
    """Raised when the residual has no mass left and a rule asks to sample from it."""


@dataclass(frozen=True, slots=True)
class Node:
    """A fixed drafted tree: the children in the order in which they are tried, as (token, node)."""

    children: tuple[tuple[int, Node], ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """How one child is judged. p is the running residual, q the running draft law, x the child's token.

    `accept(p, q, x, spent)` is the probability of accepting x, where `spent` holds p of the children
    rejected before; `reject(p, q, x)` gives the next (p, q); `bonus(p, tried)` is what is sampled when all
    `tried` were rejected.
    """

    name: str
    accept: Callable[[Distribution, Distribution, int, tuple[Fraction, ...]], Fraction]
    reject: Callable[[Distribution, Distribution, int], tuple[Distribution, Distribution]]
    bonus: Callable[[Distribution, tuple[int, ...]], Distribution] = lambda p, tried: p


def normalized(weights: Sequence[Fraction]) -> Distribution:
    """Scale weights to sum 1. Raises MassError if they sum to 0."""
    total = sum(weights, Fraction(0))
    if total == 0:
        raise MassError("no mass left to normalise")
    return tuple(weight / total for weight in weights)


def _without(distribution: Distribution, token: int) -> Distribution:
    """Return the distribution with `token` struck out; all zeros if nothing is left."""
    rest = [Fraction(0) if t == token else mass for t, mass in enumerate(distribution)]
    return normalized(rest) if any(rest) else tuple(rest)


def _residual(p: Distribution, q: Distribution) -> Distribution:
    rest = [max(a - b, Fraction(0)) for a, b in zip(p, q, strict=True)]
    return normalized(rest) if any(rest) else tuple(rest)


TARGET_ONLY = Rule(
    "target_only",
    accept=lambda p, q, x, spent: p[x],
    reject=lambda p, q, x: (_without(p, x), q),
)
"""q := 1 for deterministic drafts: accept with p(x); on rejection p(x) <- 0, renormalise."""

TRUE_Q = Rule(
    "true_q",
    accept=lambda p, q, x, spent: min(Fraction(1), p[x] / q[x]),
    reject=lambda p, q, x: (_residual(p, q), _without(q, x)),
)
"""SpecInfer, Sequoia: accept with min(1, p/q); then p <- norm(max(p - q, 0)), q(x) <- 0, renormalise
(siblings are drawn without replacement)."""

ONE_COIN = Rule(
    "target_only, one coin",
    accept=lambda p, q, x, spent: min(Fraction(1), p[x] / (1 - sum(spent))) if sum(spent) < 1 else Fraction(1),
    reject=lambda p, q, x: (p, q),
    bonus=lambda p, tried: tuple(Fraction(0) if t in tried else mass for t, mass in enumerate(p)),
)
"""target_only as kernels write it: one uniform u against the running sum of p over the children tried so
far, which are struck out of p at the end. Equal to TARGET_ONLY while siblings are distinct; a duplicate is
counted twice."""

ACCEPT_ALWAYS = Rule("planted: u = 0", accept=lambda p, q, x, spent: Fraction(1), reject=TARGET_ONLY.reject)
"""Wrong: u = 0 accepts every draft (vllm-ascend PR 13470)."""

NO_RESIDUAL = Rule("planted: no residual", accept=TARGET_ONLY.accept, reject=lambda p, q, x: (p, q))
"""Wrong: the rejected token stays in p."""

NO_Q_UPDATE = Rule(
    "planted: q not updated",
    accept=lambda p, q, x, spent: min(Fraction(1), p[x] / q[x]),
    reject=lambda p, q, x: (_residual(p, q), q),
)
"""Wrong: q keeps the rejected token although siblings are drawn without replacement."""


def target_law(target: Conditional, horizon: int) -> Law:
    """Return the law of the first `horizon` tokens of plain sampling."""
    law: Law = {(): Fraction(1)}
    for _ in range(horizon):
        law = _extended(law, target, grow=lambda text: True)
    return law


def _extended(law: Law, target: Conditional, grow: Callable[[tuple[int, ...]], bool]) -> Law:
    longer: Law = {}
    for text, mass in law.items():
        if not grow(text):
            longer[text] = longer.get(text, Fraction(0)) + mass
            continue
        for token, share in enumerate(target(text)):
            if share:
                longer[(*text, token)] = longer.get((*text, token), Fraction(0)) + mass * share
    return longer


def at_horizon(law: Law, target: Conditional, horizon: int) -> Law:
    """Cut emitted texts to `horizon` tokens and continue shorter ones by the target's own law.

    A step emits a varying number of tokens, so only laws of a fixed number of tokens can be compared.
    """
    cut: Law = {}
    for text, mass in law.items():
        cut[text[:horizon]] = cut.get(text[:horizon], Fraction(0)) + mass
    for _ in range(horizon):
        cut = _extended(cut, target, grow=lambda text: len(text) < horizon)
    return cut


def fixed_tree_law(target: Conditional, tree: Node, rule: Rule = TARGET_ONLY) -> Law:
    """Return the law of the tokens that one step emits for a drafted tree that is not random."""

    def siblings(text: tuple[int, ...], places: tuple[int, ...]) -> Law:
        node = tree
        for place in places:
            node = node.children[place][1]
        return {tuple(token for token, _ in node.children): Fraction(1)}

    return _Walk(target, target, rule, siblings).law()


def drawn_tree_law(
    target: Conditional,
    drafter: Conditional,
    branching: Sequence[int],
    rule: Rule = TRUE_Q,
    replace: bool = False,
) -> Law:
    """Return the law of the tokens that one step emits when siblings are drawn from the drafter's law.

    Level d has `branching[d]` children per node, drawn in order without replacement (with replacement if
    `replace`, which is a planted fault for TRUE_Q). Subtrees of rejected children don't matter and are not
    enumerated.
    """

    def siblings(text: tuple[int, ...], places: tuple[int, ...]) -> Law:
        return (
            sibling_draws(drafter(text), branching[len(text)], replace)
            if len(text) < len(branching)
            else {(): Fraction(1)}
        )

    return _Walk(target, drafter, rule, siblings).law()


def sibling_draws(q: Distribution, count: int, replace: bool = False) -> Law:
    """Return the law of `count` tokens drawn in order from q; tokens of no mass are never drawn, so fewer are
    drawn without replacement where q has fewer."""
    count = count if replace else min(count, sum(mass > 0 for mass in q))
    law: Law = {}
    for tokens in product(range(len(q)), repeat=count):
        if not replace and len(set(tokens)) < count:
            continue
        mass, running = Fraction(1), q
        for token in tokens:
            mass *= running[token]
            running = running if replace else _without(running, token)
        if mass:
            law[tokens] = mass
    return law


@dataclass(frozen=True, slots=True)
class _Walk:
    """Enumerates acceptance. `siblings(text, places)` is the law of the tokens tried below a node, in
    order; the node is given by its text and by its place among its siblings at each level."""

    target: Conditional
    drafter: Conditional
    rule: Rule
    siblings: Callable[[tuple[int, ...], tuple[int, ...]], Law]

    def law(self) -> Law:
        emitted: Law = {}
        self._below((), (), Fraction(1), emitted)
        return emitted

    def _below(self, text: tuple[int, ...], places: tuple[int, ...], mass: Fraction, emitted: Law) -> None:
        for tokens, share in self.siblings(text, places).items():
            self._try_children(text, places, tokens, mass * share, emitted)

    def _try_children(
        self,
        text: tuple[int, ...],
        places: tuple[int, ...],
        tokens: tuple[int, ...],
        mass: Fraction,
        emitted: Law,
    ) -> None:
        p, q = self.target(text), self.drafter(text)
        spent: tuple[Fraction, ...] = ()
        for place, token in enumerate(tokens):
            chance = self.rule.accept(p, q, token, spent)
            if chance:
                self._below((*text, token), (*places, place), mass * chance, emitted)
            mass *= 1 - chance
            if not mass:
                return
            spent = (*spent, p[token])
            p, q = self.rule.reject(p, q, token)
        for token, chance in enumerate(normalized(self.rule.bonus(p, tokens))):
            if chance:
                emitted[(*text, token)] = emitted.get((*text, token), Fraction(0)) + mass * chance


def differences(law: Law, expected: Law) -> Law:
    """Return got - expected for every text where the two laws differ; empty when they are equal."""
    keys = set(law) | set(expected)
    gaps = {key: law.get(key, Fraction(0)) - expected.get(key, Fraction(0)) for key in sorted(keys)}
    return {key: gap for key, gap in gaps.items() if gap}
