"""Sigmoid, SiLU and softplus that give an element the same bits wherever it stands.

torch's own round an element differently in the vectorised part of a tensor and in its tail,
so that a token's result would depend on its row number; exp and log1p do not.
"""

from __future__ import annotations

import torch


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """1 / (1 + e^-x), rounded once to x's dtype."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return wide.neg().exp_().add_(1).reciprocal_().to(x.dtype)


def silu(x: torch.Tensor) -> torch.Tensor:
    """x / (1 + e^-x), rounded once to x's dtype."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide / wide.neg().exp_().add_(1)).to(x.dtype)


def softplus(x: torch.Tensor) -> torch.Tensor:
    """log(1 + e^x), x itself above 20; rounded once to x's dtype."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return torch.where(wide > 20, wide, wide.clamp(max=20).exp_().log1p_()).to(x.dtype)
