"""What an op's model sees, how models are registered, and the two ways in which they refuse."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

PROTO_TYPES: Mapping[int, torch.dtype] = MappingProxyType(
    {
        1: torch.float32,
        2: torch.float16,
        3: torch.int8,
        4: torch.uint8,
        5: torch.int16,
        7: torch.int32,
        8: torch.int64,
        10: torch.uint64,
        11: torch.bool,
        12: torch.float64,
        27: torch.bfloat16,
    }
)
"""Element types as the proto numbers them (descriptors, constants)."""

GE_TYPES: Mapping[int, torch.dtype] = MappingProxyType(
    {
        0: torch.float32,
        1: torch.float16,
        2: torch.int8,
        3: torch.int32,
        4: torch.uint8,
        6: torch.int16,
        9: torch.int64,
        10: torch.uint64,
        11: torch.float64,
        12: torch.bool,
        27: torch.bfloat16,
    }
)
"""Element types as attributes number them (`dst_type`, `dtype`)."""

LOW_PRECISION = frozenset({torch.float16, torch.bfloat16})
HOUSEKEEPING = frozenset({"input_layout_info", "output_layout_info"})
"""Attributes without influence on values; so are all whose name starts with an underscore."""

Result = torch.Tensor | Sequence[torch.Tensor | None]
Model = Callable[["Node"], Result]
Allowed = Sequence[Any] | None


class Undefined(RuntimeError):
    """GE leaves the result undefined for these values: a device may return anything, or stop."""


class Unmodelled(NotImplementedError):
    """An op, an input or an attribute that the evaluator has no model for."""


@dataclass(frozen=True, slots=True)
class Node:
    """One op of the graph with the values of its inputs, by the input names of its GE definition."""

    op: Any
    inputs: Mapping[str, torch.Tensor | None]

    def tensor(self, name: str) -> torch.Tensor:
        """A required input. Raises Unmodelled if it is not fed."""
        value = self.inputs.get(name)
        if value is None:
            raise Unmodelled(f"{self}: input {name} is not fed")
        return value

    def optional(self, name: str) -> torch.Tensor | None:
        """An optional input, None if it is not fed."""
        return self.inputs.get(name)

    def tensors(self, prefix: str) -> list[torch.Tensor]:
        """A dynamic input: `prefix0`, `prefix1`, ..."""
        found = list[torch.Tensor]()
        while f"{prefix}{len(found)}" in self.inputs:
            found.append(self.tensor(f"{prefix}{len(found)}"))
        return found

    def integers(self, name: str) -> list[int]:
        """An input that holds whole numbers (a shape, axes), as a list."""
        return [int(value) for value in self.tensor(name).reshape(-1).tolist()]

    def integer(self, name: str) -> int:
        """An input that holds one whole number."""
        values = self.integers(name)
        if len(values) != 1:
            raise Undefined(f"{self}: {name} must be one number, not {values}")
        return values[0]

    def has(self, name: str) -> bool:
        """Whether an attribute is set."""
        return name in self.op.attr

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute's value as Python knows it; `default` if it is not set."""
        return attribute_value(self.op.attr[name]) if name in self.op.attr else default

    def undefined(self, why: str) -> Undefined:
        """The exception that says where and why."""
        return Undefined(f"{self}: {why}")

    def unmodelled(self, why: str) -> Unmodelled:
        """The exception that says where and what."""
        return Unmodelled(f"{self}: {why}")

    def __str__(self) -> str:
        return f"{self.op.type} {self.op.name}"


@dataclass(frozen=True, slots=True)
class Operator:
    """The model of an op: its input names, its attributes with the values that are modelled (None: all)."""

    model: Model
    inputs: frozenset[str]
    dynamic: tuple[str, ...]
    attributes: Mapping[str, Allowed]


_OPERATORS: dict[str, Operator] = {}


def operators() -> Mapping[str, Operator]:
    """Every op type that is modelled."""
    return MappingProxyType(_OPERATORS)


def operator(
    *types: str,
    inputs: Sequence[str] = (),
    dynamic: Sequence[str] = (),
    attributes: Mapping[str, Allowed] = MappingProxyType({}),
) -> Callable[[Model], Model]:
    """Register a model under GE op types. Raises ValueError for a type that has one."""

    def registered(model: Model) -> Model:
        for name in types:
            if name in _OPERATORS:
                raise ValueError(f"{name} has two models")
            _OPERATORS[name] = Operator(model, frozenset(inputs), tuple(dynamic), MappingProxyType(dict(attributes)))
        return model

    return registered


def attribute_value(attribute: Any) -> Any:
    """An AttrDef's value: int, float, bool, str, a list of these, or a TensorDef."""
    kind = attribute.WhichOneof("value")
    if kind is None:
        return None
    if kind == "s":
        return attribute.s.decode()
    if kind == "list":
        entries = attribute.list
        for field in ("i", "f", "b"):
            if len(getattr(entries, field)):
                return list(getattr(entries, field))
        return [text.decode() for text in entries.s]
    return getattr(attribute, kind)


def documented(node: Node, function: Callable[..., Any], *arguments: Any) -> Any:
    """A function of `semantics`, its refusals as those of this node."""
    try:
        return function(*arguments)
    except NotImplementedError as missing:
        raise node.unmodelled(str(missing)) from missing
    except (IndexError, ValueError) as refusal:
        raise node.undefined(str(refusal)) from refusal


def wide(value: torch.Tensor) -> torch.Tensor:
    """fp16 and bf16 as float32; everything else as it is."""
    return value.float() if value.dtype in LOW_PRECISION else value
