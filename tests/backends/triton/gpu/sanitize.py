"""Runs prepared modules (see `prepare`) under compute-sanitizer, every tool on every case.

    python tests/backends/triton/gpu/sanitize.py FOLDER --output FILE.json [--tool memcheck --tool racecheck ...]
                                                 [--case NAME ...] [--seconds S] [--at-once N]

Each pair of a tool and a case is a process of its own: prefill, speculative steps, a flush and a plain step of the
float32 and the bfloat16 module, kernels started one by one. Every tensor has an allocation of its own, so that memcheck
sees what lies outside a tensor, not just outside a block of torch's allocator. Kernels should have been compiled before
(run `check` first): the sanitizer slows all of a process.

A pair's finding (`verdict`): `errors`, what the tool counts, those of them that racecheck names in kernels of cuBLAS
(`of a library`), and `finished`, what the process printed last. It is `clean` with no other errors and at its end; one
stopped by the time limit keeps what had been reached, and is not.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from modules_on_gpu import ORDER, PROMPTS, Case, steps_for
from verdict import sanitized

TOOLS = ("memcheck", "racecheck", "synccheck")
KINDS = ("triton32", "triton16")


@torch.no_grad()
def one(folder: Path, device: str) -> None:
    """A case in this process; prints each step that has ended."""
    case = Case(folder, device)
    for kind in KINDS:
        steps = steps_for(case, kind, len(PROMPTS), graphs=False)
        for number, name in enumerate(ORDER):
            steps.run(name)
            if case.device.type == "cuda":
                torch.cuda.synchronize()
            print(f"{kind} {number} {name}", flush=True)
    print("end", flush=True)


def started(tool: str, place: Path, device: str) -> subprocess.Popen[str]:
    """A process for one pair."""
    words = [sys.executable, __file__, str(place), "--one", "--device", device]
    if device == "cuda":
        words = ["compute-sanitizer", "--tool", tool, "--print-limit", "1000", *words]
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    with (place / f"{tool}.txt").open("w") as out:
        return subprocess.Popen(
            words, stdout=out, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
        )


def stop(process: subprocess.Popen[str]) -> None:
    """End a pair's process and what it has started: the tool does not take the program with it."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def pairs(folder: Path, cases: Sequence[str], tools: Sequence[str], work: Path) -> Iterator[tuple[str, Path]]:
    """Tools by unpacked cases; a tool's cases together."""
    for tool in tools:
        for archive in sorted(folder.glob("*.tar.gz")):
            if not cases or any(part in archive.name for part in cases):
                place = work / archive.name.removesuffix(".tar.gz")
                if not place.exists():
                    with tarfile.open(archive) as packed:
                        packed.extractall(place, filter="data")
                yield tool, place


def run(waiting: list[tuple[str, Path]], device: str, end: float, at_once: int, output: Path | None) -> bool:
    """All pairs; whether all were clean."""
    running: dict[tuple[str, Path], subprocess.Popen[str]] = {}
    report: dict[str, dict[str, object]] = {}
    while running or waiting:
        while waiting and len(running) < at_once and time.monotonic() < end:
            pair = waiting.pop(0)
            running[pair] = started(*pair, device)
        if time.monotonic() >= end:
            waiting.clear()
        for pair, process in list(running.items()):
            late = time.monotonic() > end
            if process.poll() is None and not late:
                continue
            stop(process)
            del running[pair]
            tool, place = pair
            found = sanitized((place / f"{tool}.txt").read_text()) | ({"stopped": "out of time"} if late else {})
            report[f"{tool} {place.name}"] = found
            print(json.dumps({f"{tool} {place.name}": found}), flush=True)
            if output is not None:
                output.write_text(json.dumps(report, indent=1))
        time.sleep(0.2)
    return all(found["clean"] for found in report.values())


def main(argv: Sequence[str] | None = None) -> int:
    """The command; 1 if a pair was not clean."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--tool", action="append", default=[], choices=TOOLS)
    parser.add_argument("--case", action="append", default=[], help="part of a name; default: all")
    parser.add_argument("--seconds", type=float, default=150.0, help="what still runs then is stopped")
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.one:
        one(args.folder, args.device)
        return 0
    with tempfile.TemporaryDirectory() as name:
        waiting = list(pairs(args.folder, args.case, args.tool or TOOLS, Path(name)))
        clean = run(waiting, args.device, time.monotonic() + args.seconds, args.at_once, args.output)
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
