"""A module that computes in float32 (the Triton backend's), seen as a float64 module by the checks.

States and results are widened when they leave the module, what goes in is rounded: float32 values survive that
unchanged, so that "bit for bit" means the same as everywhere. Everything else of a check stays in float64: the programs
after every pass, plain decoding, the rules. Their weights are those of the module, rounded to float32.

How far a float32 module may be off. The errors of `compare` hold in float32 as well, with its eps: two layers of sums
of at most 128 products, each amplified by softmax and norms. SLACK times eps sqrt(128) is 4.3e-5 of the largest value
for transformers, RECURRENT_SLACK 1.4e-3 where recurrent layers norm the output of every head, however small it is. A
wrong row, position or parent moves results by more than 1e-2.

Ties. Where two logits, scores or a probability and its uniform are nearer than that, float32 may choose otherwise than
float64 does, and every later token differs. A finding of a float32 module therefore counts only if the same example
fails with other weights as well; else it is a tie, which proves nothing. Ties are counted, and many of them fail the
check (`Run`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

from specc.check.compare import LONGEST_SUM
from specc.check.machines import Bag, Generated, Results, State
from specc.check.weights import Value

SLACK, RECURRENT_SLACK = 32.0, 1024.0
KEPT = frozenset({"log_probs"})
"""Results that are float32 in every module."""


def single_bound(recurrent: bool) -> float:
    """The relative bound for a float32 module against float64."""
    slack = RECURRENT_SLACK if recurrent else SLACK
    return slack * torch.finfo(torch.float32).eps * math.sqrt(LONGEST_SUM)


def rounded(value: Value) -> Value:
    """The values that float32 can hold, in the type that they had; integers stay."""
    if isinstance(value, Tensor):
        return value.float().to(value.dtype) if value.is_floating_point() else value
    return tuple(part.float().to(part.dtype) for part in value)


def narrowed(value: Value, device: str) -> Value:
    """A weight for the module: float32, on its device."""
    if isinstance(value, Tensor):
        return (value.float() if value.is_floating_point() else value).to(device)
    return tuple(part.float().to(device) for part in value)


def widened(values: Mapping[str, Tensor | Sequence[Tensor]]) -> dict[str, Tensor]:
    """Copies on the CPU, in float64 where a float64 module has that; what comes by layer is stacked."""
    whole = {name: value if isinstance(value, Tensor) else torch.stack(list(value)) for name, value in values.items()}
    made = {name: value.detach().to("cpu", copy=True) for name, value in whole.items()}
    return {
        name: value if name in KEPT or value.dtype != torch.float32 else value.double() for name, value in made.items()
    }


@dataclass(frozen=True, slots=True)
class Single(Generated):
    """A float32 module on any device, behind an interface of float64 tensors on the CPU."""

    device: str = "cpu"

    def _inside(self, values: Mapping[str, Tensor]) -> State:
        return {
            name: value.to(self.device, torch.float32 if value.dtype == torch.float64 else value.dtype, copy=True)
            for name, value in values.items()
        }

    def start(self, batch: int) -> State:
        """init_state."""
        return widened(self.module.init_state(batch, self.device)._asdict())

    def step(self, step: str, state: State, bag: Bag) -> tuple[State, Results]:
        """Calls the public function of the step."""
        given: dict[str, Tensor | None] = dict.fromkeys(bag)
        given |= self._inside({name: value for name, value in bag.items() if value is not None})
        # Mutated programs overflow where torch says nothing and NumPy, which interprets kernels, warns.
        with numpy.errstate(all="ignore"):
            after, results = Generated.step(self, step, self._inside(state), given)
        return widened(after), widened(results)

    def snapshot(self, state: State, rows: Sequence[int]) -> tuple[State, State]:
        """The state to go on with, and a copy of these rows."""
        after, saved = Generated.snapshot(self, self._inside(state), rows)
        return widened(after), widened(saved)

    def restore(self, state: State, rows: Sequence[int], saved: State) -> State:
        """The state with these rows replaced by a snapshot's."""
        return widened(Generated.restore(self, self._inside(state), rows, self._inside(saved)))

    def reset(self, state: State, rows: Sequence[int]) -> State:
        """The state with these rows as new."""
        return widened(Generated.reset(self, self._inside(state), rows))
