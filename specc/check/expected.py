"""What one step must accept, in plain Python: every rule of design 03, its random numbers included.

Works on lists, one row at a time; shares no code with the compiler. Uniforms are splitmix64 of the counters (stream
key, position, purpose), as the ops' documentation states them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from specc.spec import Spec
from specc.testing.draft_tree import DraftTree
from specc.testing.oracles import Acceptance, finish, greedy_accept, typical_walk

PICK, ACCEPT = 0, 1
"""Purposes of draws: picking a token, and (plus the node's number) accepting a node."""

_WORD = (1 << 64) - 1
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
Law = list[float]


def _mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * _FIRST) & _WORD
    x = ((x ^ (x >> 27)) * _SECOND) & _WORD
    return x ^ (x >> 31)


def uniform(key: int, position: int, purpose: int) -> float:
    """A number in [0, 1) for these counters."""
    state = _mix((key + _GOLDEN) & _WORD)
    state = _mix((state + (position + 1) * _GOLDEN) & _WORD)
    state = _mix((state + (purpose + 1) * _GOLDEN) & _WORD)
    return (state >> 11) * 2.0**-53


def sampling_law(logits: Sequence[float], temperature: float, top_k: int, top_p: float) -> Law:
    """softmax(logits / temperature), cut to the top_k likeliest, then to the fewest with mass top_p, scaled to 1."""
    scaled = [value / temperature for value in logits]
    if 0 < top_k < len(scaled):
        least = sorted(scaled, reverse=True)[top_k - 1]
        scaled = [value if value >= least else -math.inf for value in scaled]
    peak = max(scaled)
    law = _normalized([math.exp(value - peak) for value in scaled])
    if top_p >= 1.0:
        return law
    kept, mass = [0.0] * len(law), 0.0
    for token in sorted(range(len(law)), key=lambda t: (-law[t], t)):
        if mass >= top_p and mass > 0.0:
            break
        kept[token] = law[token]
        mass += law[token]
    return _normalized(kept)


def _normalized(weights: Sequence[float]) -> Law:
    total = math.fsum(weights)
    return [weight / total for weight in weights] if total > 0.0 else list(weights)


def inverse_cdf(weights: Sequence[float], u: float) -> int:
    """The token at which the running sum first exceeds u times the total."""
    total, running = math.fsum(weights), 0.0
    for token, weight in enumerate(weights):
        running += weight
        if running > u * total:
            return token
    return max(range(len(weights)), key=lambda token: weights[token])


@dataclass(frozen=True, slots=True)
class Expected:
    """Acceptance under the spec's rule."""

    spec: Spec

    @property
    def _method(self) -> str:
        method = self.spec.accept.method
        return "greedy" if method == "rejection" and self.spec.sampling.temperature == 0.0 else method

    def law(self, logits: Sequence[float]) -> Law:
        """The target's law in effect (at temperature 0 that of typical acceptance: temperature 1)."""
        sampling = self.spec.sampling
        return sampling_law(logits, sampling.temperature or 1.0, sampling.top_k, sampling.top_p)

    def pick(self, logits: Sequence[float], key: int, position: int) -> int:
        """The token at `position` of a plain step."""
        if self.spec.sampling.temperature == 0.0:
            return max(range(len(logits)), key=lambda token: logits[token])
        return inverse_cdf(self.law(logits), uniform(key, position, PICK))

    def step(
        self,
        tree: DraftTree,
        logits: Sequence[Sequence[float]],
        q_probs: Sequence[Sequence[float]] | None,
        key: int,
        length: int,
        limit: int,
    ) -> Acceptance:
        """What a live row accepts. logits [N][V]; q_probs [N][V] for the rule true_q; limit: tokens left, >= 1."""
        depth, stop = self.spec.depth, self.spec.accept.stop_tokens
        if self._method == "greedy":
            choice = [max(range(len(row)), key=lambda token: row[token]) for row in logits]
            return greedy_accept(tree, choice, depth, stop, limit)
        if self._method == "typical":
            typical = self.spec.accept.typical
            epsilon, alpha = (typical.epsilon, typical.alpha) if typical else (0.3, 0.09)
            laws = [self.law(row) for row in logits]
            nodes = typical_walk(tree, laws, epsilon, alpha)
            last = nodes[-1] if nodes else 0
            bonus = self.pick(logits[last], key, length + len(nodes) + 1)
            return finish(tree, nodes, bonus, depth, stop, limit)
        nodes, residual, law = self._rejection(tree, logits, q_probs, key, length)
        weights = residual if math.fsum(residual) > 0.0 else None
        position = length + len(nodes) + 1
        bonus = (
            inverse_cdf(weights, uniform(key, position, PICK))
            if weights is not None
            else max(range(len(law)), key=lambda token: law[token])
        )
        return finish(tree, nodes, bonus, depth, stop, limit)

    def _rejection(
        self,
        tree: DraftTree,
        logits: Sequence[Sequence[float]],
        q_probs: Sequence[Sequence[float]] | None,
        key: int,
        length: int,
    ) -> tuple[list[int], Law, Law]:
        """The accepted nodes, what is left of the law at the last of them, and that law."""
        node, nodes = 0, list[int]()
        while True:
            law = self.law(logits[node])
            residual = list(law)
            rest = list(q_probs[node]) if q_probs is not None else None
            taken = None
            for child in tree.children(node):
                token = tree.tokens[child]
                u = uniform(key, length + len(nodes) + 1, ACCEPT + child)
                if (u * rest[token] if rest is not None else u) < residual[token]:
                    taken = child
                    break
                residual, rest = _rejected(residual, rest, token)
            if taken is None:
                return nodes, residual, law
            node = taken
            nodes.append(node)


def _rejected(residual: Law, rest: Law | None, token: int) -> tuple[Law, Law | None]:
    """The laws for the next sibling after `token` was rejected."""
    if rest is None:
        return _normalized([0.0 if t == token else p for t, p in enumerate(residual)]), None
    over = _normalized([max(p - q, 0.0) for p, q in zip(residual, rest, strict=True)])
    return over, _normalized([0.0 if t == token else q for t, q in enumerate(rest)])
