"""Inputs, errors and times for the benchmarks of the gated delta rule's kernels."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from specc.ir import ops

ROTATED = 160e6
"""Bytes of state over which inputs rotate: more than twice the L2 cache of an H200."""
RATE = 4.3e12
"""Bytes per second that a plain sum reaches on an H200."""
BOUND = 2e-6
REPLAYS = 15


@dataclass(frozen=True, slots=True)
class Geometry:
    """H, HV, K, V of a model's recurrent layers, and how many there are."""

    name: str
    heads: int
    value_heads: int
    keys: int
    values: int
    layers: int

    def state_bytes(self, batch: int) -> int:
        """Of one layer's float32 states."""
        return 4 * batch * self.value_heads * self.keys * self.values


@dataclass(frozen=True, slots=True)
class Inputs:
    """Operands of one call on the device; see `specc.ir.ops.delta_rule_verify`."""

    state: torch.Tensor
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor

    @property
    def all(self) -> tuple[torch.Tensor, ...]:
        """state, q, k, v, g, beta."""
        return self.state, self.q, self.k, self.v, self.g, self.beta

    @property
    def wide(self) -> tuple[torch.Tensor, ...]:
        """In float64."""
        return tuple(x.double() for x in self.all)


def inputs(geometry: Geometry, batch: int, nodes: int, seed: int = 0) -> Inputs:
    """Random operands: gates as models have them (slow and fast heads), correlated keys."""
    made = torch.Generator("cuda").manual_seed(seed)

    def rand(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", generator=made)

    base = rand(batch, 1, geometry.heads, geometry.keys)
    shape = (batch, nodes, geometry.heads, geometry.keys)
    speed = torch.logspace(-3, 0.5, geometry.value_heads, device="cuda")
    return Inputs(
        rand(batch, geometry.value_heads, geometry.values, geometry.keys),
        (rand(*shape) + base).bfloat16(),
        (rand(*shape) + base).bfloat16(),
        rand(batch, nodes, geometry.value_heads, geometry.values).bfloat16(),
        -rand(batch, nodes, geometry.value_heads).abs() * speed,
        torch.sigmoid(rand(batch, nodes, geometry.value_heads)),
    )


def random_tree(batch: int, nodes: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """parent_row [B,N] and mask [B,N,N] of random trees that go deep more often than wide."""
    made = torch.Generator().manual_seed(seed)
    rows = [[max(0, i - int(3 * torch.rand(1, generator=made) ** 2 * 2)) for i in range(nodes)] for _ in range(batch)]
    return tree_of(rows)


def tree_of(rows: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """parent_row and mask on the device from lists."""
    parent_row = torch.tensor(rows)
    mask = ops.ancestor_mask(parent_row, torch.ones_like(parent_row, dtype=torch.bool))
    return parent_row.cuda(), mask.cuda()


def error(a: torch.Tensor, b: torch.Tensor, scale: torch.Tensor) -> float:
    """||a - b|| / ||scale||."""
    return float((a.double() - b).norm() / scale.double().norm())


def sets_for(bytes_of_one: int) -> int:
    """How many input sets exceed what the cache could keep."""
    return max(2, int(ROTATED / bytes_of_one) + 1)


def timed(calls: Sequence[Callable[[], Any]]) -> float:
    """Microseconds per call: one graph of all calls (each on its own inputs), median over replays."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in itertools.islice(calls, 2):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for _ in range(REPLAYS + 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / len(calls))
    return statistics.median(times[2:])
