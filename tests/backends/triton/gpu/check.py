"""Runs prepared modules (see `prepare`) on a CUDA device and compares them; needs torch and triton only.

    python tests/backends/triton/gpu/check.py FOLDER --output FILE.json [--case NAME ...] [--only CHECK ...]
                                              [--seconds S] [--device cuda]

Every case runs in a process of its own, all at once: kernels compile side by side, and a fault of one context ends one
case. A case's findings: `steps32` (largest errors of every step function in float32, in units of the reference's own),
`steps16` (bfloat16 against float64, same weights), `graphs` (replays against the same kernels one by one: bits),
`padding` (a batch between two captured sizes), `syncs` (a step that waits for the device is an error), `text`; and
`faults`, those with something wrong (`verdict`). The command ends with 1 if a case has any, and if there is no case.
With `--device cpu` (under TRITON_INTERPRET=1) everything but graphs and syncs is tried out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from modules_on_gpu import CHECKS, Case
from triton.errors import TritonError
from verdict import faults

FAILURES = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
FAILURES += (OSError, TritonError)
Report = dict[str, dict[str, Any]]


def one(folder: Path, device: str, only: Sequence[str]) -> None:
    """One case in this process; prints what it found after every check, as one line of JSON each."""
    case = Case(folder, device)
    for name in only:
        began = time.monotonic()
        try:
            found = CHECKS[name](case)
        except FAILURES as problem:  # what a wrong kernel leads to is a finding, and the next check goes on
            found = {"failed": f"{type(problem).__name__}: {str(problem)[-600:]}"}
        print(json.dumps({name: found, "seconds": round(time.monotonic() - began, 1)}), flush=True)


def started(archive: Path, folder: Path, device: str, only: Sequence[str]) -> subprocess.Popen[str]:
    """A process for one case, its modules unpacked."""
    place = folder / archive.name.removesuffix(".tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(place, filter="data")
    words = [sys.executable, __file__, str(place), "--one", "--device", device]
    words += [word for name in only for word in ("--only", name)]
    with (place / "out.txt").open("w") as out, (place / "err.txt").open("w") as err:
        return subprocess.Popen(words, stdout=out, stderr=err, text=True)


def gathered(place: Path, only: Sequence[str]) -> dict[str, object]:
    """What a case has printed so far, and the end of its error output."""
    found: dict[str, object] = {}
    for line in (place / "out.txt").read_text().splitlines():
        if line.startswith("{"):
            entry = json.loads(line)
            seconds = entry.pop("seconds")
            found |= entry | {f"{next(iter(entry))} seconds": seconds}
    missing = [name for name in only if name not in found]
    return found | ({"missing": missing, "stderr": (place / "err.txt").read_text()[-1500:]} if missing else {})


def checked(archives: Sequence[Path], device: str, only: Sequence[str], end: float, output: Path | None) -> Report:
    """The findings of every case, written to `output` whenever one has ended."""
    report = Report()
    with tempfile.TemporaryDirectory() as name:
        running = {path: started(path, Path(name), device, only) for path in archives}
        while running:
            for path, process in list(running.items()):
                late = time.monotonic() > end
                if process.poll() is None and not late:
                    continue
                process.kill()
                process.wait()
                del running[path]
                case = path.name.removesuffix(".tar.gz")
                found = gathered(Path(name) / case, only) | ({"stopped": "out of time"} if late else {})
                report[case] = found | {"faults": faults(found)}
                print(json.dumps({case: report[case]}), flush=True)
                if output is not None:
                    output.write_text(json.dumps(report, indent=1))
            time.sleep(0.2)
    return report


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--case", action="append", default=[], help="part of a name; default: all")
    parser.add_argument("--only", action="append", default=[], choices=CHECKS, help="default: all checks")
    parser.add_argument("--seconds", type=float, default=80.0, help="cases still running then are stopped")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    only = args.only or tuple(CHECKS)
    if args.one:
        one(args.folder, args.device, only)
        return 0
    archives = [
        path
        for path in sorted(args.folder.glob("*.tar.gz"))
        if not args.case or any(part in path.name for part in args.case)
    ]
    report = checked(archives, args.device, only, time.monotonic() + args.seconds, args.output)
    wrong = [f"{case}: {', '.join(found['faults'])}" for case, found in report.items() if found["faults"]]
    print(f"{len(report) - len(wrong)} of {len(report)} cases are right", *wrong, sep="\n")
    return int(bool(wrong) or not report)


if __name__ == "__main__":
    sys.exit(main())
