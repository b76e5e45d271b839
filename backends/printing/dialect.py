"""What tells one backend's modules from another's: which functions stand for the ops, and the host code.

The printing itself follows the step graphs and is the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch.fx import GraphModule, Node

from specc.backends.printing.regions import Plan
from specc.program import DecodeProgram

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Variant:
    """A function for one use of an op, and the op's operands that it takes, in order.

    A function takes only the operands that its schedule needs, so that a module carries no code and no argument of
    another schedule.
    """

    function: Function
    operands: tuple[str, ...]


def no_variant(_op: str, _arguments: Mapping[str, Any]) -> Variant | None:
    """For a backend whose ops have one function each."""
    return None


def no_constants(_spec: Mapping[str, Any]) -> Mapping[tuple[str, str], str]:
    """For a backend whose functions have no constants that a spec sets."""
    return {}


def no_declarations(_program: DecodeProgram) -> str:
    """For a backend whose host code needs no declarations of its own."""
    return ""


Call = tuple[Function, tuple[Any, ...]]
"""A function and the operands that it is called with."""


def no_call(_node: Node) -> Call | None:
    """For a backend that writes aten nodes as PyTorch."""
    return None


@dataclass(frozen=True, slots=True)
class Dialect:
    """One backend's functions.

    `kernels`: op name -> function with the op's signature (an op that is not listed is printed with its reference
    implementation from `specc.ir.ops`). `pointwise`: aten overloads with one operand -> function. `variant`: the
    function for an op with these (raw) arguments, where it depends on them. `special`: the call that stands for an aten
    node, where the backend has a function of its own for it. `reserved`: names that no local variable
    may hide. `decoder`: the class that becomes the module's `Decoder`. `device`: the device that states live on unless
    the caller says otherwise. `whole_steps`: graphs of whole steps (WHOLE_STEPS in steps.py) made of the single
    ones; their slots change in place. `specialised`: bind constants in the copied functions (see specialise.py).
    `by_columns`: the loader stores matrices [out, in] with contiguous columns. `constants`: (file, name) of constants
    of copied files -> their value for a spec, as source. `by_layer`: step functions take and return a state whose
    layered slots are one tensor per layer (see by_layer.py), and the public functions write what has changed into the
    state's own memory. `listed`: what a loop over layers gives stays a list of tensors where only such loops read it.
    `abi`: files that declare what the printed part of a module provides. `declared`: source of
    further declarations. `host`: further host functions of modules that have all steps.
    """

    name: str
    kernels: Mapping[str, Function] = field(default_factory=dict)
    pointwise: Mapping[object, Function] = field(default_factory=dict)
    variant: Callable[[str, Mapping[str, Any]], Variant | None] = no_variant
    special: Callable[[Node], Call | None] = no_call
    reserved: frozenset[str] = frozenset()
    decoder: type | None = None
    device: str = "cpu"
    whole_steps: Callable[[Mapping[str, GraphModule]], Mapping[str, GraphModule]] | None = None
    regions: Callable[[GraphModule], Plan] | None = None
    specialised: bool = False
    by_columns: bool = True
    constants: Callable[[Mapping[str, Any]], Mapping[tuple[str, str], str]] = no_constants
    by_layer: bool = False
    listed: bool = False
    abi: frozenset[str] = frozenset({"specc.backends.printing.runtime.abi"})
    declared: Callable[[DecodeProgram], str] = no_declarations
    host: tuple[Function, ...] = ()
