"""The flat signature of an exported step: which tensors go in and come out, in order, with names, shapes and types.

Inputs are called `weights.<name>` and `state.<slot>`, with `.<layer>` behind it where there is one tensor per layer;
`uniforms`, the random numbers of a step that draws; and what other steps result in, by its own name. Outputs are
`new_state.<slot>` for the slots that the step changes, then its results by their names. The batch and the length of a
prompt's chunk are numbers here: exported graphs are static.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from specc.backends.export.draws import Draws, draws_of
from specc.backends.printing.by_layer import layered_slots
from specc.backends.printing.liveness import output_node
from specc.ir.dims import BATCH, CHUNK
from specc.ir.port import Port
from specc.program import DecodeProgram, input_ports, output_ports

RNG = "rng"
UNIFORMS = "uniforms"


@dataclass(frozen=True, slots=True)
class Operand:
    """One tensor of a step: its name in the exported file, what it is bound to, and its layer, if it has one."""

    name: str
    port: Port
    shape: tuple[int, ...]
    dtype: torch.dtype
    layer: int | None = None

    def example(self) -> torch.Tensor:
        """A tensor of this shape and type."""
        return torch.zeros(self.shape, dtype=self.dtype)


@dataclass(frozen=True, slots=True)
class Sizes:
    """What an export fixes: rows of a batch, and tokens of a prompt that one prefill takes."""

    batch: int
    chunk: int

    def shape(self, symbolic: Sequence[int]) -> tuple[int, ...]:
        """A shape with numbers in place of B and T."""
        return tuple(self._size(int(size)) for size in symbolic)

    def _size(self, size: int) -> int:
        for prime, number in ((BATCH, self.batch), (CHUNK, self.chunk)):
            while size and size % prime == 0:
                size = size // prime * number
        return size


@dataclass(frozen=True, slots=True)
class StepSignature:
    """Operands of one step, in the order of the exported function; `draws` says what stands in `uniforms`."""

    step: str
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    draws: Draws | None = None


def signature_of(program: DecodeProgram, step: str, sizes: Sizes) -> StepSignature:
    """The signature of a step: weights, then slots, then the step's own inputs, each in the order of the graph."""
    nodes = input_ports(program.graphs[step])
    draws = draws_of(program, step)
    layered = layered_slots(program)
    groups: dict[str, list[Operand]] = {"weight": [], "slot": [], "input": []}
    for node in nodes.values():
        port: Port = node.meta["port"]
        groups[port.kind] += _input(program, port, node.meta["val"], sizes, layered, draws)
    module = program.graphs[step]
    values: Any = output_node(module).args[0]
    outputs: dict[str, list[Operand]] = {"slot": [], "result": []}
    for port, value in zip(output_ports(module), values, strict=True):
        many = port.kind == "slot" and port.name in layered
        fake = value.meta["val"]
        outputs[port.kind] += _operands(port, sizes.shape(fake.shape), fake.dtype, many, "new_state.")
    return StepSignature(step, _flat(groups.values()), _flat(outputs.values()), draws)


def _flat(groups: Iterable[Sequence[Operand]]) -> tuple[Operand, ...]:
    return tuple(operand for group in groups for operand in group)


def _input(
    program: DecodeProgram, port: Port, fake: Any, sizes: Sizes, layered: frozenset[str], draws: Draws | None
) -> Iterator[Operand]:
    if port.kind == "weight":
        weight = program.weights[port.name]
        layers = (weight.layers,) if weight.layers is not None else ()
        yield from _operands(port, (*layers, *weight.shape), weight.dtype, bool(layers))
        return
    if draws is not None and port == Port("slot", RNG):
        yield Operand(UNIFORMS, port, (sizes.batch, *draws.shape), torch.float64)
        return
    yield from _operands(port, sizes.shape(fake.shape), fake.dtype, port.kind == "slot" and port.name in layered)


def _operands(
    port: Port, shape: tuple[int, ...], dtype: torch.dtype, layered: bool, slots: str = "state."
) -> Iterator[Operand]:
    """The operands of a port; of a layered one, whose first dim is the layers, one per layer.

    `slots` is what the names of slots start with: ONNX wants other names for outputs than for inputs.
    """
    start = {"weight": "weights.", "slot": slots}.get(port.kind, "")
    if not layered:
        yield Operand(f"{start}{port.name}", port, shape, dtype)
        return
    for layer in range(shape[0]):
        yield Operand(f"{start}{port.name}.{layer}", port, shape[1:], dtype, layer)


def grouped(operands: Sequence[Operand], values: Sequence[Any]) -> Mapping[str, dict[str, Any]]:
    """Port kind -> name -> tensor, or tensors per layer, of the values of these operands."""
    found: dict[str, dict[str, Any]] = {"weight": {}, "slot": {}, "input": {}, "result": {}}
    for operand, value in zip(operands, values, strict=True):
        group, name = found[operand.port.kind], operand.port.name
        group[name] = value if operand.layer is None else (*group.get(name, ()), value)
    return found


def flattened(operands: Sequence[Operand], groups: Mapping[str, Mapping[str, Any]]) -> list[torch.Tensor]:
    """The inverse of `grouped`. Raises KeyError for a tensor that is missing."""
    found = []
    for operand in operands:
        value = groups[operand.port.kind][operand.port.name]
        found.append(value if operand.layer is None else value[operand.layer])
    return found
