"""The process that `specc bench profile` runs under the profiler: makes each case's inputs, warms it up, calls it.

    python -m specc.bench.profile_child --told FILE --case NAME [--case NAME ...] [--launches N] [--until TIME]

The profiler is switched on for the calls alone. In front of each case's calls stands one launch of an operation of
torch that none of the cases use (`MARK`), which divides what the profiler writes. FILE gets lines of JSON: when a case
begins, when its mark is launched, and when it ends, so that it is known which cases ran where a fault ends the process.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from specc.bench.gpu_timing import FAILURES, Call, Row, failed
from specc.bench.profile_cases import CASES

MARK = "heaviside"
"""In the name of the kernel between cases."""
WARM_UPS = 2


def mark(one: torch.Tensor) -> None:
    """One launch of the kernel that divides cases, on a tensor made before the profiler is on."""
    torch.heaviside(one, one)


def called(name: str, launches: int, path: Path) -> None:
    """A case under the profiler."""
    call: Call = CASES[name].make()
    one = torch.ones(1, device="cuda")
    mark(one)
    for _ in range(WARM_UPS):
        call()
    torch.cuda.synchronize()
    told(path, {"case": name, "marked": True})
    torch.cuda.profiler.start()
    try:
        mark(one)
        for _ in range(launches):
            call()
        torch.cuda.synchronize()
    finally:
        torch.cuda.profiler.stop()


def told(path: Path, line: Row) -> None:
    """A line more."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Always 0: a case that fails is told."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--told", type=Path, required=True, metavar="FILE")
    parser.add_argument("--case", action="append", required=True, choices=[*CASES])
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--until", type=float, default=math.inf, help="begin no case after this time (of the epoch)")
    args = parser.parse_args(list(sys.argv[1:] if argv is None else argv))
    begin = time.monotonic()
    for name in args.case:
        if time.time() > args.until:
            break
        told(args.told, {"case": name, "begun": True})
        line: Row = {"case": name, "ended": True}
        try:
            called(name, args.launches, args.told)
        except FAILURES as failure:
            line |= failed(failure)
        told(args.told, line | {"seconds": round(time.monotonic() - begin, 1)})
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
