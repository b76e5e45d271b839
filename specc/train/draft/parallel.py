"""Several processes, one per device, as torchrun starts them; or one process, where all of this does nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True, slots=True)
class World:
    """This process's number, how many there are, and its device."""

    rank: int
    size: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this process writes files and talks."""
        return self.rank == 0

    def wrapped(self, model: nn.Module) -> nn.Module:
        """The model with gradients that are averaged over all processes; itself if there is one process."""
        if self.size == 1:
            return model
        ids = [self.device.index] if self.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=ids)

    def total(self, value: Tensor) -> Tensor:
        """The sum over all processes, in a new tensor."""
        if self.size == 1:
            return value
        value = value.clone()
        dist.all_reduce(value)
        return value

    def agreed(self, value: float) -> float:
        """The first process's value: clocks differ, and everyone must end at the same step."""
        if self.size == 1:
            return value
        shared = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.broadcast(shared, 0)
        return float(shared)

    def wait(self) -> None:
        """Until every process is here."""
        if self.size > 1:
            self.agreed(0.0)


@contextmanager
def opened(device: str) -> Iterator[World]:
    """The processes that torchrun started (RANK, LOCAL_RANK, WORLD_SIZE), or this one alone."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World(0, 1, torch.device(device))
        return
    rank, local = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", "0"))
    here = torch.device("cuda", local) if device == "cuda" else torch.device(device)
    if here.type == "cuda":
        torch.cuda.set_device(here)
    dist.init_process_group("nccl" if here.type == "cuda" else "gloo")
    try:
        yield World(rank, size, here)
    finally:
        dist.destroy_process_group()
