"""The output law of the rejection graphs (I11): enumerated against rational arithmetic, and by chi-square.

Enumeration: in one batch, every pattern of accepts and rejects is forced by u = 0 or the largest u below 1, and each
forced verdict is weighed by the probability that the graph itself compares u with. Nothing is sampled.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from fractions import Fraction
from random import Random

import pytest
import torch

from specc.ir.interpreter import Event, Hook
from specc.lower.config import AcceptConfig
from specc.testing import ALPHA, DraftTree, at_horizon, make_tree, p_value, target_law
from specc.testing.law import Law, sibling_draws
from tests.unit.accept_fixtures import accept_graph, run_accept
from tests.unit.decoding_fixtures import SIZES, Decoding, perturbed, plain_forward, prefixed, small_spec, target_weights

VOCABULARY = 3
Text = tuple[int, ...]
Conditional = Callable[[Text], tuple[Fraction, ...]]
# Two children of the root, the first with two children, the second with one.
PARENT = (-1, 0, 0, 1, 1, 2)
NODES = len(PARENT)
ALMOST_ONE = 1.0 - 2.0**-53


def conditional(seed: int, zeros: bool = False) -> Conditional:
    """A random law of the next token for every text."""

    def law(text: Text) -> tuple[Fraction, ...]:
        rng = Random(hash((seed, *text)))
        weights = [rng.randint(0 if zeros else 1, 9) for _ in range(VOCABULARY)]
        weights[rng.randrange(VOCABULARY)] += 1
        return tuple(Fraction(weight, sum(weights)) for weight in weights)

    return law


def text_of(tokens: Sequence[int], node: int) -> Text:
    """The tokens below the root up to a node."""
    return () if node == 0 else (*text_of(tokens, PARENT[node]), tokens[node])


def table(law: Conditional, trees: Sequence[DraftTree]) -> torch.Tensor:
    """The law after each node [B,N,V]."""
    rows = [[[float(p) for p in law(text_of(tree.tokens, n))] for n in range(NODES)] for tree in trees]
    return torch.tensor(rows, dtype=torch.float64)


def fixed_trees(law: Conditional) -> list[tuple[DraftTree, Fraction]]:
    """One deterministic tree."""
    return [(make_tree((0, 1, 2, 0, 2, 2), PARENT), Fraction(1))]


def drawn_trees(law: Conditional) -> list[tuple[DraftTree, Fraction]]:
    """All trees whose siblings are drawn in order from `law` without replacement, with their probabilities."""
    grown: list[tuple[tuple[int, ...], Fraction]] = [((0,), Fraction(1))]
    for parent in range(NODES):
        children = [node for node in range(NODES) if PARENT[node] == parent]
        if children:
            grown = [
                ((*tokens, *drawn), mass * share)
                for tokens, mass in grown
                for drawn, share in sibling_draws(law(text_of(tokens, parent)), len(children)).items()
            ]
    return [(make_tree(tokens, PARENT), mass) for tokens, mass in grown]


def enumerated_law(
    accept: AcceptConfig, target: Conditional, drafter: Conditional, hooks: Sequence[Hook] = ()
) -> dict[Text, float]:
    """The law of the emitted text, as the graph computes it."""
    drawn = (drawn_trees if accept.uses_draft_law else fixed_trees)(drafter)
    verdicts = list(itertools.product((False, True), repeat=NODES - 1))
    rows = [(tree, mass, verdict) for tree, mass in drawn for verdict in verdicts]
    trees = [tree for tree, _, _ in rows]
    force = torch.tensor([verdict for _, _, verdict in rows])
    weight = torch.tensor([float(mass) for _, mass, _ in rows], dtype=torch.float64)
    bonus: list[torch.Tensor] = []

    def forced(event: Event) -> torch.Tensor | None:
        name = event.node.name
        if name.startswith("accept_uniform"):
            return torch.where(force[:, event.trips[0]], 0.0, ALMOST_ONE).double()
        if name.startswith("drawn"):
            bonus.append(event.args[0])
        return None

    chance: dict[str, torch.Tensor] = {}

    def weigh(event: Event) -> None:
        name = event.node.name
        if name.startswith("token_prob"):
            chance["p"] = event.value
        elif name.startswith("token_draft_prob"):
            chance["p"] = torch.where(event.value > 0, chance["p"] / event.value, chance["p"] > 0).clamp(max=1.0)
        elif name.startswith("looked_at"):
            chance["looked"] = event.value
        elif name.startswith("passed"):
            wanted = torch.where(force[:, event.trips[0]], chance["p"], 1.0 - chance["p"])
            # Where a node isn't looked at, one of the two patterns stands for both.
            free = force[:, event.trips[0]].double()
            weight.mul_(torch.where(chance["looked"], wanted, free))

    logits = table(target, trees).log()
    q = table(drafter, trees) if accept.uses_draft_law else None
    module = accept_graph(accept, NODES, VOCABULARY)
    found = run_accept(module, trees, logits, q_probs=q, hooks=[*hooks, forced, weigh])
    law: dict[Text, float] = {}
    residual = bonus[0] / bonus[0].sum(-1, keepdim=True)
    for row in torch.nonzero(weight).flatten().tolist():
        count = int(found["accept_length"][row])
        text = tuple(found["emitted_tokens"][row, :count].tolist())
        for token in range(VOCABULARY):
            share = float(weight[row] * residual[row, token])
            law[(*text, token)] = law.get((*text, token), 0.0) + share
    return {text: mass for text, mass in law.items() if mass}


def largest_gap(law: dict[Text, float], target: Conditional) -> float:
    """The largest difference from the target's own law of three tokens."""
    cut: Law = at_horizon({text: Fraction(mass) for text, mass in law.items()}, target, 3)
    expected = target_law(target, 3)
    return max(abs(float(cut.get(t, Fraction(0)) - expected.get(t, Fraction(0)))) for t in {*cut, *expected})


RULES = ["target_only", "true_q"]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("seed", range(6))
def test_the_emitted_law_is_the_targets(rule: str, seed: int) -> None:
    target, drafter = conditional(seed, zeros=seed % 2 == 1), conditional(seed + 100, zeros=seed % 3 == 2)
    accept = AcceptConfig("rejection", "true_q" if rule == "true_q" else "target_only", temperature=1.0)
    law = enumerated_law(accept, target, drafter)
    assert sum(law.values()) == pytest.approx(1.0, abs=1e-12)
    assert largest_gap(law, target) < 1e-12


def accept_everything(event: Event) -> torch.Tensor | None:
    """u = 0 accepts every draft."""
    return torch.ones_like(event.value) if event.node.name.startswith("passed") else None


def keep_rejected(event: Event) -> torch.Tensor | None:
    """The rejected token stays in p (target_only) or in q (true_q)."""
    return event.args[0] if event.node.name.startswith("masked_fill") else None


def no_residual(event: Event) -> torch.Tensor | None:
    """p is not reduced by q."""
    return event.args[0] if event.trips and event.node.name.startswith("sub_tensor") else None


@pytest.mark.parametrize(
    ("rule", "fault"),
    [("target_only", keep_rejected), ("true_q", keep_rejected), ("true_q", no_residual)],
)
def test_a_planted_wrong_rule_is_found(rule: str, fault: Hook) -> None:
    target, drafter = conditional(0), conditional(100)
    accept = AcceptConfig("rejection", "true_q" if rule == "true_q" else "target_only", temperature=1.0)
    assert largest_gap(enumerated_law(accept, target, drafter, [fault]), target) > 1e-4


def sampled_counts(module: torch.fx.GraphModule, target: Conditional, draws: int, hooks: Sequence[Hook]) -> list[int]:
    """How often each token is the first one emitted."""
    tree = fixed_trees(target)[0][0]
    logits = table(target, [tree]).log().expand(draws, -1, -1)
    found = run_accept(module, [tree] * draws, logits, hooks=hooks)
    return torch.bincount(found["emitted_tokens"][:, 0], minlength=VOCABULARY).tolist()


def test_chi_square_accepts_the_graph_and_rejects_a_planted_rule() -> None:
    target = conditional(4)
    module = accept_graph(AcceptConfig("rejection", temperature=1.0), NODES, VOCABULARY)
    law = [float(p) for p in target(())]
    assert p_value(sampled_counts(module, target, 20_000, []), law) > ALPHA
    assert p_value(sampled_counts(module, target, 20_000, [accept_everything]), law) < ALPHA
    assert p_value(sampled_counts(module, target, 20_000, [keep_rejected]), law) < ALPHA


def test_the_bonus_is_independent_of_the_verdict_before_it() -> None:
    # One drafted child of six tokens: a bonus drawn with the number that rejected the child would be lopsided.
    law = [0.1, 0.3, 0.2, 0.15, 0.2, 0.05]
    module = accept_graph(AcceptConfig("rejection", temperature=1.0), 2, 6)
    draws = 20_000
    logits = torch.tensor(law, dtype=torch.float64).log().expand(draws, 2, 6)
    found = run_accept(module, [make_tree([0, 1], [-1, 0])] * draws, logits)
    assert p_value(torch.bincount(found["emitted_tokens"][:, 0], minlength=6).tolist(), law) > ALPHA


SHAPES = {
    "static": {"tree": "static", "choices": [[0], [1], [2], [0, 0], [0, 1], [1, 0]]},
    "chain": {"tree": "chain", "num_speculative_tokens": 2},
    "dynamic": {"tree": "dynamic", "num_speculative_tokens": 5, "num_steps": 2, "top_k": 3},
}


@pytest.mark.parametrize(
    ("shape", "rule"),
    [("static", "true_q"), ("chain", "true_q"), ("dynamic", "target_only"), ("static", "target_only")],
)
def test_drafting_verifying_and_accepting_samples_the_targets_law(shape: str, rule: str) -> None:
    sampling = {"temperature": 2.5, "top_k": 12, "top_p": 0.9}
    accept = {"method": "rejection", "rule": rule}
    spec = small_spec(
        {"method": "draft_model", "config": SIZES} | SHAPES[shape], accept=accept, sampling={**sampling, "seed": 1}
    )
    target = target_weights(spec)
    batch = 1500
    prompt = [3, 1, 4]
    weights = {**target, **prefixed(perturbed(target, 0.5))}
    decoding = Decoding.start(spec, weights, [prompt] * batch, rng=torch.arange(batch))
    root = 7
    decoding.state["root_token"] = torch.full((batch,), root)
    decoding.state["recent_tokens"] = decoding.state["recent_tokens"].index_fill(1, torch.tensor([0]), root)
    _, accepted = decoding.step()
    probs = warped(plain_forward(target, spec.target.geometry, [*prompt, root])[0][-1], **sampling)
    counts = torch.bincount(accepted["emitted_tokens"][:, 0], minlength=len(probs)).tolist()
    assert p_value(counts, probs) > ALPHA
    # Enough is accepted and enough rejected for the residual to matter.
    assert 0.2 < (accepted["accept_length"] > 0).double().mean() < 0.95


def warped(logits: torch.Tensor, temperature: float, top_k: int, top_p: float) -> list[float]:
    """The sampler's law in plain Python."""
    values = [value / temperature for value in logits.tolist()]
    order = sorted(range(len(values)), key=lambda token: -values[token])[:top_k]
    weights = torch.tensor([values[token] for token in order], dtype=torch.float64).softmax(0).tolist()
    kept, before = [], 0.0
    for token, weight in zip(order, weights, strict=True):
        if before >= top_p:
            break
        kept.append((token, weight))
        before += weight
    total = sum(weight for _, weight in kept)
    law = [0.0] * len(values)
    for token, weight in kept:
        law[token] = weight / total
    return law
