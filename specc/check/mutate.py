"""Small random changes of FX programs that keep every shape: a constant, an operand, an op.

The generated code must follow the program whatever it says (I20), so the mutants need not make sense.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import torch
from torch.fx import GraphModule, Node

from specc.ir.clone import clone
from specc.ir.edit import modules
from specc.program import DecodeProgram

aten = torch.ops.aten

SWAPS: dict[torch._ops.OpOverload, tuple[torch._ops.OpOverload, ...]] = {
    aten.add.Tensor: (aten.sub.Tensor, aten.mul.Tensor),
    aten.sub.Tensor: (aten.add.Tensor, aten.mul.Tensor),
    aten.mul.Tensor: (aten.add.Tensor, aten.sub.Tensor),
    aten.lt.Tensor: (aten.le.Tensor, aten.ge.Tensor),
    aten.le.Tensor: (aten.lt.Tensor, aten.gt.Tensor),
    aten.gt.Scalar: (aten.ge.Scalar, aten.ne.Scalar),
    aten.ge.Scalar: (aten.gt.Scalar, aten.ne.Scalar),
    aten.lt.Scalar: (aten.le.Scalar, aten.ge.Scalar),
    aten.le.Scalar: (aten.lt.Scalar, aten.ne.Scalar),
    aten.eq.Scalar: (aten.ne.Scalar, aten.le.Scalar),
    aten.eq.Tensor: (aten.ne.Tensor, aten.le.Tensor),
    aten.logical_and.default: (aten.logical_or.default, aten.logical_xor.default),
    aten.logical_or.default: (aten.logical_and.default, aten.logical_xor.default),
    aten.minimum.default: (aten.maximum.default,),
    aten.maximum.default: (aten.minimum.default,),
    aten.silu.default: (aten.sigmoid.default, aten.tanh.default),
    aten.argmax.default: (aten.argmin.default,),
}
"""Ops of the same signature and result type."""

CONSTANTS = frozenset(SWAPS) | {
    aten.clamp_min.default,
    aten.rsub.Scalar,
    aten.masked_fill.Scalar,
    aten.full_like.default,
}
"""Ops whose number operands may be any number (others hold dims and sizes)."""

OPERANDS = (aten.sub.Tensor, aten.lt.Tensor, aten.le.Tensor, aten.where.self)


def _same_type(one: object, other: object) -> bool:
    values = [item.meta.get("val") if isinstance(item, Node) else None for item in (one, other)]
    first, second = values
    if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor):
        return False
    return first.shape == second.shape and first.dtype == second.dtype


def _changes(node: Node) -> list[str]:
    found: list[str] = []
    if node.op != "call_function":
        return found
    if node.target in SWAPS and not node.kwargs:
        found.append("op")
    if node.target in CONSTANTS and any(type(argument) in (int, float) for argument in node.args[1:]):
        found.append("constant")
    if node.target in OPERANDS and _same_type(*node.args[-2:]):
        found.append("operand")
    return found


def _change(node: Node, kind: str, rng: Random) -> str:
    if kind == "op":
        assert isinstance(node.target, torch._ops.OpOverload)
        old, node.target = node.target, rng.choice(SWAPS[node.target])
        return f"`{node.name}`: {old} became {node.target}"
    arguments = list(node.args)
    if kind == "operand":
        arguments[-2], arguments[-1] = arguments[-1], arguments[-2]
        node.args = tuple(arguments)
        return f"`{node.name}`: operands swapped"
    place = rng.choice([i for i, argument in enumerate(arguments) if i and type(argument) in (int, float)])
    number = arguments[place]
    assert isinstance(number, int | float)
    arguments[place] = number + rng.choice((-1, 1))
    node.args = tuple(arguments)
    return f"`{node.name}`: constant {number} became {arguments[place]}"


def mutated(program: DecodeProgram, rng: Random) -> tuple[DecodeProgram, str, str] | None:
    """The program with one node changed, the step it is in, and what was changed; None if nothing can be."""
    steps = sorted(name for name in program.graphs if name not in ("flush", "decode"))
    step = rng.choice(steps)
    module: GraphModule = clone(program.graphs[step])
    places = [(item, node) for item in modules(module) for node in item.graph.nodes if _changes(node)]
    if not places:
        return None
    item, node = rng.choice(places)
    text = _change(node, rng.choice(_changes(node)), rng)
    item.recompile()
    return replace(program, graphs={**program.graphs, step: module}), step, text
