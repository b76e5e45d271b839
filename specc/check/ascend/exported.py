"""An exported spec behind the interface of the checks: its steps run in ONNX Runtime or IREE, in float32."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from specc.backends.export.export import Export, export_program, sizes_of
from specc.backends.export.run import open_export
from specc.check.machines import Generated
from specc.check.reduce import reduced_mapping
from specc.check.single import Single, narrowed
from specc.check.subject import Subject
from specc.check.weights import program_weights
from specc.driver import module_info
from specc.spec import LoadedSpec, from_mapping

CHUNK = 5
"""Tokens of an exported prefill."""

MAX_NODES, MAX_STEPS = 5, 3
"""Trees of exports are small: drafting is exported, too, and every node adds to what is compiled."""


def reduced_export(loaded: LoadedSpec) -> LoadedSpec:
    """A spec, reduced as `specc check` does it and with a smaller tree."""
    mapping = reduced_mapping(loaded)
    _prune(mapping["draft"])
    return from_mapping(mapping)


def _prune(draft: dict[str, Any]) -> None:
    """At most MAX_NODES drafted nodes in MAX_STEPS levels, of the same kind of tree."""
    if draft["tree"] == "static":
        choices = [path for path in draft["choices"] if len(path) <= MAX_STEPS][:MAX_NODES]
        draft |= {"choices": choices, "num_speculative_tokens": len(choices)}
        draft["num_steps"] = max(len(path) for path in choices)
    elif draft["method"] != "none":
        draft["num_speculative_tokens"] = min(draft["num_speculative_tokens"], MAX_NODES)
        draft["num_steps"] = min(draft["num_steps"], MAX_STEPS)
        if draft["tree"] == "chain":
            draft["num_speculative_tokens"] = draft["num_steps"]


@dataclass
class Exported(Subject):
    """A subject (target "onnx" or "mlir") whose module runs an export of `batch` rows."""

    batch: int = 1

    @cached_property
    def export(self) -> Export:
        """The files."""
        info = module_info(self.compiled, self.target)
        return export_program(self.target, self.final, info, self.source, sizes_of(self.final, self.batch, CHUNK))

    @cached_property
    def module(self) -> Any:
        """The module over the files."""
        return open_export(self.export.files, self.export.manifest)

    @cached_property
    def generated(self) -> Generated:
        """The export behind the interface of the checks."""
        drawn = program_weights(self.final.weights, self.naive, self.weights)
        weights = self.module.Weights(**{name: narrowed(value, "cpu") for name, value in drawn.items()})
        slots = {name: slot for name, slot in self.final.slots.items() if slot.alias is None}
        return Single(f"{self.target} export", self.module, slots, weights)

    def with_seed(self, seed: int) -> Exported:
        """The same files with other weights."""
        made = super().with_seed(seed)
        assert isinstance(made, Exported)
        made.__dict__.update({name: self.__dict__[name] for name in ("export", "module") if name in self.__dict__})
        return made
