"""What every GPU benchmark shares: times by graph replay, errors against float64, results written row by row.

How a case is measured, the same for this compiler's kernels and for peers:

1. Inputs are random (never zeros) and there are as many sets of them as exceed the L2 cache twice over (`sets_for`),
   so that a replay reads from memory as a decode step does.
2. Outputs are poisoned, one call is made, and its results are compared with a float64 reference (`error`). A
   configuration whose error is above its bound is reported and never timed.
3. All calls, each on its own input set, are captured in one CUDA graph, which is replayed (`timed`): the median over
   replays of the time per call, with the tenth and the ninetieth percentile beside it.

Nothing here needs a GPU to be imported.
"""

from __future__ import annotations

import importlib
import itertools
import json
import multiprocessing
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specc.bench.results import RESULTS, environment, keep
from specc.diagnostics import DiagnosticError
from specc.diagnostics import error as diagnostic

Row = dict[str, Any]
Call = Callable[[], Any]

ROTATED = 160e6
"""Bytes over which inputs rotate: more than twice the L2 cache of an H200 (60 MB)."""
RATE = 4.3e12
"""Bytes per second that a plain sum or a copy reaches on an H200."""
REPLAYS = 21
WARM_UPS = 3
MOST_CALLS = 400
"""Calls in one graph at most: small inputs would ask for more sets than a graph takes in reasonable time."""
WORKERS = 14


def _triton_errors() -> tuple[type[BaseException], ...]:
    """Triton's own error class, where triton is installed: it is an Exception only."""
    try:
        found: type[BaseException] = importlib.import_module("triton.errors").TritonError
    except ImportError:
        return ()
    return (found,)


FAILURES: tuple[type[BaseException], ...] = (
    RuntimeError, ValueError, TypeError, AssertionError, ImportError, AttributeError, LookupError, OSError,
    *_triton_errors(),
)  # fmt: skip
"""What a case may fail with; it becomes a row with its message, and the next case is measured."""


def require_gpu(command: str) -> None:
    """Raises DiagnosticError (SPC292) where there is no CUDA device."""
    if not torch.cuda.is_available():
        raise DiagnosticError(
            [
                diagnostic(
                    "SPC292",
                    f"`{command}` needs a CUDA device, and torch sees none",
                    help="run it on a machine with an NVIDIA GPU and torch built for CUDA; `specc bench demo`, "
                    "`cpu-speed` and `traffic` run on the CPU",
                )
            ]
        )


def sets_for(bytes_of_one: float, most: int = MOST_CALLS) -> int:
    """How many input sets of so many bytes exceed what the cache could keep; at least 2."""
    return min(most, max(2, int(ROTATED / max(bytes_of_one, 1)) + 1))


def nbytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of some tensors together."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def poison(*tensors: Tensor) -> None:
    """Fill with values that no right result has: NaN, or the least integer."""
    for tensor in tensors:
        if tensor.dtype.is_floating_point:
            tensor.fill_(float("nan"))
        elif tensor.dtype == torch.bool:
            tensor.fill_(True)
        else:
            tensor.fill_(torch.iinfo(tensor.dtype).min)


def error(found: Tensor, expected: Tensor, scale: Tensor | None = None) -> float:
    """||found - expected|| / ||scale||, in float64; `scale` is `expected` where it is not given. NaN stays NaN."""
    wide = expected.double()
    return float((found.double() - wide).norm() / (wide if scale is None else scale.double()).norm())


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds per call: median, tenth and ninetieth percentile over the replays."""

    us: float
    p10: float
    p90: float
    calls: int

    def row(self, name: str = "us") -> Row:
        """`us`, and what it takes to judge it."""
        return {
            name: round(self.us, 3),
            f"{name}_p10": round(self.p10, 3),
            f"{name}_p90": round(self.p90, 3),
            "graph_calls": self.calls,
        }


def timed(calls: Sequence[Call], replays: int = REPLAYS) -> Timing:
    """One graph of all calls, replayed `replays` times after a warm-up; each call should use its own input set."""
    graph = captured(calls)
    times = replay_times(graph, replays)
    each = sorted(time / len(calls) for time in times)
    return Timing(statistics.median(each), each[len(each) // 10], each[-1 - len(each) // 10], len(calls))


def captured(calls: Sequence[Call]) -> torch.cuda.CUDAGraph:
    """A graph of the calls; the first two are run before, so that kernels are compiled and workspaces exist."""
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
    return graph


def replay_times(graph: torch.cuda.CUDAGraph, replays: int = REPLAYS) -> list[float]:
    """Microseconds of each replay, after `WARM_UPS` that don't count."""
    times = []
    for _ in range(replays + WARM_UPS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return times[WARM_UPS:]


def checked(label: Row, errors: Callable[[], Mapping[str, float]], bounds: Mapping[str, float],
            calls: Callable[[], Sequence[Call]], floor_bytes: float | None = None) -> Row:  # fmt: skip
    """A row: errors by name first, then the time, if no error is above its bound (NaN is).

    `errors` runs the poisoned call and compares; `calls` makes one call per input set. A failure becomes a row too.
    """
    row = dict(label)
    if floor_bytes is not None:
        row["read_us"] = round(floor_bytes / RATE * 1e6, 3)
    try:
        row["errors"] = {name: float(value) for name, value in errors().items()}
        row["wrong"] = not all(value <= bounds[name] for name, value in row["errors"].items())
        row["bounds"] = dict(bounds)
        if not row["wrong"]:
            row |= timed(calls()).row()
    except FAILURES as failure:
        row |= failed(failure)
    return row


def failed(failure: BaseException) -> Row:
    """A failure as part of a row: never a traceback, always its kind and first line."""
    text = str(failure).strip().splitlines()
    return {"wrong": True, "failed": f"{type(failure).__name__}: {text[0][:200] if text else ''}".rstrip(": ")}


def guarded(label: Row, rows: Iterator[Row]) -> Iterator[Row]:
    """Rows until one fails; then its message."""
    try:
        yield from rows
    except FAILURES as failure:
        yield label | failed(failure)


def compiled_in_parallel(jobs: Sequence[Call], workers: int = WORKERS) -> None:
    """Run picklable jobs (`functools.partial`) in processes of their own, so that their kernels lie compiled on disk.

    A job that fails is seen again, with its message, when its case is measured.
    """
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        for future in [pool.submit(job) for job in jobs]:
            future.exception()


def gpu() -> Row:
    """The GPU and the packages that matter."""
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "memory": properties.total_memory,
        "l2": properties.L2_cache_size,
        "triton": metadata.version("triton"),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }


@dataclass(frozen=True, slots=True)
class Report:
    """Rows with the device, commit and command that made them; written again after every row, printed as they come."""

    name: str
    head: Row
    folder: Path = RESULTS
    rows: list[Row] = field(default_factory=list)

    def add(self, row: Row) -> None:
        self.rows.append(row)
        print(json.dumps(row), flush=True)
        self.write()

    def write(self, **more: Any) -> Path:
        """Also with further entries beside the rows."""
        return keep(self.name, self.head | {"rows": self.rows} | more, self.folder, quiet=True)

    @property
    def wrong(self) -> bool:
        """Whether a row was wrong."""
        return any(row.get("wrong") for row in self.rows)


def report(name: str, module: str, arguments: Sequence[str] | None, folder: Path = RESULTS) -> Report:
    """A report of a benchmark on the GPU."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    return Report(name, environment(module, given) | {"gpu": gpu()}, folder)
