"""The machines of one example in lock-step: a leader, and followers that get the leader's inputs and are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specc.check.compare import mapping_difference
from specc.check.findings import CheckFailure, Checks, Finding, invariant_of_pass
from specc.check.machines import Bag, Machine, Results, State, reset_rows
from specc.check.masks import clear_masks
from specc.check.pages import check_pages
from specc.check.subject import Subject
from specc.check.view import alike, view
from specc.ir.strict import IndexRangeError
from specc.testing.draft_tree import DraftTree

CRASHES = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What a wrong program or module may raise while it runs; each is a finding, not an end of the check."""


@dataclass(slots=True)
class Member:
    """A machine, its state, what it is compared with (a place in the crew, -1: nothing), and under which invariant."""

    machine: Machine
    reference: int
    id: str
    state: State = field(default_factory=dict)


def hands(subject: Subject, against: str) -> list[Member]:
    """The followers of an example, in order; the leader (the generated module) is compared with the last."""
    if against == "naive":
        return [Member(subject.naive_machine, -1, "I20")]
    if against != "stages":
        return []
    members = []
    for place, stage in enumerate(subject.stages):
        members.append(Member(subject.interpreted(stage, strict=True), place - 1, invariant_of_pass(stage.name)))
    return members


@dataclass(slots=True)
class Op:
    """One recorded step of the leader: the inputs given, its results, which rows were live before it."""

    step: str
    bag: Mapping[str, Tensor | None]
    results: Results
    live: Tensor
    rows: tuple[int, ...] = ()


def comparable(step: str, results: Mapping[str, Tensor], bag: Bag, live: Tensor) -> Results:
    """Results with what nobody may rely on blanked: rows that are not live, logits of padding nodes."""
    seen: Results = {}
    valid = bag.get("valid")
    for name, value in results.items():
        mask = live.reshape(-1, *[1] * (value.dim() - 1))
        if step == "verify" and valid is not None:
            mask = (live[:, None] & valid).reshape(*valid.shape, *[1] * (value.dim() - 2))
        seen[name] = torch.where(mask, value, torch.zeros_like(value))
    return seen


@dataclass(slots=True)
class Crew:
    """Leader first in `members`. `step` runs all of them and compares; `record` holds what the leader did."""

    subject: Subject
    checks: Checks
    members: list[Member]
    record: list[Op] = field(default_factory=list)
    where: str = ""

    @classmethod
    def gather(cls, subject: Subject, checks: Checks, against: str, batch: int, keys: Sequence[int]) -> Crew:
        """A leader and followers with fresh states and these random streams."""
        followers = hands(subject, against)
        members = [Member(subject.generated, len(followers) if followers else -1, "I20"), *followers]
        for place, member in enumerate(members):
            if place:
                member.reference = member.reference + 1 if member.reference >= 0 else -1
            member.state = {**member.machine.start(batch), "rng": torch.tensor(list(keys))}
        return cls(subject, checks, members)

    @property
    def leader(self) -> Machine:
        """The machine that is checked."""
        return self.members[0].machine

    @property
    def state(self) -> State:
        """The leader's state."""
        return self.members[0].state

    @property
    def live(self) -> Tensor:
        """bool [B]: rows that take part in the next step."""
        return ~self.state["finished"]

    def set(self, **slots: Tensor) -> None:
        """Write control slots of every member."""
        self.record.append(Op("set", slots, {}, self.live))
        for member in self.members:
            member.state = {**member.state, **{name: value.clone() for name, value in slots.items()}}

    def reset(self, row: int) -> None:
        """Take a row's request away, in every member."""
        self.record.append(Op("reset", {}, {}, self.live, (row,)))
        for member in self.members:
            member.state = reset_rows(member.machine, member.state, [row])
            check_pages(self.checks, f"{self.where}, reset in the {member.machine.name}", member.state)

    def run(self, machine: Machine, step: str, state: State, bag: Bag) -> tuple[State, Results]:
        """One step of one machine; what it raises becomes a finding."""
        try:
            return machine.step(step, state, bag)
        except IndexRangeError as failure:
            raise CheckFailure(Finding("I6", self._at(machine, step), str(failure))) from failure
        except CRASHES as failure:
            text = f"it raised {type(failure).__name__}: {failure}"
            raise CheckFailure(Finding("I20", self._at(machine, step), text)) from failure

    def _at(self, machine: Machine, step: str) -> str:
        return f"{self.where}, {step} of the {machine.name}"

    def step(self, step: str, bag: Bag, live: Tensor | None = None) -> Results:
        """The step on every member. Compares each with its reference and returns the leader's results."""
        live = self.live if live is None else live
        outcomes: list[Results] = []
        for member in self.members:
            clear_masks(member.machine)
            member.state, results = self.run(member.machine, step, member.state, bag)
            check_pages(self.checks, self._at(member.machine, step), member.state)
            outcomes.append(results)
        self.record.append(Op(step, dict(bag), outcomes[0], live))
        if len(self.members) > 1:
            self._compare(step, bag, live, outcomes)
        return outcomes[0]

    def _compare(self, step: str, bag: Bag, live: Tensor, outcomes: list[Results]) -> None:
        eagle = self.subject.spec.draft.method == "eagle3"
        seen = [comparable(step, results, bag, live) for results in outcomes]
        views = [view(member.machine, member.state, eagle) for member in self.members]
        # Followers first, so that a wrong pass is named rather than the module that it led to.
        for place in [*range(1, len(self.members)), 0]:
            member = self.members[place]
            if member.reference < 0:
                continue
            other = self.members[member.reference].machine.name
            # Programs run in float64; only the module may be a float32 one.
            bound = self.subject.bound if place == 0 else 0.0
            gap = mapping_difference(seen[place], seen[member.reference], bound=bound)
            gap = gap or mapping_difference(*alike(views[place], views[member.reference]), bound=bound)
            text = None if gap is None else f"differs from the {other} in {gap}"
            self.checks.require(member.id, self._at(member.machine, step), text, first_tree(bag))


def first_tree(bag: Bag, row: int = 0) -> DraftTree | None:
    """The tree of one row of a bag, None if it holds none."""
    tokens, valid = bag.get("tokens"), bag.get("valid")
    if tokens is None or valid is None:
        return None
    marks = [bool(mark) for mark in valid[row].tolist()]
    parent = bag.get("parent")
    chain = [node - 1 if node == 0 or ok else 0 for node, ok in enumerate(marks)]
    above = chain if parent is None else parent[row].tolist()
    return DraftTree(tuple(tokens[row].tolist()), tuple(above), tuple(marks))
