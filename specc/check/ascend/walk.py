"""One example on three machines: eager NPU operators on the CPU, the GE graph executed, and float64 as the oracle.

The oracle goes along with the eager module: it accepts by that module's logits, so that a tie which rounding tips does
not part them. What this asks for: logits and committed rows near float64, and every integer exactly what the
acceptance rule makes of the logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from hypothesis import strategies as st
from torch import Tensor

from specc.check.ascend.bounds import difference, half_bound, same_rounding_bound
from specc.check.ascend.half import Half
from specc.check.ascend.steps import ACCEPTED, Steps
from specc.check.compare import mapping_difference
from specc.check.drafts import as_bag, planted
from specc.check.findings import CheckFailure, Finding
from specc.check.machines import Bag, Results, State
from specc.check.slots import CACHES, RECURRENT, named
from specc.check.subject import Subject
from specc.check.view import blanked
from specc.testing.draft_tree import DraftTree
from specc.testing.tensors import trees_of

CHUNK = 6
"""Tokens of a prefill graph: prompts of up to 12 tokens take one or two runs of it."""
LONGEST = 2 * CHUNK
LIMIT = 1000
OWN_STEPS = 2
"""Walks that begin with the module's own step; one may end at a tie between two drafts that rounding tips."""
WHOLE_TREE = 99


@dataclass(frozen=True, slots=True)
class Walk:
    """An example: a prompt per row, and for every step a seed of its trees and the nodes they may have."""

    prompts: tuple[tuple[int, ...], ...]
    steps: tuple[tuple[int, int], ...]
    key: int


@st.composite
def walks(draw: st.DrawFn, batch: int, vocabulary: int, most_steps: int = 2) -> Walk:
    """Prompts of 1 to 12 tokens, one or two planted steps, whole trees or small ones."""
    prompts = []
    for _ in range(batch):
        size = draw(st.sampled_from((1, 2, CHUNK, LONGEST - 1, LONGEST)))
        prompts.append(tuple(draw(st.lists(st.integers(0, vocabulary - 1), min_size=size, max_size=size))))
    budget = st.sampled_from((WHOLE_TREE, WHOLE_TREE, 3, 0))
    plan = st.tuples(st.integers(0, 4095), budget)
    return Walk(tuple(prompts), tuple(draw(st.lists(plan, min_size=1, max_size=most_steps))), draw(st.integers(0, 99)))


@dataclass(slots=True)
class Seen:
    """What walks have shown: steps, accepted drafted nodes, runs where rounding tipped a tie, the largest errors, and
    whether the module's own steps were the same eagerly and as graphs."""

    walks: int = 0
    steps: int = 0
    accepted: int = 0
    ties: int = 0
    errors: dict[str, float] = field(default_factory=dict)
    own: list[bool] = field(default_factory=list)

    def note(self, name: str, error: float) -> None:
        """Remember the largest."""
        self.errors[name] = max(self.errors.get(name, 0.0), error)


class Walker(Protocol):
    """A module of half precision on a state of its own, which a walk goes through."""

    @property
    def batch(self) -> int:
        """Rows."""

    @property
    def fused(self) -> bool:
        """Whether rotations and activations are operators that round once."""

    @property
    def state(self) -> Any:
        """The state's tensors as attributes; a walk writes into some of them."""

    def fresh(self, keys: Tensor) -> None:
        """The state as new, with these random streams [B]."""

    def prompt(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Prefill a chunk [B,T]; the logits [B,V]."""

    def plant(self, bag: Bag) -> dict[str, Tensor]:
        """A whole step on given trees; logits [B,N,V] and ACCEPTED."""

    def flushed(self) -> State:
        """A copy of the state with nothing pending, on the CPU."""


@dataclass
class Trio:
    """The three machines over one compiled spec and batch size."""

    half: Half
    eager: Walker
    graph: Steps | None
    seen: Seen = field(default_factory=Seen)

    @property
    def machines(self) -> list[Walker]:
        """The half-precision ones."""
        return [self.eager, *([] if self.graph is None else [self.graph])]

    def run(self, walk: Walk) -> None:
        """The whole example. Raises CheckFailure with I20 for results that are off."""
        keys = torch.arange(1, self.eager.batch + 1) * 0x5DEECE66D * (walk.key + 1)
        for machine in self.machines:
            machine.fresh(keys)
        self.seen.walks += 1
        if self.graph is not None and len(self.seen.own) < OWN_STEPS:
            self._own(walk, self.graph, keys)
        state: State = {**self.half.oracle.start(self.eager.batch), "rng": keys.clone()}
        state = self._prefill(walk, state)
        texts = [[*prompt, int(root)] for prompt, root in zip(walk.prompts, self.eager.state.root_token, strict=True)]
        for number, (seed, budget) in enumerate(walk.steps, 1):
            trees = tempting(self.half.exact, planted(self.half.exact, texts, seed, budget), texts)
            state, emitted, together = self._step(f"step {number}", state, trees, seed)
            for text, tokens in zip(texts, emitted, strict=True):
                text += tokens
            if not together:
                self.seen.ties += 1
                return

    def _own(self, walk: Walk, graph: Steps, keys: Tensor) -> None:
        """The module's own step behind the prompts, with what it drafts: the same record eagerly and as a graph."""
        ids, total = _padded(walk.prompts)
        records = []
        for machine in (self.eager, graph):
            assert isinstance(machine, Steps)
            for start in range(0, LONGEST, CHUNK):
                count = (total - start).clamp(0, CHUNK)
                if bool((count > 0).any()):
                    machine.prompt(ids[:, start : start + CHUNK], count)
            machine.state.remaining.fill_(LIMIT)
            machine.state.finished.fill_(False)
            records.append(machine.own())
            machine.fresh(keys)
        self.seen.own.append(torch.equal(*records))
        if len(self.seen.own) == OWN_STEPS:
            text = f"the record of a drafted step is {records[1].tolist()} as a graph, {records[0].tolist()} eagerly"
            self._require("own step", any(self.seen.own), text)

    def _prefill(self, walk: Walk, state: State) -> State:
        ids, total = _padded(walk.prompts)
        logits: list[Tensor] = []
        for start in range(0, LONGEST, CHUNK):
            part, count = ids[:, start : start + CHUNK], (total - start).clamp(0, CHUNK)
            if not bool((count > 0).any()):
                break
            found = [machine.prompt(part, count) for machine in self.machines]
            state, results = self.half.oracle.step("prefill", state, {"input_ids": part, "lengths": count})
            last = (count > 0) & (total <= start + CHUNK)
            where = f"prefill from {start}"
            self._floats(where, "logits", [one[last] for one in found], results["logits"][last])
            logits.append(torch.where(last[:, None], found[0].double(), 0.0))
        self._rows("prefill", state)
        root = self.eager.state.root_token.cpu()
        for row, one in enumerate(sum(logits).tolist()):  # type: ignore[union-attr]
            expected = self.half.exact.expected.pick(one, int(state["rng"][row]), int(total[row]))
            self._require("prefill", int(root[row]) == expected, f"row {row}: the root {root[row]} is not {expected}")
        for machine in self.machines:
            machine.state.root_token.copy_(root.clone())
            machine.state.remaining.fill_(LIMIT)
            machine.state.finished.fill_(False)
        live = {"root_token": root.clone(), "finished": torch.zeros_like(state["finished"])}
        return {**state, **live, "remaining": torch.full_like(state["remaining"], LIMIT)}

    def _step(
        self, where: str, state: State, trees: Sequence[DraftTree], seed: int
    ) -> tuple[State, list[list[int]], bool]:
        """One planted step on all machines; the tokens emitted, and whether the machines are still together."""
        subject, oracle = self.half.exact, self.half.oracle
        bag, live = as_bag(subject, trees, seed), ~state["finished"]
        found = [machine.plant(bag) for machine in self.machines]
        state, wanted = oracle.step("verify", state, bag)
        valid = bag["valid"]
        assert valid is not None
        told = valid & live[:, None]
        self._floats(where, "logits", [one["logits"][told] for one in found], wanted["logits"][told])
        forks = [self._accepted(where, state, bag, wanted, one) for one in found]
        self.seen.steps += len(trees)
        self.seen.accepted += int(found[0]["accept_length"].sum())
        state, _ = oracle.step("commit", state, {**bag, **wanted, **forks[0]})
        texts = [
            _emitted(tree, outcome) for tree, outcome in zip(trees_of(*_three(bag)), _rows_of(found[0]), strict=True)
        ]
        together = all(mapping_difference(fork, forks[0], exact=True) is None for fork in forks)
        if together:
            self._rows(where, state)
        return state, texts, together

    def _accepted(self, where: str, state: State, bag: Bag, wanted: Results, got: Results) -> Results:
        """What the rule makes of the half module's logits; the module's integers must be exactly that."""
        logits = got["logits"].to(wanted["logits"].dtype)
        copy = {name: value.clone() for name, value in state.items()}
        _, expected = self.half.oracle.step("accept", copy, {**bag, **wanted, "logits": logits})
        gap = mapping_difference({name: got[name] for name in ACCEPTED}, expected, exact=True)
        self._require(where, gap is None, f"acceptance: {gap}")
        return expected

    def _floats(self, where: str, name: str, found: Sequence[Tensor], wanted: Tensor) -> None:
        geometry, dtype, kept = self.half.loaded.spec.target.geometry, self.half.dtype, self.half.state_dtype
        bounds = (half_bound(geometry, dtype, not self.eager.fused, kept), same_rounding_bound(geometry, dtype, kept))
        error = difference(found[0], wanted)
        self.seen.note(f"{name}, float64", error)
        self._require(where, error <= bounds[0], f"{name}: {error:.1e} from float64, at most {bounds[0]:.1e}")
        for other in found[1:]:
            error = difference(other, found[0])
            self.seen.note(f"{name}, GE graph", error)
            text = f"{name}: the GE graph is {error:.1e} from the eager operators, at most {bounds[1]:.1e}"
            self._require(where, error <= bounds[1], text)

    def _rows(self, where: str, state: State) -> None:
        """Committed rows and recurrent states after a flush of copies; control slots exactly."""
        wanted, _ = self.half.oracle.step("flush", {name: value.clone() for name, value in state.items()}, {})
        seen = [machine.flushed() for machine in self.machines]
        for name in ("length", "finished", "remaining"):
            for one in seen:
                same = torch.equal(one[name], wanted[name])
                self._require(where, same, f"`{name}` is {one[name].tolist()}, not {wanted[name].tolist()}")
        length = wanted["length"]
        for name in named(wanted, (*CACHES, *RECURRENT)):
            cached = name in named(wanted, CACHES)
            rows = wanted[name].shape[2] if cached else 0
            parts = [one[name][:, :, :rows] if cached else one[name] for one in (*seen, wanted)]
            parts = [blanked(part, length, 2) if cached else part for part in parts]
            self._floats(where, f"`{name}`", parts[:-1], parts[-1])

    def _require(self, where: str, holds: bool, text: str) -> None:
        if not holds:
            raise CheckFailure(Finding("I20", where, text))


def tempting(subject: Subject, trees: Sequence[DraftTree], texts: Sequence[Sequence[int]]) -> list[DraftTree]:
    """The trees, whose padding holds the tokens that the target goes on with: who takes it for a node accepts it."""
    made, chain = [], subject.spec.is_chain
    for tree, text in zip(trees, texts, strict=True):
        wanted = subject.plain.continuation(text, tree.num_nodes - 1 if chain else 1) if tree.has_padding else []
        nodes = enumerate(zip(tree.tokens, tree.valid, strict=True))
        tokens = [token if valid else wanted[node - 1 if chain else 0] for node, (token, valid) in nodes]
        made.append(replace(tree, tokens=tuple(tokens)))
    return made


def _padded(prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Token ids [B,LONGEST] and lengths [B]."""
    total = torch.tensor([len(prompt) for prompt in prompts])
    return torch.tensor([[*prompt, *[0] * (LONGEST - len(prompt))] for prompt in prompts]), total


def _three(bag: Bag) -> tuple[Tensor, Tensor | None, Tensor]:
    tokens, valid = bag["tokens"], bag["valid"]
    assert tokens is not None
    assert valid is not None
    return tokens, bag.get("parent"), valid


def _rows_of(found: Results) -> list[tuple[list[int], int, int]]:
    """(path, emitted, bonus) of every row."""
    return list(zip(found["path"].tolist(), found["emitted"].tolist(), found["bonus"].tolist(), strict=True))


def _emitted(tree: DraftTree, outcome: tuple[list[int], int, int]) -> list[int]:
    """The accepted tokens after the root, then the bonus."""
    path, count, bonus = outcome
    return [*(tree.tokens[node] for node in path[1:count]), bonus] if count else []
