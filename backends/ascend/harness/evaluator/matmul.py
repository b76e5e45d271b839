"""Matrix products, accumulated in float32 and rounded once."""

from __future__ import annotations

import torch

from specc.backends.ascend.harness.evaluator.node import Node, operator, wide
from specc.backends.ascend.harness.evaluator.pointwise import same_type


def product(node: Node, transpose1: bool, transpose2: bool) -> torch.Tensor:
    """x1 x2 (+ bias), each optionally transposed in its last two axes, for equal types."""
    x1, x2 = same_type(node, "x1", "x2")
    if not x1.is_floating_point():
        raise node.unmodelled(f"a matrix product of {x1.dtype}")
    left = wide(x1).mT if transpose1 else wide(x1)
    right = wide(x2).mT if transpose2 else wide(x2)
    if left.shape[-1] != right.shape[-2]:
        raise node.undefined(f"a product of {list(left.shape)} and {list(right.shape)}")
    result = left @ right
    bias = node.optional("bias")
    if bias is not None:
        result = result + wide(bias)
    return result.to(x1.dtype)


@operator(
    "MatMul",
    "MatMulV2",
    inputs=("x1", "x2", "bias"),
    attributes={"transpose_x1": None, "transpose_x2": None, "offset_x": (0,), "opImplMode": None},
)
def matmul(node: Node) -> torch.Tensor:
    """A product of two matrices, with a bias of the result's columns."""
    if node.tensor("x1").dim() != 2 or node.tensor("x2").dim() != 2:
        raise node.undefined("MatMul of tensors that are not matrices")
    return product(node, node.attribute("transpose_x1", False), node.attribute("transpose_x2", False))


@operator("BatchMatMul", inputs=("x1", "x2"), attributes={"adj_x1": None, "adj_x2": None})
def batch_matmul(node: Node) -> torch.Tensor:
    """Products of the matrices in the last two axes; the other axes broadcast."""
    return product(node, node.attribute("adj_x1", False), node.attribute("adj_x2", False))


@operator("BatchMatMulV2", inputs=("x1", "x2", "bias"), attributes={"adj_x1": None, "adj_x2": None, "offset_x": (0,)})
def batch_matmul_v2(node: Node) -> torch.Tensor:
    """As BatchMatMul, with a bias."""
    return product(node, node.attribute("adj_x1", False), node.attribute("adj_x2", False))
