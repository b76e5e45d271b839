"""A spec's module for another target, walked like the Ascend module: the reference, or steps that ONNX Runtime or IREE
run. It has the interface of `steps.Steps`; its module's functions give new states, which are kept here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from specc.backends.export.export import export_step
from specc.backends.export.run import RUNTIMES, with_steps
from specc.backends.export.signature import Sizes, signature_of
from specc.check.ascend.half import Half, reduced_half
from specc.check.ascend.steps import ACCEPTED, narrow
from specc.check.machines import Bag, Generated, State, load_module
from specc.spec import LoadedSpec

REFERENCE = "reference"
WALKED = ("prefill", "verify", "accept", "commit", "flush")
"""The steps of a walk: nothing is drafted, trees are given."""
PASSES = frozenset({"prefill", "verify"})
"""The steps that run the model: a witness has at least these."""
CHUNK = 6


def witness_half(loaded: LoadedSpec, dtype: str, target: str, seed: int = 0) -> Half:
    """The reduced spec for `target`."""
    return Half(reduced_half(loaded, dtype), seed, target=target)


@dataclass
class Witness:
    """A module of any target in the program's own type, on one state; `steps` are those that are exported.

    Raises DiagnosticError (SPC206) for a step that an exporter can't write, RuntimeError for one that its runtime can't
    run.
    """

    half: Half
    batch: int
    fused: bool = False
    steps: tuple[str, ...] = WALKED
    values: State = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)

    @cached_property
    def module(self) -> Any:
        """The module; its steps are exported and compiled here, one by one: a runtime that can't run the first need not
        see the rest. One that can't be compiled stays as it was printed, and is in `left`; where that is a whole pass
        through the model, RuntimeError says why."""
        half = self.half
        module = load_module(half.source, f"specc_witness_{half.target}")
        if half.target == REFERENCE:
            return module
        found = {step: signature_of(half.program, step, Sizes(self.batch, CHUNK)) for step in self.steps}
        signatures = {step: signature for step, signature in found.items() if signature.outputs}
        plain = load_module(half.source, f"specc_exported_{half.target}")
        files: dict[str, bytes] = {}
        execute = RUNTIMES[half.target](files)
        for step in list(signatures):
            files[step] = export_step(half.target, plain, signatures[step]).content
            try:
                execute.prepare(step)
            except RuntimeError as reason:
                if step in PASSES:
                    raise
                self.left[step] = str(reason)
                del signatures[step]
        return with_steps(module, signatures, execute)

    @cached_property
    def _machine(self) -> Generated:
        slots = {name: slot for name, slot in self.half.program.slots.items() if slot.alias is None}
        weights = self.module.Weights(**self.half.weights._asdict())
        return Generated(self.half.target, self.module, slots, weights)

    @property
    def state(self) -> Any:
        """The state's tensors as attributes; writing into them changes it."""
        return SimpleNamespace(**self.values)

    def fresh(self, keys: Tensor) -> None:
        """The state as new, with these random streams [B]."""
        self.values = self._machine.start(self.batch)
        self.values["rng"].copy_(keys)

    def _step(self, step: str, bag: Bag) -> dict[str, Tensor]:
        self.values, results = self._machine.step(step, self.values, bag)
        return results

    def prompt(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Prefill a chunk [B,T]; the logits [B,V]."""
        return self._step("prefill", {"input_ids": ids, "lengths": lengths})["logits"].clone()

    def plant(self, bag: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
        """A whole step on given trees; logits [B,N,V] and ACCEPTED."""
        known: dict[str, Tensor | None] = {
            name: None if value is None else narrow(value) for name, value in bag.items()
        }
        for step in ("verify", "accept", "commit"):
            known |= self._step(step, known)
        made = {name: known[name] for name in ("logits", *ACCEPTED)}
        return {name: value.clone() for name, value in made.items() if value is not None}

    def flushed(self) -> State:
        """A copy of the state with nothing pending."""
        copy = {name: value.clone() for name, value in self.values.items()}
        return self._machine.step("flush", copy, {})[0]
