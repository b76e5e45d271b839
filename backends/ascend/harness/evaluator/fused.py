"""Fused parts of a layer: RmsNorm, AddRmsNorm, LayerNormV4, RotaryMul, SwiGlu, GLU."""

from __future__ import annotations

import torch
from torch.nn import functional

from specc.backends.ascend.harness.evaluator.node import Node, documented, operator, wide
from specc.backends.ascend.semantics import fused


@operator("RmsNorm", inputs=("x", "gamma"), attributes={"epsilon": None})
def rms_norm(node: Node) -> tuple[torch.Tensor, torch.Tensor]:
    """(norm, 1 / rms)."""
    return documented(node, fused.rms_norm, node.tensor("x"), node.tensor("gamma"), node.attribute("epsilon", 1e-6))


@operator("AddRmsNorm", inputs=("x1", "x2", "gamma"), attributes={"epsilon": None})
def add_rms_norm(node: Node) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(norm of the sum, 1 / rms, the sum)."""
    parts = (node.tensor("x1"), node.tensor("x2"), node.tensor("gamma"))
    return documented(node, fused.add_rms_norm, *parts, node.attribute("epsilon", 1e-6))


@operator("LayerNormV4", inputs=("x", "normalized_shape", "gamma", "beta"), attributes={"epsilon": None})
def layer_norm(node: Node) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(norm, mean, 1 / standard deviation), in float32."""
    value, shape = wide(node.tensor("x")), node.integers("normalized_shape")
    axes = list(range(value.dim() - len(shape), value.dim()))
    mean = value.mean(axes, keepdim=True)
    rstd = torch.rsqrt((value - mean).square().mean(axes, keepdim=True) + node.attribute("epsilon", 1e-5))
    normed = (value - mean) * rstd
    gamma, beta = node.optional("gamma"), node.optional("beta")
    normed = normed if gamma is None else normed * wide(gamma)
    normed = normed if beta is None else normed + wide(beta)
    return normed.to(node.tensor("x").dtype), mean, rstd


@operator("RotaryMul", inputs=("x", "r1", "r2"))
def rotary_mul(node: Node) -> torch.Tensor:
    """Rotary embedding by halves."""
    return documented(node, fused.rotary_mul, node.tensor("x"), node.tensor("r1"), node.tensor("r2"))


@operator("SwiGlu", inputs=("x",), attributes={"dim": None})
def swiglu(node: Node) -> torch.Tensor:
    """silu(first half) times second half."""
    return documented(node, fused.swiglu, node.tensor("x"), node.attribute("dim", -1))


@operator("GLU", inputs=("x",), attributes={"dim": None})
def glu(node: Node) -> torch.Tensor:
    """first half times sigmoid(second half)."""
    value = node.tensor("x")
    return functional.glu(wide(value), node.attribute("dim", -1)).to(value.dtype)
