"""What host functions of all families need to know: where kernels run, sizes of blocks, pointers for bool tensors."""

from __future__ import annotations

import torch

from specc.backends.triton.kernels.dot import INTERPRETED


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter."""
    return bool(getattr(INTERPRETED, "value", INTERPRETED))


def beside() -> dict[str, bool]:
    """Options of a launch that may begin while the kernel in front of it ends (the kernel waits itself)."""
    return {} if interpreted() else {"launch_pdl": True}


def power_of_two(size: int, least: int = 1) -> int:
    """The smallest power of two that is not below `size` or `least`."""
    return max(least, 1 << (size - 1).bit_length() if size > 1 else 1)


def as_bytes(x: torch.Tensor | None, other: torch.Tensor) -> torch.Tensor:
    """A bool tensor as bytes; `other` where there is none (a pointer that is not used)."""
    if x is None:
        return other
    return x.contiguous().view(torch.uint8) if x.dtype == torch.bool else x.contiguous()
