"""What a verify schedule costs on one layer: an analytic model, corrected by the measured points nearest to the case.

time = launches + max(steps one after the other, their arithmetic) + state bytes / bandwidth + matrix products

where steps and tiles come from the tree (`tiles`), and the products of the UT form (design 04) are S against 2 N rows
and four N x N parts per value head. The tile stays in registers over a chain, so that a step costs no memory traffic
but where the schedule stores and fetches tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2

from specc.passes.select_schedule.measured import DEVICES, H200, Device, DeviceName, Point, Sizes
from specc.passes.select_schedule.tiles import Schedule, Tiles, verify_tiles

STEP_OPERATIONS = 7  # per element of the state: decay, S k (2), + u k^T (2), S q (2)
PIECES = 3  # bfloat16 pieces of an operand that keep float32 accuracy


@dataclass(frozen=True, slots=True)
class Case:
    """One verify op: sizes of its layer, `batch` sequences, the tree, `keep` the nodes' states, `folds` tile writes.

    `folds`: how many tiles per sequence and step the pending factors cost (0: nothing is pending).
    """

    sizes: Sizes
    batch: int
    parent_row: tuple[int, ...]
    keep: bool
    folds: float = 0.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """Microseconds of one layer call with what they are made of: tiles per sequence, launches, products (flops)."""

    schedule: Schedule
    microseconds: float
    tiles: Tiles
    launches: int
    matrix_flops: float
    measured: bool


def matrix_flops(sizes: Sizes, nodes: int, keep: bool) -> float:
    """Operations of the UT form for one sequence (a multiply and an add count as two)."""
    with_state = 2 * nodes * 2 * sizes.elements
    square = nodes * nodes * (2 * 2 * sizes.key_dim + 2 * 2 * sizes.value_dim) * sizes.value_heads
    inverse = 2 * nodes**3 * sizes.value_heads
    states = 2 * nodes * nodes * sizes.elements if keep else 0
    return float(with_state + square + inverse + states)


def _launches(schedule: Schedule, case: Case, device: Device) -> int:
    """One kernel per layer, two for the tree's phases; torch ops count on a CPU."""
    if not device.launches_per_step:
        return 2 if schedule == "tree" else 1
    nodes, levels = len(case.parent_row), _levels(case.parent_row)
    steps = {"replay": levels, "serial": nodes, "hybrid": case.batch * nodes, "tree": 3}[schedule]
    return steps * device.launches_per_step


def _levels(parent_row: Sequence[int]) -> int:
    depths: list[int] = []
    for above in parent_row:
        depths.append(depths[above - 1] + 1 if above else 1)
    return max(depths)


def _tiles(schedule: Schedule, rows: Sequence[int], keep: bool, device: Device) -> Tiles:
    """What a verify moves; a kernel that replays keeps the tile of each leaf's path in registers."""
    tiles = verify_tiles(schedule, rows, keep)
    if schedule != "replay" or device.launches_per_step:
        return tiles
    leaves = len(rows) - len(set(rows) - {0})
    return Tiles(leaves, tiles.written if keep else 0, tiles.steps)


def _analytic(schedule: Schedule, case: Case, device: Device) -> tuple[float, Tiles, int, float]:
    """Seconds, and what they are made of."""
    tiles = _tiles(schedule, case.parent_row, case.keep, device)
    launches = _launches(schedule, case, device)
    passes = device.passes * (tiles.steps + (tiles.written if case.keep else 0))
    moved = (tiles.read + tiles.written + case.folds + passes) * case.batch * case.sizes.tile
    flops = matrix_flops(case.sizes, len(case.parent_row), case.keep) if schedule == "tree" else 0.0
    arithmetic = tiles.steps * case.batch * case.sizes.elements * STEP_OPERATIONS / device.vector_rate
    serial = 0.0 if schedule == "replay" else tiles.steps * device.step
    products = flops * case.batch * (PIECES if not device.launches_per_step else 1) / device.matrix_rate
    seconds = launches * device.launch + max(serial, arithmetic) + moved / device.bandwidth + products
    return seconds, tiles, launches, flops


def _distance(case: Case, point: Point) -> float:
    """How far a measured point is: in doublings of the state's bytes over the batch, of the nodes and levels, and of
    the tiles that the schedule reads and writes; 0 is the point.

    A point with states kept stands in for one without (and the reverse) at four doublings.
    """
    here, there = (_traits(point.schedule, one) for one in (case, point))
    doublings = sum(abs(log2(a / b)) for a, b in zip(here, there, strict=True))
    return doublings + 0.25 * (point.sizes != case.sizes) + 4.0 * (point.keep != case.keep)


def _traits(schedule: Schedule, one: Case | Point) -> tuple[int, ...]:
    rows, tiles = one.parent_row, _tiles(schedule, one.parent_row, one.keep, DEVICES["h200"])
    return one.batch * one.sizes.tile, len(rows), _levels(rows), tiles.read, 1 + tiles.written


def correction(schedule: Schedule, case: Case, points: Sequence[Point] = H200) -> float | None:
    """Measured over modelled time, averaged over the schedule's measured points by closeness; None without any."""
    total = weights = 0.0
    for point in points:
        if point.schedule != schedule:
            continue
        there = Case(point.sizes, point.batch, point.parent_row, point.keep)
        modelled = _analytic(point.schedule, there, DEVICES["h200"])[0] * 1e6
        weight = 1 / (_distance(case, point) + 1e-6) ** 2
        total += weight * log2(point.microseconds / modelled)
        weights += weight
    return float(2 ** (total / weights)) if weights else None


def estimate(schedule: Schedule, case: Case, device: DeviceName, points: Sequence[Point] = H200) -> Estimate:
    """The time of one layer call; on the H200 corrected by what was measured there (`points`)."""
    seconds, tiles, launches, flops = _analytic(schedule, case, DEVICES[device])
    factor = correction(schedule, case, points) if device == "h200" else None
    return Estimate(
        schedule=schedule,
        microseconds=seconds * 1e6 * (1.0 if factor is None else factor),
        tiles=tiles,
        launches=launches,
        matrix_flops=flops * case.batch,
        measured=factor is not None,
    )
