"""Constants and tensors made from nothing: Const, Fill, Range, ZerosLike, OnesLike, Shape."""

from __future__ import annotations

import math

import torch

from specc.backends.ascend.harness.evaluator.node import GE_TYPES, PROTO_TYPES, Node, operator


@operator("Const", attributes={"value": None})
def const(node: Node) -> torch.Tensor:
    """The bytes of a TensorDef."""
    stored = node.attribute("value")
    dtype = PROTO_TYPES.get(stored.desc.dtype)
    if dtype is None:
        raise node.unmodelled(f"a constant of proto type {stored.desc.dtype}")
    shape = list(stored.desc.shape.dim)
    if math.prod(shape) == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(stored.data), dtype=dtype).clone().reshape(shape)


@operator("Fill", inputs=("dims", "value"))
def fill(node: Node) -> torch.Tensor:
    """A tensor of shape `dims`, every element `value`."""
    value = node.tensor("value").reshape(())
    return value.expand(node.integers("dims")).clone()


@operator("Range", inputs=("start", "limit", "delta"))
def steps(node: Node) -> torch.Tensor:
    """start, start + delta, ... below limit."""
    start, limit, delta = (node.tensor(name).reshape(()) for name in ("start", "limit", "delta"))
    if delta.item() == 0:
        raise node.undefined("a step of 0")
    return torch.arange(start.item(), limit.item(), delta.item(), dtype=start.dtype)


@operator("ZerosLike", inputs=("x",))
def zeros_like(node: Node) -> torch.Tensor:
    """Zeros in the shape and type of x."""
    return torch.zeros_like(node.tensor("x"))


@operator("OnesLike", inputs=("x",))
def ones_like(node: Node) -> torch.Tensor:
    """Ones in the shape and type of x."""
    return torch.ones_like(node.tensor("x"))


@operator("Shape", inputs=("x",), attributes={"dtype": None})
def shape_of(node: Node) -> torch.Tensor:
    """The sizes of x."""
    return torch.tensor(list(node.tensor("x").shape), dtype=GE_TYPES[node.attribute("dtype", 3)])
