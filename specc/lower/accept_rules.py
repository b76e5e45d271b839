"""How one drafted node is judged against the target, and what is emitted after the last accepted one.

p is the target's law after temperature, top_k and top_p, x the node's token.

* greedy: accept x = argmax of the logits; the bonus is the argmax.
* typical (Medusa, "typical acceptance"): accept p(x) > min(epsilon, alpha exp(-H(p))); the bonus is drawn from p, or is
  the argmax at temperature 0 (p is then the model's law at temperature 1).
* rejection, target_only: accept with probability p(x); on rejection p(x) <- 0, renormalise. The bonus is drawn from
  what is left of p. Exact for distinct siblings (I5, I11).
* rejection, true_q (SpecInfer, Sequoia): accept with probability min(1, p(x) / q(x)); on rejection
  p <- norm(max(p - q, 0)), q(x) <- 0, renormalise, as siblings are drawn without replacement.

u is in [0, 1) and x is accepted if u < p(x), or u q(x) < p(x): a token of probability 0 is never accepted.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch.fx import Node

from specc.ir import ops
from specc.ir.build import BodyBuilder, GraphBuilder
from specc.lower.config import AcceptConfig
from specc.lower.sampling import ACCEPT_DRAW, PICK_DRAW, at_node, at_token, target_probs
from specc.lower.step import StepBuilder

aten = torch.ops.aten


class Rule(Protocol):
    """A rule's loop operands, its verdict inside the walk, its bonus after the walk."""

    carried: dict[str, Node]
    invariant: dict[str, Node]

    def judge(self, body: BodyBuilder, token: Node, looked: Node) -> tuple[Node, dict[str, Node]]:
        """accepted bool [B] for this node's token [B], and new values of what the rule carries.

        `looked` bool [B]: only these rows look at this node. `body["current"]`, `body["count"]` are the walk's.
        """
        ...

    def bonus(self, b: StepBuilder, current: Node, count: Node) -> Node:
        """The token [B] after the last accepted node `current` [B]; `count` [B] nodes were accepted."""
        ...


def make_rule(b: StepBuilder, accept: AcceptConfig, inputs: Mapping[str, Node]) -> Rule:
    """The rule of the spec, with what it needs once per step computed into `b`."""
    logits = inputs["logits"]
    if accept.walk == "greedy":
        return Greedy({}, {"choice": b.call(aten.argmax.default, logits, -1, name="target_argmax")})
    probs = target_probs(b, accept, logits)
    if accept.walk == "typical":
        bar = _typical_threshold(b, accept, probs)
        return Typical({}, {"probs": probs, "threshold": bar}, logits, accept.temperature > 0.0)
    carried = {"residual": b.call(aten.select.int, probs, 1, 0, name="root_probs")}
    invariant = {"probs": probs, "rng": b.slot("rng"), "length": b.slot("length")}
    if accept.uses_draft_law:
        invariant["q_probs"] = inputs["q_probs"]
        carried["draft_residual"] = b.call(aten.select.int, inputs["q_probs"], 1, 0, name="root_q_probs")
    return Rejection(carried, invariant)


def _next_position(b: GraphBuilder, length: Node, count: Node) -> Node:
    """Position [B] of the token after the root and `count` accepted nodes."""
    return b.call(aten.add.Tensor, b.call(aten.add.Tensor, length, count), 1, name="next_position")


def _typical_threshold(b: GraphBuilder, accept: AcceptConfig, probs: Node) -> Node:
    """min(epsilon, alpha exp(-H(p))) per node [B,N], H in nats."""
    negative_entropy = b.call(aten.sum.dim_IntList, b.call(aten.xlogy.Tensor, probs, probs), [-1])
    bar = b.call(aten.mul.Tensor, b.call(aten.exp.default, negative_entropy), float(accept.alpha))
    return b.call(aten.clamp.default, bar, None, float(accept.epsilon), name="typical_threshold")


@dataclass(slots=True)
class Greedy:
    """The target's argmax, node by node."""

    carried: dict[str, Node]
    invariant: dict[str, Node]

    def judge(self, body: BodyBuilder, token: Node, looked: Node) -> tuple[Node, dict[str, Node]]:
        """Accept the child that is the argmax at the current node."""
        wanted = at_node(body, body["choice"], body["current"], "wanted")
        same = body.call(aten.eq.Tensor, token, wanted)
        return body.call(aten.logical_and.default, looked, same, name="accepted"), {}

    def bonus(self, b: StepBuilder, current: Node, count: Node) -> Node:
        """The argmax at the last accepted node."""
        return at_node(b, self.invariant["choice"], current, "bonus_token")


@dataclass(slots=True)
class Typical:
    """Accepts what the target finds likely enough; not lossless."""

    carried: dict[str, Node]
    invariant: dict[str, Node]
    logits: Node
    samples: bool

    def judge(self, body: BodyBuilder, token: Node, looked: Node) -> tuple[Node, dict[str, Node]]:
        """Accept p(x) > threshold at the current node."""
        p = at_token(body, at_node(body, body["probs"], body["current"]), token, "token_prob")
        bar = at_node(body, body["threshold"], body["current"])
        likely = body.call(aten.gt.Tensor, p, bar)
        return body.call(aten.logical_and.default, looked, likely, name="accepted"), {}

    def bonus(self, b: StepBuilder, current: Node, count: Node) -> Node:
        """A draw from the law at the last accepted node; its argmax at temperature 0."""
        if not self.samples:
            return at_node(b, b.call(aten.argmax.default, self.logits, -1), current, "bonus_token")
        uniform = b.call(
            ops.counter_uniform,
            b.slot("rng"),
            _next_position(b, b.slot("length"), count),
            PICK_DRAW,
            name="bonus_uniform",
        )
        return b.call(ops.sample_index, at_node(b, self.invariant["probs"], current), uniform, name="bonus_token")


@dataclass(slots=True)
class Rejection:
    """Lossless stochastic acceptance; with `draft_residual` carried the true-q rule, else target-only."""

    carried: dict[str, Node]
    invariant: dict[str, Node]
    _uses_q: bool = field(init=False)

    def __post_init__(self) -> None:
        self._uses_q = "draft_residual" in self.carried

    def judge(self, body: BodyBuilder, token: Node, looked: Node) -> tuple[Node, dict[str, Node]]:
        """Accept with probability p(x) or min(1, p(x)/q(x)); residuals for the next sibling, or the node's own laws."""
        residual = body["residual"]
        uniform = body.call(
            ops.counter_uniform,
            body["rng"],
            _next_position(body, body["length"], body["count"]),
            body.call(operator.add, body.index, ACCEPT_DRAW + 1),
            name="accept_uniform",
        )
        p = at_token(body, residual, token, "token_prob")
        struck = body.call(
            aten.eq.Tensor,
            body.call(ops.iota, token, residual.meta["val"].shape[-1]),
            body.call(aten.unsqueeze.default, token, 1),
            name="is_token",
        )
        if self._uses_q:
            q = at_token(body, body["draft_residual"], token, "token_draft_prob")
            uniform = body.call(aten.mul.Tensor, uniform, q)
            over = body.call(aten.sub.Tensor, residual, body["draft_residual"])
            left = body.call(aten.clamp_min.default, over, 0.0)
        else:
            left = body.call(aten.masked_fill.Scalar, residual, struck, 0.0)
        passed = body.call(aten.lt.Tensor, uniform, p, name="passed")
        accepted = body.call(aten.logical_and.default, looked, passed, name="accepted")
        updates = {"residual": self._next(body, "residual", "probs", left, looked, accepted)}
        if self._uses_q:
            rest = body.call(aten.masked_fill.Scalar, body["draft_residual"], struck, 0.0)
            updates["draft_residual"] = self._next(body, "draft_residual", "q_probs", rest, looked, accepted)
        return accepted, updates

    @staticmethod
    def _next(body: BodyBuilder, name: str, laws: str, left: Node, looked: Node, accepted: Node) -> Node:
        """The law for the next node: this node's own if accepted, `left` scaled to 1 if rejected, else unchanged.

        Where nothing is left it stays 0: no later sibling passes, and `bonus` has its own answer for that.
        """
        mass = body.call(aten.sum.dim_IntList, left, [-1], True)
        divisor = body.call(
            aten.where.self, body.call(aten.gt.Scalar, mass, 0.0), mass, body.call(aten.ones_like.default, mass)
        )
        scaled = body.call(aten.div.Tensor, left, divisor)
        kept = body.call(aten.where.self, body.call(aten.unsqueeze.default, looked, 1), scaled, body[name])
        own = body.call(aten.select.int, body[laws], 1, body.call(operator.add, body.index, 1))
        return body.call(
            aten.where.self, body.call(aten.unsqueeze.default, accepted, 1), own, kept, name=f"next_{name}"
        )

    def bonus(self, b: StepBuilder, current: Node, count: Node) -> Node:
        """A draw from the residual; the argmax of the law at `current` if rounding left no mass."""
        uniform = b.call(
            ops.counter_uniform,
            b.slot("rng"),
            _next_position(b, b.slot("length"), count),
            PICK_DRAW,
            name="bonus_uniform",
        )
        residual = self.carried["residual"]
        drawn = b.call(ops.sample_index, residual, uniform, name="drawn")
        mass = b.call(aten.gt.Scalar, b.call(aten.sum.dim_IntList, residual, [-1]), 0.0)
        law = at_node(b, self.invariant["probs"], current)
        return b.call(aten.where.self, mass, drawn, b.call(aten.argmax.default, law, -1), name="bonus_token")
