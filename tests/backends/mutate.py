"""Random changes of an FX program that keep it well-typed: what the generated code must follow (I20)."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch.fx import GraphModule, Node

from specc.ir.clone import clone
from specc.ir.edit import finish, modules
from specc.program import DecodeProgram

aten = torch.ops.aten
SWAPS: dict[object, object] = {
    aten.add.Tensor: aten.sub.Tensor,
    aten.sub.Tensor: aten.add.Tensor,
    aten.mul.Tensor: aten.add.Tensor,
    aten.eq.Tensor: aten.ne.Tensor,
    aten.eq.Scalar: aten.ne.Scalar,
    aten.gt.Scalar: aten.le.Scalar,
    aten.ge.Scalar: aten.lt.Scalar,
    aten.lt.Scalar: aten.ge.Scalar,
    aten.le.Scalar: aten.gt.Scalar,
    aten.le.Tensor: aten.gt.Tensor,
    aten.logical_and.default: aten.logical_or.default,
    aten.logical_or.default: aten.logical_and.default,
    aten.minimum.default: aten.maximum.default,
    aten.argmax.default: aten.argmin.default,
    aten.silu.default: aten.sigmoid.default,
    operator.add: operator.sub,
}


def _same_type(a: Node, b: object) -> bool:
    if not isinstance(b, Node):
        return False
    x, y = a.meta.get("val"), b.meta.get("val")
    both = isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor)
    return both and x.shape == y.shape and x.dtype == y.dtype


def _changes(node: Node) -> Iterator[tuple[str, Callable[[], None]]]:
    """Everything that can be done to one node."""
    if node.target in SWAPS:
        yield f"{node.name}: other op", lambda: setattr(node, "target", SWAPS[node.target])
    if node.target is aten.where.self:
        condition, yes, no = node.args
        yield f"{node.name}: branches swapped", lambda: setattr(node, "args", (condition, no, yes))
    if node.target in (aten.sub.Tensor, aten.add.Scalar, aten.add.Tensor) and isinstance(node.args[1], int):
        first, second = node.args
        yield f"{node.name}: constant", lambda: setattr(node, "args", (first, second + 1))
    if node.op == "call_function" and node.users:
        for operand in node.all_input_nodes:
            if _same_type(node, operand):
                yield f"{node.name}: replaced by {operand.name}", lambda o=operand: _forward(node, o)


def _forward(node: Node, operand: Node) -> None:
    node.replace_all_uses_with(operand)
    node.graph.erase_node(node)


def mutate(program: DecodeProgram, seed: int) -> tuple[DecodeProgram, str]:
    """The program with one random change, and what it was."""
    generator = random.Random(seed)
    graphs: dict[str, GraphModule] = {name: clone(module) for name, module in program.graphs.items()}
    found = [
        (name, text, change)
        for name, module in graphs.items()
        for item in modules(module)
        for node in item.graph.nodes
        for text, change in _changes(node)
    ]
    name, text, change = generator.choice(found)
    change()
    finish(graphs[name])
    return replace(program, graphs=graphs), f"{name}: {text}"
