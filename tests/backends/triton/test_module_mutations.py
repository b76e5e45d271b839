"""I20 on mutated programs: a Triton module does what its FX program says, also where that makes no sense.

One node of the program after all passes is changed. The module generated from it, in float32, is compared with the
interpreter on the same program in float64, and in float32 for how far that is off: the rule of `lockstep`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

from specc.check.crew import CRASHES, comparable
from specc.check.machines import Bag, Interpreted, Results, State
from specc.check.mutate import mutated
from specc.check.weights import logical_weights, program_weights
from specc.driver import generate
from specc.ir.strict import IndexRangeError
from specc.program import DecodeProgram, input_ports
from tests.backends.triton.lockstep import PROMPTS, gap, padded, tied
from tests.backends.triton.modules import Cell, built, cast, modules
from tests.cells import ALL

CELLS = (
    Cell("llama", "lookup tree", "path, deferred"),
    Cell("llama", "lookup tree", "path, deferred", page=16),
    Cell("delta", "lookup tree", "windowed"),
)
ORDER = ("prefill", "draft", "verify", "accept", "commit", "draft", "verify", "accept")
CONTROL = ("length", "root_token", "finished", "remaining")


@dataclass(frozen=True)
class Mutant:
    """A changed program of a cell: as code, and in the interpreter in float32 and float64."""

    cell: Cell
    program: DecodeProgram

    @cached_property
    def source(self) -> str:
        """The module generated from it."""
        return generate(self.cell.loaded(), self.program, "triton")

    def machines(self) -> tuple[Any, Interpreted, Interpreted]:
        """The module behind its edge checks, and the interpreter in float32 and with float64 values."""
        made = modules(self.cell)
        module = replace(built(made.compilation, "mutant", self.program, self.source), edge=False)
        drawn = {name: cast(v, torch.float32) for name, v in logical_weights(self.cell.loaded().spec, 1).items()}
        weights = program_weights(self.program.weights, made.compilation.naive, drawn)
        wide = {name: cast(value, torch.float64) for name, value in weights.items()}
        one, exact = (Interpreted("interpreter", self.program, given, strict=True) for given in (weights, wide))
        return module, one, exact


def in_range(program: DecodeProgram, step: str, state: State, bag: Bag) -> bool:
    """Whether the step gets what the program declares."""
    for port in input_ports(program.graphs[step]):
        kind, name = port.split(":", 1)
        value, bounds = (state if kind == "slot" else bag).get(name), program.ranges.get(port)
        if value is None or bounds is None or name == "lengths" or not value.numel():
            continue
        if int(value.min()) < bounds.low or int(value.max()) > bounds.high:
            return False
    return True


def widened(values: Mapping[str, Tensor | None]) -> dict[str, Any]:
    """Copies with float64 in the place of float32 (scores apart)."""
    single = {name for name, value in values.items() if value is not None and value.dtype == torch.float32}
    found = values.items()
    return {k: v if v is None else v.double() if k in single - {"log_probs"} else v.clone() for k, v in found}


def compare(mutant: Mutant, what: str) -> None:
    """Both through a prompt and two steps.

    Ends early where the mutant leaves what its ops define: an index or an input out of range, a path that does not
    ascend, an operand that torch refuses.
    """
    module, interpreter, exact = mutant.machines()
    state = {**interpreter.start(len(PROMPTS)), "rng": torch.arange(len(PROMPTS)) * 977}
    bag: dict[str, Tensor | None] = padded(PROMPTS)
    for step in ORDER:
        if not in_range(mutant.program, step, state, bag) or (step == "commit" and not ascends(bag)):
            return
        live = ~state["finished"] if step != "prefill" else torch.ones(len(PROMPTS), dtype=torch.bool)
        start, wide = {name: value.clone() for name, value in state.items()}, widened(state)
        try:
            state, wanted = interpreter.step(step, state, bag)
            truth, values = exact.step(step, wide, widened(bag))
        except (*CRASHES, IndexRangeError):
            return
        with numpy.errstate(all="ignore"):
            after, got = module.step(step, start, bag)
        seen = [
            comparable(step, results, bag, live) | {name: one[name] for name in CONTROL}
            for one, results in ((after, got), (state, wanted), (truth, values))
        ]
        if tied(*seen[1:]) or not within_range(*seen[1:]):
            return
        for name, value in seen[1].items():
            text = gap(seen[0][name], value, seen[2][name])
            assert not text, f"{what}, in {step}, `{name}`: {text}"
        bag |= wanted


def within_range(wanted: Results, exact: Results) -> bool:
    """Whether float32 holds all values that float64 has."""
    floats = [name for name, value in wanted.items() if value.is_floating_point()]
    return all(torch.equal(wanted[name].isfinite(), exact[name].isfinite()) for name in floats)


def ascends(bag: Bag) -> bool:
    """Whether accepted paths are what a commit relies on."""
    path, emitted = bag["path"], bag["emitted"]
    assert path is not None
    assert emitted is not None
    used = [row[:count] for row, count in zip(path.tolist(), emitted.tolist(), strict=True)]
    return all(not nodes or (nodes == sorted(set(nodes)) and nodes[0] == 0) for nodes in used)


def run(cell: Cell, seeds: range) -> None:
    program = modules(cell).compilation.program
    for seed in seeds:
        made = mutated(program, Random(seed))
        assert made is not None
        changed, step, text = made
        mutant = Mutant(cell, changed)
        assert mutant.source != modules(cell).compilation.source, (step, text)
        compare(mutant, f"{step}: {text}")


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_changed_node_changes_the_module(cell: Cell) -> None:
    run(cell, range(1))


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_many_changed_nodes(cell: Cell) -> None:
    run(cell, range(1, 7) if ALL else range(1, 4))
