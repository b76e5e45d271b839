"""What the functions that launch generated kernels need on the host."""

from __future__ import annotations

from functools import cache

import torch

from specc.backends.triton.launch.core import beside
from specc.ir.ops.attention import rope_frequencies

__all__ = ["beside", "dense", "frequencies"]


def dense(x: torch.Tensor) -> torch.Tensor:
    """A tensor that a kernel writes in place. Raises ValueError where its elements do not lie in order."""
    if not x.is_contiguous():
        raise ValueError("a tensor that is updated in place has to be contiguous")
    return x


@cache
def frequencies(dim: int, theta: float, scaling: tuple[float, ...], device: torch.device) -> torch.Tensor:
    """Inverse rotary frequencies float32 [dim/2], made once per device (before a graph is captured)."""
    return rope_frequencies(dim, theta, list(scaling), torch.float32, device)
