"""A reduced spec in half precision (or float32), beside the reference's module of it in float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from specc import driver
from specc.check.machines import Generated, load_module
from specc.check.reduce import ASCEND_HEAD_DIM, reduced_mapping
from specc.check.subject import Subject
from specc.check.variations import Changes, Variation, changed
from specc.check.weights import Value, logical_weights, program_weights
from specc.program import DecodeProgram
from specc.spec import LoadedSpec, from_mapping, to_mapping

TARGET = "ascend"
ROWS = 4
DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


def reduced_half(loaded: LoadedSpec, dtype: str, changes: Changes | None = None) -> LoadedSpec:
    """The spec, reduced and in half precision. Raises SpecError where that is not a legal spec.

    Recurrent states stay bfloat16 where the spec has them so, and are float32 otherwise.

    All experts of a mixture are active: between two that a router finds nearly alike, rounding chooses at random, which
    no bound describes. The choice itself is checked in float32, by the invariants. Hybrids have one period of layers.
    """
    small = reduced_mapping(loaded, ASCEND_HEAD_DIM)
    narrow = loaded.spec.runtime.state_dtype == "bfloat16"
    runtime: dict[str, Any] = {"runtime.dtype": dtype, "runtime.max_batch_size": ROWS}
    runtime["runtime.state_dtype"] = "bfloat16" if narrow else "float32"
    config = small["target"]["config"]
    if "num_experts" in config:
        runtime["target.config.num_experts_per_tok"] = config["num_experts"]
    if "layer_types" in config:
        kinds = config["layer_types"]
        period = next(size for size in range(1, len(kinds) + 1) if kinds[:size] * (len(kinds) // size) == kinds)
        runtime |= {"target.config.layer_types": kinds[:period], "target.config.num_hidden_layers": period}
    return from_mapping(changed(small, {**runtime, **(changes or {})}))


def cast(value: Value, dtype: torch.dtype, device: str = "cpu") -> Value:
    """A weight in another type; integers stay."""
    if isinstance(value, Tensor):
        return value.to(device, dtype) if value.is_floating_point() else value.to(device)
    return tuple(one.to(device, dtype) for one in value)


@dataclass
class Half:
    """A compiled half-precision spec: its module and weights for a target, and the float64 module as oracle.

    Both have the same weights: what the half module can hold. Raises DiagnosticError while compiling.
    """

    loaded: LoadedSpec
    seed: int = 0
    device: str = "cpu"
    target: str = TARGET

    @property
    def dtype(self) -> torch.dtype:
        """The program's type."""
        return DTYPES[self.loaded.spec.runtime.dtype]

    @property
    def state_dtype(self) -> torch.dtype:
        """The type of recurrent states."""
        return DTYPES[self.loaded.spec.runtime.state_dtype]

    @cached_property
    def naive(self) -> DecodeProgram:
        """The program before all passes."""
        return driver.lower_spec(self.loaded, self.target)

    @cached_property
    def program(self) -> DecodeProgram:
        """The program that the module is printed from."""
        return driver.run_passes(self.loaded, self.naive, target=self.target, verify=False).program

    @cached_property
    def source(self) -> str:
        """The text of the module."""
        return driver.generate(self.loaded, self.program, self.target)

    @cached_property
    def module(self) -> Any:
        """The module, imported."""
        name = f"specc_{self.target}_{self.loaded.spec.name}_{self.loaded.spec.runtime.dtype}".replace("-", "_")
        return load_module(self.source, name)

    @cached_property
    def _rounded(self) -> dict[str, Value]:
        drawn = logical_weights(self.loaded.spec, self.seed)
        return {name: cast(cast(value, self._type_of(name)), torch.float64) for name, value in drawn.items()}

    def _type_of(self, name: str) -> torch.dtype:
        weight = self.naive.weights.get(name)
        return self.dtype if weight is None else weight.dtype

    @cached_property
    def weights(self) -> Any:
        """The module's weights."""
        wanted = self.program.weights
        made = program_weights(wanted, self.naive, {name: self._rounded[name] for name in self.naive.weights})
        given = {name: cast(value, wanted[name].dtype, self.device) for name, value in made.items()}
        return self.module.Weights(**given)

    @cached_property
    def exact(self) -> Subject:
        """The same spec in float64 for the reference target, with the same numbers as weights."""
        mapping = to_mapping(self.loaded.spec)
        mapping.pop("backend", None)
        wide = from_mapping(changed(mapping, {"runtime.dtype": "float64", "runtime.state_dtype": "float64"}))
        made = Subject(Variation("float64", wide), self.seed)
        made.__dict__["all_weights"] = self._rounded
        declared = made.naive.weights
        made.__dict__["weights"] = {name: cast(self._rounded[name], declared[name].dtype) for name in declared}
        return made

    @property
    def oracle(self) -> Generated:
        """The reference's module in float64."""
        return self.exact.generated
