"""What executes a compiled spec: a program in the interpreter, or a generated module. Both behind one interface.

A state is a dict of tensors. Steps never write into the state that they are given, except a module's, whose state is
donated (design 00): whoever needs the old state copies it first. Inputs of a step are picked by name from a "bag" that
holds the draft and the results of the steps before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from specc.check import pages
from specc.ir.interpreter import Hook, init_state, run_step
from specc.program import DecodeProgram, Slot, input_ports
from specc.runtime.module import import_source

State = dict[str, Tensor]
Bag = Mapping[str, Tensor | None]
Results = dict[str, Tensor]


class Machine(Protocol):
    """One way to run a compiled spec."""

    @property
    def name(self) -> str:
        """How messages call it."""

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The slots that its state stores or aliases."""

    def start(self, batch: int) -> State:
        """A fresh state."""

    def step(self, step: str, state: State, bag: Bag) -> tuple[State, Results]:
        """One step function: prefill, decode, draft, verify, accept, commit or flush."""


def copied(state: State) -> State:
    """A state that owns its memory."""
    return {name: value.clone() for name, value in state.items()}


@dataclass(frozen=True, slots=True)
class Interpreted:
    """A program in the interpreter. `strict` refuses indices out of range, `poison` overwrites rows never read."""

    name: str
    program: DecodeProgram
    weights: Mapping[str, Any]
    strict: bool = False
    poison: bool = False
    hooks: tuple[Hook, ...] = ()

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The program's slots."""
        return self.program.slots

    def start(self, batch: int) -> State:
        """Every stored slot at its initial value."""
        return init_state(self.program, batch)

    def step(self, step: str, state: State, bag: Bag) -> tuple[State, Results]:
        """Runs the step's graph; a pending commit is flushed first where the program says so."""
        if step in self.program.attributes.get("flush_first", ()):
            state, _ = self.step("flush", state, {})
        names = [port[6:] for port in input_ports(self.program.graphs[step]) if port.startswith("input:")]
        inputs = {name: value for name in names if (value := bag.get(name)) is not None}
        updates, results = run_step(
            self.program,
            step,
            state,
            self.weights,
            inputs,
            strict=self.strict,
            poison=self.poison,
            hooks=self.hooks,
        )
        return {**state, **updates}, results


def load_module(source: str, name: str) -> Any:
    """Execute generated source as a module of its own, without touching the disk."""
    return import_source(source, name)


@dataclass(frozen=True, slots=True)
class Generated:
    """A generated module (ABI 1), called through its public functions, so that its edge checks are exercised too.

    `edge` False calls the printed functions behind them, which take whatever a mutated program makes of a state.
    """

    name: str
    module: Any
    slots: Mapping[str, Slot]
    weights: Any = field(repr=False)
    edge: bool = True

    def start(self, batch: int) -> State:
        """init_state."""
        return dict(self.module.init_state(batch, "cpu")._asdict())

    def _record(self, name: str, bag: Bag) -> Any:
        made: Any = getattr(self.module, name)
        defaults = made._field_defaults
        values = {field: bag[field] for field in made._fields if bag.get(field) is not None}
        for missing in set(made._fields) - set(values) - set(defaults):
            if missing != "log_probs":
                raise ValueError(f"{name} needs `{missing}`")
            tokens = bag["tokens"]
            assert tokens is not None
            values[missing] = torch.zeros(tokens.shape, dtype=torch.float32)
        return made(**values)

    def step(self, step: str, state: State, bag: Bag) -> tuple[State, Results]:
        """Calls the public function of the step. The state given is donated."""
        module, before = self.module, self.module.State(**state)
        with torch.no_grad():
            after, results = self._call(module, step, before, bag)
        return dict(after._asdict()), results

    def _call(self, module: Any, step: str, state: Any, bag: Bag) -> tuple[Any, Results]:
        function = getattr(module, step if self.edge else f"run_{step}")
        if step == "prefill":
            after, logits, *rest = function(self.weights, state, bag["input_ids"], bag["lengths"])
            return after, {"logits": logits} | ({"features": rest[0]} if rest else {})
        if step in ("draft", "decode"):
            after, record = function(self.weights, state)
        elif step == "verify":
            after, record = function(self.weights, state, bag["tokens"], bag.get("parent"), bag.get("valid"))
        elif step == "accept":
            after, record = function(state, self._record("Verified", bag), self._record("Draft", bag))
        elif step == "commit":
            return function(state, self._record("Verified", bag), self._record("Accepted", bag)), {}
        else:
            return function(state), {}
        return after, {name: value for name, value in record._asdict().items() if value is not None}

    def snapshot(self, state: State, rows: Sequence[int]) -> tuple[State, State]:
        """The state to go on with, and a copy of these rows."""
        after, saved = self.module.snapshot(self.module.State(**state), rows)
        return dict(after._asdict()), dict(saved._asdict())

    def restore(self, state: State, rows: Sequence[int], saved: State) -> State:
        """The state with these rows replaced by a snapshot's."""
        module = self.module
        return dict(module.restore(module.State(**state), rows, module.State(**saved))._asdict())

    def reset(self, state: State, rows: Sequence[int]) -> State:
        """The state with these rows as new."""
        return dict(self.module.reset(self.module.State(**state), rows)._asdict())


def reset_rows(machine: Machine, state: State, rows: Sequence[int]) -> State:
    """The state with these rows as new; their random streams stay. A module does it itself."""
    if isinstance(machine, Generated):
        after = machine.reset(state, rows)
    else:
        after = copied(machine.step("flush", state, {})[0])
        index = torch.tensor(list(rows))
        if pages.TABLE in after:
            pages.release(after, rows)
        for name, slot in machine.slots.items():
            if name in after and slot.batch_dim >= 0:
                after[name].index_fill_(slot.batch_dim, index, slot.fill)
    return {**after, "rng": state["rng"].clone()}
