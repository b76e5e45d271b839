"""Times of the verify kernels measured on one H200, and the devices that the cost model knows.

Source: `specc bench kernels --family delta`, parts `hybrid` and `states`, put into h200.json by
`python -m specc.bench.schedule_points` (which says of what commit): the Triton backend's own kernels, CUDA-graph
replay, inputs rotated over more than 160 MB, float32 state, bfloat16 rows, microseconds per layer call. Orders of nodes
that hybrid and replay need are counted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from specc.passes.select_schedule.tiles import Schedule

DeviceName = Literal["h200", "cpu"]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of one recurrent layer; `state_bytes` per element of the state."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    state_bytes: int = 4

    @property
    def elements(self) -> int:
        """Elements of the state of one sequence."""
        return self.value_heads * self.value_dim * self.key_dim

    @property
    def tile(self) -> int:
        """Bytes of the state of one sequence."""
        return self.elements * self.state_bytes


@dataclass(frozen=True, slots=True)
class Device:
    """What the analytic part of the model needs; seconds, bytes, operations.

    `launch`: one kernel launch. `step`: the least time of one token's step inside a kernel. `passes`: how often a step,
    or the making of a kept state, goes over its tile where the tile does not stay in registers. `launches_per_step`:
    calls per step where steps are calls (0: a schedule is a kernel or two).
    """

    bandwidth: float
    launch: float
    step: float
    vector_rate: float
    matrix_rate: float
    passes: int
    launches_per_step: int


DEVICES: Mapping[DeviceName, Device] = {
    # 4.3 TB/s is what one read of the state reaches; the rates are those that the prototypes reach, not peaks.
    "h200": Device(4.3e12, 3.0e-6, 1.5e-6, 1.7e13, 6.0e13, 0, 0),
    # One core that runs torch ops one after the other: a dozen calls a step, several of them over the whole tile.
    # Nominal figures, of the order of what the reference kernels take; the ranking counts.
    "cpu": Device(6.0e9, 5.0e-6, 0.0, 2.0e10, 5.0e10, 8, 12),
}


@dataclass(frozen=True, slots=True)
class Point:
    """One measured time; `keep`: the states of all nodes were written."""

    schedule: Schedule
    sizes: Sizes
    batch: int
    parent_row: tuple[int, ...]
    keep: bool
    microseconds: float


TIMES = Path(__file__).parent / "h200.json"
"""[schedule, [H, HV, K, V], sequences, parent rows, states kept, microseconds] each."""


def measured(path: Path = TIMES) -> tuple[Point, ...]:
    """The points of a file."""
    rows = json.loads(path.read_text(encoding="utf-8"))["points"]
    return tuple(
        Point(schedule, Sizes(*sizes), batch, tuple(parents), keep, time)
        for schedule, sizes, batch, parents, keep, time in rows
    )


H200: tuple[Point, ...] = measured()
