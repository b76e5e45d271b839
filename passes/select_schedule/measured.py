"""Times of verify kernels measured on one H200, and the devices that the cost model knows.

Source: the project's kernel study (design 04, "Measured on one H200"): CUDA-graph replay, inputs rotated over more than
160 MB, float32 state, bfloat16 rows, microseconds per layer call. UT form: the better of the one-kernel prototype with
three bfloat16 pieces and the two-phase one. Serial chain: the prototype's own. Serial with states kept: the peer's tree
kernel at its best launch parameters. Replay: one kernel call per token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
    calls per step where steps are calls (0: a schedule is one kernel, or one per level).
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
    nodes: int
    keep: bool
    microseconds: float


GDN = Sizes(8, 8, 256, 256)
QWEN3_NEXT = Sizes(16, 32, 128, 128)


def _points(schedule: Schedule, sizes: Sizes, keep: bool, times: Mapping[tuple[int, int], float]) -> tuple[Point, ...]:
    return tuple(Point(schedule, sizes, batch, nodes, keep, time) for (batch, nodes), time in times.items())


H200: tuple[Point, ...] = (
    *_points(
        "tree",
        GDN,
        False,
        {
            (1, 8): 7.5,
            (1, 16): 8.7,
            (1, 32): 24.3,
            (8, 16): 19.5,
            (32, 8): 58.6,
            (32, 16): 41.3,
            (32, 32): 64.5,
        },
    ),
    *_points("tree", QWEN3_NEXT, False, {(1, 16): 8.7, (8, 16): 24.9, (32, 16): 93.0}),
    *_points("serial", QWEN3_NEXT, False, {(1, 16): 24.1, (8, 16): 33.6, (32, 16): 114.0}),
    *_points(
        "serial",
        GDN,
        True,
        {
            (1, 8): 15.1,
            (1, 16): 29.2,
            (1, 32): 60.4,
            (8, 16): 88.4,
            (32, 8): 186.0,
            (32, 16): 363.0,
            (32, 32): 777.0,
        },
    ),
    *_points("serial", QWEN3_NEXT, True, {(1, 16): 22.4, (8, 16): 89.5, (32, 16): 478.0}),
    *_points("replay", QWEN3_NEXT, False, {(1, 16): 51.6, (8, 16): 203.0, (32, 16): 781.0}),
)
