"""Fused parts of a layer: RMS norm, rotary embedding, SwiGLU."""

from __future__ import annotations

import torch
from torch.nn import functional

FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32})


def rms_norm(x: torch.Tensor, gamma: torch.Tensor, epsilon: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(x / rms(x) * gamma, 1 / rms(x) in float32), over gamma's axes, which are the last of x."""
    if x.dtype not in FLOATS or gamma.dtype != x.dtype:
        raise ValueError(f"npu_rms_norm of {x.dtype} with gamma of {gamma.dtype}")
    if list(gamma.shape) != list(x.shape[x.dim() - gamma.dim() :]):
        raise ValueError(f"npu_rms_norm of {list(x.shape)} with gamma of {list(gamma.shape)}")
    axes = list(range(x.dim() - gamma.dim(), x.dim()))
    wide = x.float()
    rstd = torch.rsqrt(wide.square().mean(axes, keepdim=True) + epsilon)
    return (wide * rstd * gamma.float()).to(x.dtype), rstd


def add_rms_norm(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(norm of x1 + x2, 1 / rms, x1 + x2): the sum is rounded to the inputs' type, then normed."""
    if x1.dtype != x2.dtype or x1.shape != x2.shape:
        raise ValueError(f"npu_add_rms_norm of {x1.dtype} {list(x1.shape)} and {x2.dtype} {list(x2.shape)}")
    total = (x1.float() + x2.float()).to(x1.dtype)
    return (*rms_norm(total, gamma, epsilon), total)


def rotary_mul(x: torch.Tensor, r1: torch.Tensor, r2: torch.Tensor) -> torch.Tensor:
    """r1 x + r2 (-x2, x1) with x1, x2 the halves of the last axis; r1, r2 broadcast over heads (and batch)."""
    if x.dim() != 4 or r1.dim() != 4 or r1.shape != r2.shape:
        raise ValueError(f"npu_rotary_mul of {list(x.shape)}, {list(r1.shape)}, {list(r2.shape)}: four axes needed")
    if not x.dtype == r1.dtype == r2.dtype or x.dtype not in FLOATS:
        raise ValueError(f"npu_rotary_mul of {x.dtype}, {r1.dtype}, {r2.dtype}")
    size = x.shape[-1]
    if size % 2 or size >= 896 or r1.shape[-1] != size:
        raise ValueError(f"npu_rotary_mul over {size} values with tables of {r1.shape[-1]}")
    if any(table not in (1, full) for table, full in zip(r1.shape, x.shape, strict=True)):
        raise ValueError(f"npu_rotary_mul tables {list(r1.shape)} for {list(x.shape)}")
    first, second = x.float().chunk(2, -1)
    turned = torch.cat([-second, first], -1)
    return (r1.float() * x.float() + r2.float() * turned).to(x.dtype)


def swiglu(x: torch.Tensor, axis: int) -> torch.Tensor:
    """silu(a) b with a, b the halves of an axis."""
    if x.dtype not in FLOATS:
        raise ValueError(f"npu_swiglu of {x.dtype}")
    if x.shape[axis] % 2:
        raise ValueError(f"npu_swiglu over an odd axis of {x.shape[axis]}")
    gate, up = x.float().chunk(2, axis)
    return (functional.silu(gate) * up).to(x.dtype)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x W^T (+ bias) of x [M,K] and weight [F,K]: matrices of one dtype. Raises ValueError for anything else."""
    if x.dim() != 2 or weight.dim() != 2 or x.shape[1] != weight.shape[1] or x.dtype != weight.dtype:
        raise ValueError(f"npu_linear of {x.dtype}{tuple(x.shape)} and {weight.dtype}{tuple(weight.shape)}")
    return torch.nn.functional.linear(x, weight, bias)
