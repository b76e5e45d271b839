"""What Nsight Compute's `--csv --page raw` says, as numbers in fixed units, and what limits a kernel by them.

The page has a line of names, a line of units and a line per launch, among lines of its own that begin with `==`. Units
depend on the size of a number unless base units are asked for, so they are read from the page.

`verdict` is the rule of `limit`. Utilisations are shares of what the whole device can do during the whole kernel:
counters given per active cycle of a multiprocessor are multiplied by the share of cycles in which it was active.

1. The greatest of memory (DRAM), L2, L1, issue slots and the pipes is at least 60%: that one. L2 counts as memory where
   DRAM is at least 70% of it: data from memory passes the link between the halves of L2, its busiest part then.
2. Something is at least 60% in cycles in which multiprocessors are active, and they are in less than 75% of all:
   `grid`: too few programs, or a long last one. (What is shared, memory and L2, is divided by that share.)
3. The launch takes less than 4 us, of which an empty kernel takes about 2 under the profiler: `launch`.
4. Else `latency`: nothing is used well, warps wait. `why` names what they wait for, in warps per issued instruction.
"""

from __future__ import annotations

import csv
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from specc.bench.gpu_timing import Row

BUSY, ACTIVE, SHORT_US, STREAMED = 60.0, 0.75, 4.0, 0.7
STALLS = (
    "barrier", "branch_resolving", "dispatch_stall", "drain", "gmma", "imc_miss", "lg_throttle", "long_scoreboard",
    "math_pipe_throttle", "membar", "mio_throttle", "no_instruction", "not_selected", "selected", "short_scoreboard",
    "sleeping", "tex_throttle", "wait",
)  # fmt: skip
PIPES: Mapping[str, tuple[str, ...]] = {
    "tensor": ("sm__pipe_tensor_cycles_active", "sm__pipe_tensor_op_hmma_cycles_active",
               "sm__inst_executed_pipe_tensor", "sm__inst_executed_pipe_tensor_op_hmma",
               "sm__inst_executed_pipe_tensor_op_gmma"),
    "fma": ("sm__inst_executed_pipe_fma", "sm__pipe_fma_cycles_active", "sm__pipe_fmaheavy_cycles_active"),
    "alu": ("sm__inst_executed_pipe_alu", "sm__pipe_alu_cycles_active"),
    "xu": ("sm__inst_executed_pipe_xu", "sm__pipe_xu_cycles_active"),
    "lsu": ("sm__inst_executed_pipe_lsu",),
    "fp16": ("sm__inst_executed_pipe_fp16",),
    "uniform": ("sm__inst_executed_pipe_uniform",),
}  # fmt: skip
"""Pipe -> counters of it; the greatest counts (not all are there on every chip)."""
OF_ACTIVE = ".avg.pct_of_peak_sustained_active"
OF_ELAPSED = ".avg.pct_of_peak_sustained_elapsed"
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
THROUGHPUTS: Mapping[str, str] = {
    "memory": f"dram__throughput{OF_ELAPSED}",
    "L2": f"lts__throughput{OF_ELAPSED}",
    "L1": f"l1tex__throughput{OF_ELAPSED}",
}
ISSUE = f"smsp__issue_active{OF_ACTIVE}"
METRICS: tuple[str, ...] = (
    "gpu__time_duration.sum", *THROUGHPUTS.values(), "dram__bytes_read.sum", "dram__bytes_write.sum",
    "lts__t_sector_hit_rate.pct", f"sm__warps_active{OF_ACTIVE}", "sm__inst_executed.sum", ISSUE,
    "sm__cycles_active.avg", "sm__cycles_elapsed.avg", "smsp__warps_eligible.avg.per_cycle_active",
    *(f"{name}{OF_ACTIVE}" for names in PIPES.values() for name in names),
    *(STALL.format(reason) for reason in STALLS),
)  # fmt: skip
"""What is asked for beside the sections LaunchStats and Occupancy."""

PREFIXES = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
UNIT = re.compile(r"^(?P<prefix>[numKkMGT]?)(?P<base>second|s|byte|inst|cycle|hz|Hz|sector)(?:/.*)?$")


def scale_of(unit: str) -> float:
    """What a number in this unit is multiplied by: times become seconds, sizes bytes; percentages and counts stay."""
    found = UNIT.match(unit.strip())
    return PREFIXES[found["prefix"]] if found else 1.0


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel's counters in base units (seconds, bytes, percent, counts), and its texts (name, grid, block)."""

    kernel: str
    grid: str
    block: str
    values: Mapping[str, float]

    def get(self, name: str) -> float | None:
        """A counter, if it was read."""
        return self.values.get(name)


def launches_of(text: str) -> list[Launch]:
    """The launches of a raw page, in order. Raises ValueError where the page has no table."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    table = list(csv.reader(lines))
    if not table or "Kernel Name" not in table[0]:
        raise ValueError("no table of counters")
    if len(table) == 1:
        return []
    names, units = table[0], table[1]
    scales = [scale_of(unit) for unit in units]
    return [_launch(names, scales, cells) for cells in table[2:] if len(cells) == len(names)]


def _launch(names: Sequence[str], scales: Sequence[float], cells: Sequence[str]) -> Launch:
    texts = dict(zip(names, cells, strict=True))
    values = {}
    for name, scale, cell in zip(names, scales, cells, strict=True):
        try:
            value = float(cell.replace(",", "")) * scale
        except ValueError:
            continue
        if math.isfinite(value):
            values[name] = value
    return Launch(texts["Kernel Name"], texts.get("Grid Size", ""), texts.get("Block Size", ""), values)


def cases_of(launches: Iterable[Launch], mark: str) -> list[list[Launch]]:
    """The launches behind each launch of a kernel whose name has `mark` in it; torch's beside others are left out."""
    found: list[list[Launch]] = []
    for launch in launches:
        if mark in launch.kernel:
            found.append([])
        elif found:
            found[-1].append(launch)
    return [[launch for launch in part if "at::" not in launch.kernel] or part for part in found]


def medians(launches: Sequence[Launch]) -> list[tuple[Launch, int]]:
    """Launches of one kernel and grid as one, every counter their median; and how many there were."""
    groups: dict[tuple[str, str, str], list[Launch]] = {}
    for launch in launches:
        groups.setdefault((launch.kernel, launch.grid, launch.block), []).append(launch)
    return [
        (
            Launch(*key, {
                name: statistics.median(one.values[name] for one in group if name in one.values)
                for name in group[0].values
            }),
            len(group),
        )
        for key, group in groups.items()
    ]  # fmt: skip


def counters(launch: Launch) -> Row:
    """A kernel's row: us, sizes in bytes, percentages; None for what was not read."""
    get = launch.get
    active, elapsed = get("sm__cycles_active.avg"), get("sm__cycles_elapsed.avg")
    share = min(1.0, active / elapsed) if active is not None and elapsed else None
    threads, seconds = get("launch__block_size"), get("gpu__time_duration.sum")
    shared = sum(get(f"launch__shared_mem_per_block_{kind}") or 0.0 for kind in ("static", "dynamic", "driver"))
    stalls = {reason: get(STALL.format(reason)) for reason in STALLS if reason != "selected"}
    longest = sorted(((name, value) for name, value in stalls.items() if value), key=lambda pair: -pair[1])
    limits = {name: get(f"launch__occupancy_limit_{name}") for name in ("blocks", "registers", "shared_mem", "warps")}
    known = {name: value for name, value in limits.items() if value is not None}
    return {
        "kernel": re.split(r"[(<]", launch.kernel)[0],
        "us": rounded(seconds, 1e6, 2),
        "clock_mhz": rounded(elapsed / seconds, 1e-6, 0) if elapsed and seconds else None,
        "grid": launch.grid,
        "warps": None if threads is None else int(threads) // 32,
        "registers": rounded(get("launch__registers_per_thread"), 1, 0),
        "shared_bytes": rounded(shared, 1, 0),
        "waves": rounded(get("launch__waves_per_multiprocessor"), 1, 2),
        "occupancy_percent": rounded(get(f"sm__warps_active{OF_ACTIVE}"), 1, 1),
        "occupancy_limits": {name: int(value) for name, value in known.items()},
        "active_percent": rounded(share, 100, 1),
        "read_mb": rounded(get("dram__bytes_read.sum"), 1e-6, 3),
        "written_mb": rounded(get("dram__bytes_write.sum"), 1e-6, 3),
        "l2_hit_percent": rounded(get("lts__t_sector_hit_rate.pct"), 1, 1),
        "warp_instructions": rounded(get("sm__inst_executed.sum"), 1, 0),
        "eligible_warps": rounded(get("smsp__warps_eligible.avg.per_cycle_active"), 1, 2),
        "busy_when_active": {name: round(value, 1) for name, value in within(launch, share).items()},
        "busy": {name: round(value, 1) for name, value in overall(launch, share).items()},
        "stalls": {name: round(value, 2) for name, value in longest[:5]},
    }


def rounded(value: float | None, scale: float, digits: int) -> float | int | None:
    """In another unit; a whole number for 0 digits."""
    if value is None:
        return None
    return round(value * scale, digits) if digits else round(value * scale)


def throughputs(launch: Launch) -> dict[str, float]:
    """Per cent of the device's peak over the whole kernel: memory, L2, L1."""
    return {name: value for name, metric in THROUGHPUTS.items() if (value := launch.get(metric)) is not None}


def within(launch: Launch, share: float | None) -> dict[str, float]:
    """Per cent of the peak while multiprocessors are active: issue slots, pipes, and (of all) memory and caches."""
    return of_active(launch) | (
        {name: min(100.0, value / share) for name, value in throughputs(launch).items()} if share else {}
    )


def of_active(launch: Launch) -> dict[str, float]:
    """Per cent of the peak while a multiprocessor is active: issue slots and pipes."""
    found = {"issue": launch.get(ISSUE)}
    for pipe, names in PIPES.items():
        seen = [value for name in names if (value := launch.get(f"{name}{OF_ACTIVE}")) is not None]
        found[pipe] = max(seen, default=None)
    return {name: value for name, value in found.items() if value is not None}


def overall(launch: Launch, share: float | None) -> dict[str, float]:
    """Per cent of the device's peak over the whole kernel; `share`: of cycles in which multiprocessors were active."""
    return throughputs(launch) | ({} if share is None else {n: value * share for n, value in of_active(launch).items()})


def verdict(row: Row) -> Row:
    """`limit`, `limit_percent` and `why` of a row of `counters`, by the rule above."""
    busy, inside, stalls = row["busy"], row["busy_when_active"], row["stalls"]
    if not busy:
        return {"limit": "unknown", "limit_percent": None, "why": "no utilisation was read"}
    name = max(busy, key=busy.__getitem__)
    waits = ", ".join(f"{reason} {value:g}" for reason, value in list(stalls.items())[:2])
    found: Row = {"limit": name, "limit_percent": busy[name]}
    if busy[name] >= BUSY:
        if name == "L2" and busy.get("memory", 0.0) >= STREAMED * busy["L2"]:
            return found | {"limit": "memory", "why": f"L2 {busy['L2']:g}%, of DRAM {busy['memory']:g}%"}
        return found | {"why": f"{name} {busy[name]:g}%"}
    inner = max(inside, key=inside.__getitem__, default="")
    if inner and inside[inner] >= BUSY and (row["active_percent"] or 100.0) < 100 * ACTIVE:
        return found | {"limit": "grid", "why": f"{inner} {inside[inner]:g}% on {row['active_percent']:g}% of cycles"}
    if row["us"] is not None and row["us"] < SHORT_US:
        return found | {"limit": "launch", "why": f"{row['us']:g} us; most used: {name} {busy[name]:g}%"}
    return found | {"limit": "latency", "why": f"most used: {name} {busy[name]:g}%; warps wait: {waits}"}


def rows_of(launches: Sequence[Launch]) -> list[Row]:
    """A case's rows, one per kernel."""
    rows = []
    for launch, count in medians(launches):
        row = counters(launch) | {"launches": count}
        rows.append(row | verdict(row))
    return rows
