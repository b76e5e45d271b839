"""Processes, one per device, as torchrun starts them (be it one); or a process by itself, where all of this does
nothing."""

from __future__ import annotations

import gc
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
        """The model with gradients that are averaged over all processes; itself in a process by itself."""
        if not dist.is_initialized():
            return model
        ids = [self.device.index] if self.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=ids)

    def total(self, value: Tensor) -> Tensor:
        """The sum over all processes, in a new tensor."""
        if not dist.is_initialized():
            return value
        value = value.clone()
        dist.all_reduce(value)
        return value

    def agreed(self, value: float) -> float:
        """The first process's value: clocks differ, and everyone must end at the same step."""
        if not dist.is_initialized():
            return value
        shared = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.broadcast(shared, 0)
        return float(shared)

    def wait(self) -> None:
        """Until every process is here."""
        float(self.total(torch.zeros(1, device=self.device)))


@contextmanager
def opened(device: str) -> Iterator[World]:
    """The processes that torchrun started (RANK, LOCAL_RANK, WORLD_SIZE), or this one alone."""
    if "RANK" not in os.environ:
        yield World(0, 1, torch.device(device))
        return
    size = int(os.environ["WORLD_SIZE"])
    rank, local = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", "0"))
    here = torch.device("cuda", local) if device == "cuda" else torch.device(device)
    if here.type == "cuda":
        torch.cuda.set_device(here)
    dist.init_process_group("nccl" if here.type == "cuda" else "gloo")
    world = World(rank, size, here)
    try:
        yield world
        world.wait()
    finally:
        # What still refers to the group would end it later, holding Python's lock, which a thread of gloo waits for.
        gc.collect()
        dist.destroy_process_group()
