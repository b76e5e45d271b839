"""Every shipped spec in a small geometry: its Ascend module, run eagerly on the CPU, beside its reference module."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specc.backends.ascend import cpu
from specc.check.machines import Generated, State
from specc.check.reduce import reduced_mapping
from specc.check.view import view
from specc.check.weights import Value, logical_weights, program_weights
from specc.driver import Compilation, compile_spec
from specc.program import DecodeProgram
from specc.runtime.module import import_source
from specc.spec import LoadedSpec, from_mapping, load

SPECS = Path(__file__).parents[3] / "specs"
NAMES = tuple(sorted(path.stem for path in SPECS.glob("*.yaml")))
QUICK = ("gdn-15m-tree", "smollm2-prompt-lookup-tree")
HEAD_DIM = 16
"""The least that the NPU's attention takes."""
BATCH = 8
LONGEST = 48


def small(name: str, dtype: str = "float32") -> LoadedSpec:
    """A shipped spec with the same switches and a small geometry."""
    mapping = reduced_mapping(load(SPECS / f"{name}.yaml"), HEAD_DIM)
    mapping["runtime"] |= {"dtype": dtype, "state_dtype": "float32", "max_batch_size": BATCH}
    mapping["runtime"]["max_sequence_length"] = LONGEST
    return from_mapping(mapping)


def cast(value: Value, like: torch.dtype) -> Value:
    """The same weight in another floating-point type; tables of integers stay."""
    if not isinstance(value, Tensor):
        return tuple(part.to(like) for part in value)
    return value.to(like) if value.is_floating_point() else value


def built(compilation: Compilation, name: str, program: DecodeProgram | None = None, source: str = "") -> Generated:
    """The module of a compilation (or of another program with its source) with the spec's random weights."""
    spec, program = compilation.loaded.spec, program or compilation.program
    module = import_source(source or compilation.source, f"specc_{name.replace(' ', '_')}")
    drawn = {key: cast(value, getattr(torch, spec.runtime.dtype)) for key, value in logical_weights(spec, 1).items()}
    wanted = program_weights(program.weights, compilation.naive, drawn)
    slots = {key: slot for key, slot in program.slots.items() if slot.alias is None}
    return Generated(name, module, slots, module.Weights(**wanted))


@dataclass(frozen=True)
class Pair:
    """The modules of a small spec; `seen` is for what tests keep of it."""

    name: str
    dtype: str = "float32"
    seen: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def loaded(self) -> LoadedSpec:
        """The small spec."""
        return small(self.name, self.dtype)

    @cached_property
    def compilation(self) -> Compilation:
        """What the Ascend module was generated from."""
        return compile_spec(self.loaded, "ascend", verify=False)

    @cached_property
    def ascend(self) -> Generated:
        """The Ascend module."""
        return built(self.compilation, f"ascend {self.name}")

    @cached_property
    def reference(self) -> Generated:
        """The reference module of the same spec in float32."""
        return built(compile_spec(self.loaded, verify=False), f"reference {self.name}")

    @property
    def eagle(self) -> bool:
        """Whether the drafter is a head."""
        return self.loaded.spec.draft.method == "eagle3"

    @property
    def greedy(self) -> bool:
        """Whether texts with drafts and without are equal."""
        return self.loaded.spec.accept.method == "greedy"

    def decoder(self) -> Any:
        """The Ascend module's Decoder, eager on the CPU."""
        return self.ascend.module.Decoder(self.ascend.weights, "cpu", eager=True)

    def observed(self, machine: Generated, state: State) -> State:
        """What can be seen of a state; caches of both modules in the length that both have."""
        seen = view(machine, state, self.eagle)
        return {name: value[:, :, :LONGEST] if "cache" in name else value for name, value in seen.items()}


@cache
def pair(name: str, dtype: str = "float32") -> Pair:
    """The modules of a shipped spec. NPU operators run on the CPU from here on."""
    cpu.register()
    return Pair(name, dtype)


def prompts(batch: int) -> list[list[int]]:
    """Prompts of several lengths with repeats, so that prompt lookup finds something."""
    texts = [[3, 4, 6, 3, 4, 6, 3, 4], [8], [5, 9, 5, 9, 5], [1, 1, 1, 12, 1, 1, 1]]
    return [texts[row % len(texts)] for row in range(batch)]
