"""The Triton module beside the reference module, step by step: integers equal, floats within the error of float32.

Every step starts from the reference's state, in three modules: Triton's in float32, the reference's in float32 and in
float64. Nothing drifts, so that the bound can be tight. With x the float64 value, the Triton module's error |t - x| may
be at most FACTOR times the largest error of the reference in float32, plus FLOOR units in the last place of the largest
|x|: the kernels sum in another order, but to no other precision. A wrong row, mask or position is off by 1e-2 and more.

Integers are equal wherever the reference chooses the same in float32 and in float64. Where it does not, a logit (or a
score, or a uniform against a probability) is nearer to another one than float32 can tell: a tie, which decides nothing.
Ties are counted, and a run with more than a few of them fails.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from torch import Tensor

from specc.check.crew import comparable
from specc.check.machines import Bag, Generated, Results, State, copied
from specc.check.view import view
from specc.testing import PlantedShape, plant_tree
from specc.testing.tensors import tree_tensors
from tests.backends.triton.modules import VOCABULARY, Modules

FACTOR = 8.0
FLOOR = 64 * torch.finfo(torch.float32).eps
PROMPTS = ((3, 4, 6, 3, 4), (8,))
STEPS = ("draft", "verify", "accept", "commit")
WHOLE = ("draft", "accept")
"""Steps whose results a whole step gives."""


def padded(prompts: Sequence[Sequence[int]]) -> dict[str, Tensor | None]:
    """Inputs of a prefill."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts])
    return {"input_ids": ids, "lengths": torch.tensor([len(prompt) for prompt in prompts])}


def widened(state: Mapping[str, Tensor], machine: Generated) -> State:
    """A copy of a state in the types of another module's slots."""
    return {name: value.to(machine.slots[name].dtype, copy=True) for name, value in state.items()}


def widened_bag(bag: Bag) -> dict[str, Tensor | None]:
    """What a float64 module takes: logits, features and laws in float64, scores in float32 as everywhere."""
    wide = ("logits", "features", "q_probs")
    return {name: value.double() if name in wide and value is not None else value for name, value in bag.items()}


def tied(wanted: Mapping[str, Tensor], exact: Mapping[str, Tensor]) -> bool:
    """Whether float32 and float64 choose differently."""
    pairs = [(value, exact[name]) for name, value in wanted.items() if not value.is_floating_point()]
    return not all(torch.equal(one, other) for one, other in pairs)


def gap(got: Tensor, wanted: Tensor, exact: Tensor) -> str:
    """How a result differs, by the rule of this module; empty if it does not. There is no tie."""
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return f"{got.dtype} {list(got.shape)} instead of {wanted.dtype} {list(wanted.shape)}"
    if not got.is_floating_point():
        return "" if torch.equal(got, wanted) else f"{got.tolist()} instead of {wanted.tolist()}"
    finite = exact.isfinite()
    if not torch.equal(torch.where(finite, 0.0, got), torch.where(finite, 0.0, exact.to(got.dtype))):
        return "infinities or NaN at other places"
    if not bool(finite.any()):
        return ""
    values = exact[finite].double()
    allowed = FACTOR * (wanted[finite].double() - values).abs().max() + FLOOR * values.abs().max()
    off = (got[finite].double() - values).abs().max()
    return "" if bool(off <= allowed) else f"off by {off:.2e}, allowed {allowed:.2e}"


@dataclass
class Lockstep:
    """The modules of a cell over one batch; `state` is the reference's."""

    modules: Modules
    prompts: Sequence[Sequence[int]] = PROMPTS
    tokens: int = 16
    state: State = field(default_factory=dict)
    ties: int = 0
    compared: int = 0
    accepted: int = 0
    texts: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        rows = len(self.prompts)
        self.state = self.modules.reference.start(rows)
        self.state["rng"] = torch.tensor([977 * (row + 1) * (-1) ** row for row in range(rows)])

    @property
    def live(self) -> Tensor:
        """bool [B]: rows that take part in the next step."""
        return ~self.state["finished"]

    def prefill(self) -> None:
        """All prompts, in two chunks; then a limit on the tokens."""
        given = padded(self.prompts)
        ids, lengths = given["input_ids"], given["lengths"]
        assert ids is not None
        assert lengths is not None
        for start, end in ((0, 2), (2, ids.shape[1])):
            part = ids[:, start:end]
            count = (lengths - start).clamp(0, part.shape[1])
            self.step("prefill", {"input_ids": part, "lengths": count}, count > 0)
        self.state["remaining"] = torch.full_like(self.state["remaining"], self.tokens - 1)
        self.texts = [[*prompt, root] for prompt, root in zip(self.prompts, self.roots, strict=True)]

    @property
    def roots(self) -> list[int]:
        """The last token of every row's text."""
        return [int(token) for token in self.state["root_token"].tolist()]

    def step(self, name: str, bag: Bag, live: Tensor | None = None) -> Results:
        """One step function in all three modules; returns the reference's results."""
        made, live = self.modules, self.live if live is None else live
        wanted = made.reference.step(name, copied(self.state), bag)
        exact = made.exact.step(name, widened(self.state, made.exact), widened_bag(bag))
        got = made.triton.step(name, copied(self.state), bag)
        self.state = wanted[0]
        results = [comparable(name, result, bag, live) for _, result in (got, wanted, exact)]
        self.compare(name, [after for after, _ in (got, wanted, exact)], results)
        return wanted[1]

    def compare(self, where: str, states: Sequence[State], results: Sequence[Results]) -> None:
        """States are compared as far as they can be observed, after a flush by the module that made them."""
        made = self.modules
        machines = (made.triton, made.reference, made.exact)
        seen = [view(machine, state, made.eagle) for machine, state in zip(machines, states, strict=True)]
        got, wanted, exact = [{**result, **view_} for result, view_ in zip(results, seen, strict=True)]
        assert got.keys() == wanted.keys(), (where, got.keys() ^ wanted.keys())
        self.compared += 1
        if tied(wanted, exact):
            self.ties += 1
            return
        for name, value in got.items():
            text = gap(value, wanted[name], exact[name])
            assert not text, f"{where}, `{name}`: {text}"

    def planted(self, seed: int) -> dict[str, Tensor | None]:
        """Trees around what the reference goes on with, errors among them."""
        spec, rng = self.modules.cell.loaded().spec, Random(seed)
        shape = PlantedShape(spec.num_nodes, spec.depth, 1 if spec.is_chain else max(spec.draft.top_k, 2))
        trees = []
        for text, plain in zip(self.texts, self._plain(), strict=True):
            known = [*plain[len(text) - 1 :], *[rng.randrange(VOCABULARY) for _ in range(spec.depth + 1)]]
            trees.append(plant_tree([text[-1], *known[1 : spec.depth + 1]], VOCABULARY, shape, rng))
        tokens, parent, valid = tree_tensors(trees)
        return {"tokens": tokens, "valid": valid} | ({} if spec.is_chain else {"parent": parent})

    def _plain(self) -> list[list[int]]:
        """Prompt and plain text of every row, by the reference."""
        if "plain" not in self.modules.seen:
            decoder = self.modules.reference.module.Decoder(self.modules.reference.weights)
            made = decoder.generate(self.prompts, self.tokens, speculative=False).tokens
            self.modules.seen["plain"] = [[*p, *t] for p, t in zip(self.prompts, made, strict=True)]
        found: list[list[int]] = self.modules.seen["plain"]
        return found

    def speculate(self, seed: int | None = None) -> None:
        """Draft, verify, accept, commit; with a seed the nodes verified are planted ones, not the drafts."""
        bag: dict[str, Tensor | None] = dict(self.step("draft", {}))
        if seed is not None and self.modules.cell.draft != "plain":
            bag |= self.planted(seed)
        for name in STEPS[1:]:
            bag |= self.step(name, bag)
        lengths, emitted, tokens = (bag[name] for name in ("accept_length", "emitted", "emitted_tokens"))
        assert lengths is not None
        assert emitted is not None
        assert tokens is not None
        self.accepted += int((lengths >= 1).sum())
        for text, row, count in zip(self.texts, tokens.tolist(), emitted.tolist(), strict=True):
            text += row[:count]

    def decode(self) -> None:
        """One plain step."""
        self.step("decode", {})
        for text, root, live in zip(self.texts, self.roots, self.live.tolist(), strict=True):
            text += [root] if live else []

    def whole_step(self) -> None:
        """`run_step` in place on a copy of the state, against the reference's four steps with its own drafts."""
        self._in_place("run_step", STEPS, WHOLE)

    def plain_step(self) -> None:
        """`run_plain_step` in place on a flushed copy of the state, against the reference's step `decode`."""
        self._in_place("run_plain_step", ("flush", "decode"), ())

    def _in_place(self, function: str, steps: Sequence[str], shown: Sequence[str]) -> None:
        made, live = self.modules, self.live
        outcomes: list[tuple[State, Results]] = []
        for machine in (made.reference, made.exact):
            state, bag = widened(self.state, machine), dict[str, Tensor | None]()
            results: Results = {}
            for name in steps:
                state, found = machine.step(name, state, bag)
                bag |= found
                results |= comparable(name, found, bag, live) if name in shown else {}
            outcomes.append((state, results))
        mine = copied(self.state)
        if steps[0] == "flush":
            mine, _ = made.triton.step("flush", mine, {})
        fields = in_place(made.triton, function, mine)
        check_record(fields.pop("record"), mine, fields)
        # Scores and laws of drafts stay inside a whole step.
        named = [name for name, value in outcomes[0][1].items() if name in fields or not value.is_floating_point()]
        results = comparable("step", {name: fields[name] for name in named}, {}, live)
        known = [{name: one[name] for name in named} for _, one in outcomes]
        self.compare(function, [mine, outcomes[0][0], outcomes[1][0]], [results, *known])


def in_place(machine: Generated, function: str, state: State) -> Results:
    """A whole step of a Triton module; `state` changes in place. Returns the fields of its record type."""
    with torch.no_grad():
        made: Any = getattr(machine.module, function)(machine.weights, machine.module.State(**state))
    return {name: value for name, value in made._asdict().items() if value is not None}


def check_record(record: Tensor, state: State, fields: Results) -> None:
    """What the host reads of a step is finished, root token, then the other fields, in int64 columns."""
    columns = [state["finished"], state["root_token"], *fields.values()]
    wanted = torch.cat([value.long().reshape(value.shape[0], -1) for value in columns], 1)
    assert torch.equal(record, wanted)
