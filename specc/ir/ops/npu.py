"""Ops that an NPU computes as they are: norm, rotation and gated activation. `legalize-ascend` introduces them.

Each reference is the documented semantics of the device's operator, and raises where the device leaves the result
undefined.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from specc.ir.op import op

VALUE = ("value",)


def _like(x: torch.Tensor, *_: object) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@op(
    "npu_rms_norm(Tensor x, Tensor gamma, float epsilon) -> Tensor",
    fake=_like,
    rows=("x",),
    levels=VALUE,
)
def npu_rms_norm(x: torch.Tensor, gamma: torch.Tensor, epsilon: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + epsilon) * gamma over the last dim of x [...,H]; gamma [H] of x's dtype.

    The first result of `npu_rms_norm` (the second, the reciprocal of the root, is not used). Raises ValueError where
    gamma does not fit the last dim.
    """
    if gamma.dim() != 1 or gamma.shape[0] != x.shape[-1]:
        raise ValueError(f"gamma {tuple(gamma.shape)} does not fit the last dim of {tuple(x.shape)}")
    return torch.rms_norm(x, gamma.shape, gamma, epsilon)


@op(
    "npu_rotary_mul(Tensor x, Tensor cos, Tensor sin) -> Tensor",
    fake=_like,
    rows=("x", "cos", "sin"),
    levels=VALUE,
)
def npu_rotary_mul(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x * cos + rotate_half(x) * sin for x [B,T,H,D] and cos, sin [B,T,1,D], both halves of which are the same.

    rotate_half([a, b]) = [-b, a] for the halves a, b of the last dim. Raises ValueError where D is odd or the tables
    do not fit: the operator broadcasts over heads only.
    """
    batch, rows, _, dim = x.shape
    for name, table in (("cos", cos), ("sin", sin)):
        if tuple(table.shape) != (batch, rows, 1, dim):
            raise ValueError(f"{name} {tuple(table.shape)} is not [{batch}, {rows}, 1, {dim}]")
    if dim % 2:
        raise ValueError(f"the last dim {dim} has no halves")
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def _half(gate_up: torch.Tensor) -> torch.Tensor:
    return gate_up.new_empty((*gate_up.shape[:-1], gate_up.shape[-1] // 2))


@op("npu_swiglu(Tensor gate_up) -> Tensor", fake=_half, rows=("gate_up",), levels=VALUE)
def npu_swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up of the halves of the last dim of gate_up [...,2F] -> [...,F]; ValueError for an odd dim."""
    if gate_up.shape[-1] % 2:
        raise ValueError(f"the last dim {gate_up.shape[-1]} has no halves")
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up
