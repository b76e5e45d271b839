"""One launch of a kernel: what it is called with, apart from calling it, so that it can be compiled without a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from specc.backends.triton.kernels.dot import INTERPRETED


@dataclass(frozen=True, slots=True)
class Launch:
    """`arguments` by name, constants too. `dependent`: may start beside the kernel in front of it (it waits itself)."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: Mapping[str, Any]
    warps: int = 4
    stages: int = 2
    dependent: bool = False

    def run(self) -> None:
        """Start it on the current stream."""
        options: dict[str, Any] = {"num_warps": self.warps, "num_stages": self.stages}
        if self.dependent and not interpreted():
            options["launch_pdl"] = True
        self.kernel[self.grid](**self.arguments, **options)


def run_all(launches: Sequence[Launch]) -> None:
    """Start them one after the other."""
    for launch in launches:
        launch.run()


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter."""
    return bool(getattr(INTERPRETED, "value", INTERPRETED))


def power_of_two(size: int, least: int = 1) -> int:
    """The smallest power of two that is not below `size` or `least`."""
    return max(least, 1 << (size - 1).bit_length() if size > 1 else 1)


def as_bytes(x: torch.Tensor | None, other: torch.Tensor) -> torch.Tensor:
    """A bool tensor as bytes; `other` where there is none (a pointer that is not used)."""
    if x is None:
        return other
    return x.contiguous().view(torch.uint8) if x.dtype == torch.bool else x.contiguous()
