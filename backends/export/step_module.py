"""A printed step function as an `nn.Module` with flat tensor operands: what the exporters of PyTorch take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from specc.backends.export.signature import StepSignature, flattened, grouped

RECORDS: Mapping[str, tuple[str, ...]] = {"accept": ("Verified", "Draft"), "commit": ("Verified", "Accepted")}
"""The records that a step function takes behind its state, in order."""
SINGLE: Mapping[str, tuple[str, ...]] = {"prefill": ("input_ids", "lengths"), "verify": ("tokens", "parent", "valid")}
"""The inputs that a step function takes one by one."""
NO_WEIGHTS = frozenset({"accept", "commit", "flush"})


class StepModule(nn.Module):
    """`run_<step>` of a generated module; `forward` takes and returns the tensors of the signature, in order."""

    def __init__(self, module: Any, signature: StepSignature) -> None:
        super().__init__()
        self.module = module
        self.signature = signature
        self.function = getattr(module, f"run_{signature.step}")

    def forward(self, *operands: Tensor) -> tuple[Tensor, ...]:
        """One step."""
        step, module = self.signature.step, self.module
        given = grouped(self.signature.inputs, operands)
        arguments: list[Any] = [] if step in NO_WEIGHTS else [record(module.Weights, given["weight"])]
        arguments.append(record(module.Views, given["slot"]))
        arguments += [record(getattr(module, name), given["input"]) for name in RECORDS.get(step, ())]
        arguments += [given["input"].get(name) for name in SINGLE.get(step, ())]
        slots, results = split(self.function(*arguments))
        names = [operand.port.name for operand in self.signature.outputs if operand.port.kind == "result"]
        groups = {"slot": slots._asdict(), "result": dict(zip(names, fields(results, names), strict=True))}
        return tuple(flattened(self.signature.outputs, groups))


def record(kind: Any, values: Mapping[str, Any]) -> Any:
    """A NamedTuple with these fields; a step does not read the others."""
    return kind(**{name: values.get(name) for name in kind._fields})


def split(result: Any) -> tuple[Any, tuple[Any, ...]]:
    """(slots, what stands behind them) of what a step function returns; the slots are a tuple too."""
    return (result, ()) if hasattr(result, "_asdict") else (result[0], tuple(result[1:]))


def fields(results: tuple[Any, ...], names: list[str]) -> list[Any]:
    """The results in the order of `names`: fields of one record, or the plain values of a prefill."""
    if len(results) == 1 and hasattr(results[0], "_asdict"):
        return [getattr(results[0], name) for name in names]
    return list(results)


def traced(module: Any, signature: StepSignature) -> torch.export.ExportedProgram:
    """The step as a graph of aten ops. Raises RuntimeError for what depends on the values of a tensor."""
    with torch.no_grad():
        examples = tuple(operand.example() for operand in signature.inputs)
        return torch.export.export(StepModule(module, signature).eval(), examples, strict=False)
