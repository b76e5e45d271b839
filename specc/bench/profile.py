"""Hardware counters of the kernels behind each missed bar, and what limits them.

    specc bench profile [--case NAME ...] [--launches N] [--ncu PATH] [--warm N] [--seconds S] [--earlier FILE]
                        [--pages DIR] [--output DIR]

A child process runs under Nsight Compute (`ncu`), which empties the caches before every launch and leaves the clocks
alone; launches wait for each other there, so that a time is that of a kernel alone (`us`), longer than in a graph.
Kernels are compiled beforehand in --warm processes; --seconds 0 does nothing else.
Results: profile.json, a row per case and kernel, and profile.md, the same as a table. `limit` is what a kernel is bound
by; the rule stands in BENCHMARKS.md. A case that fails is a row with its message.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch

from specc.bench import tables
from specc.bench.arguments import whole
from specc.bench.gpu_timing import WORKERS, Report, Row, compiled_in_parallel, report, require_gpu
from specc.bench.profile_cases import CASES
from specc.bench.profile_child import MARK
from specc.bench.profile_csv import METRICS, Launch, cases_of, launches_of, rows_of
from specc.bench.profile_table import markdown
from specc.bench.results import RESULTS
from specc.diagnostics import DiagnosticError, error
from specc.output import make_folder, write_text

OPTIONS = (
    "--profile-from-start", "off", "--target-processes", "all", "--clock-control", "none", "--cache-control", "all",
    "--csv", "--page", "raw", "--print-units", "base", "--section", "LaunchStats", "--section", "Occupancy",
)  # fmt: skip
FORBIDDEN = "ERR_NVGPUCTRPERM"
PATIENCE = 180.0
"""Seconds that the child may take longer than it was given."""


def no_counters(message: str, remedy: str) -> DiagnosticError:
    """SPC298."""
    return DiagnosticError([error("SPC298", message, help=remedy)])


def profiler(given: str) -> str:
    """Nsight Compute's path. Raises DiagnosticError (SPC298)."""
    found = shutil.which(given)
    if found is None:
        raise no_counters(
            f"`specc bench profile` reads counters with Nsight Compute, and there is no `{given}`",
            "install Nsight Compute (it comes with the CUDA toolkit), or give its path with --ncu; "
            "`specc bench kernels` takes times without it",
        )
    return found


def known_metrics(ncu: str) -> tuple[str, ...]:
    """Those of `METRICS` that the device has: an unknown name would end the run. All, where ncu lists none."""
    try:
        done = subprocess.run([ncu, "--query-metrics"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return METRICS
    names = set(re.findall(r"^([a-z0-9]+__[a-z0-9_]+)", done.stdout, re.MULTILINE))
    return tuple(name for name in METRICS if name.split(".")[0] in names) if names else METRICS


def run(ncu: str, metrics: Sequence[str], names: Sequence[str], launches: int, seconds: float, log: Path,
        told: Path) -> int:  # fmt: skip
    """Exit status of one child with some cases under the profiler; what it writes goes to `log`, and to `told`."""
    words = [ncu, *OPTIONS, "--log-file", str(log), "--metrics", ",".join(metrics)]
    words += [sys.executable, "-m", "specc.bench.profile_child", "--told", str(told)]
    words += ["--launches", str(launches), "--until", str(time.time() + seconds)]
    words += [word for name in names for word in ("--case", name)]
    try:
        return subprocess.run(words, check=False, timeout=seconds + PATIENCE, stdout=subprocess.DEVNULL).returncode
    except subprocess.TimeoutExpired:
        return -1


def told_by(path: Path) -> dict[str, Row]:
    """What the child said of each case, in its order."""
    found: dict[str, Row] = {}
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    for line in lines:
        said = json.loads(line)
        found.setdefault(said["case"], {}).update(said)
    return found


def read(log: Path) -> list[Launch]:
    """The launches in a profiler's log. Raises DiagnosticError (SPC298) where counters could not be read."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    if FORBIDDEN in text:
        raise no_counters(
            f"this user may not read the GPU's counters ({FORBIDDEN})",
            "run it as root (in a container with --cap-add SYS_ADMIN), or load the driver with "
            "NVreg_RestrictProfilingToAdminUsers=0",
        )
    try:
        return launches_of(text)
    except ValueError:
        said = [line for line in text.splitlines() if line.startswith(("==ERROR==", "==WARNING=="))]
        raise no_counters(
            f"Nsight Compute read no counters: {said[0] if said else 'it wrote none'}",
            "try `ncu --query-metrics`; virtual machines and sandboxes may not let it reach the device",
        ) from None


def case_rows(told: Mapping[str, Row], launches: Sequence[Launch], status: int) -> Iterator[Row]:
    """Rows of the cases that began: counters by kernel, or why there are none."""
    parts = iter(cases_of(launches, MARK))
    for name, said in told.items():
        label = CASES[name].label
        part = next(parts, []) if "marked" in said else []
        for row in rows_of(part):
            yield label | row
        if "failed" in said:
            yield label | {"wrong": True, "failed": said["failed"]}
        elif "ended" not in said:
            yield label | {"wrong": True, "failed": f"the process ended in it (status {status})"}
        elif not part:
            yield label | {"wrong": True, "failed": "the profiler saw no kernel"}


def measure(result: Report, ncu: str, names: Sequence[str], launches: int, seconds: float, folder: Path) -> list[str]:
    """Rows of all cases; returns those there was no time for. A new child goes on where one was ended by a fault.

    The profiler's pages and what the children told go to `folder`.
    """
    begin, left, metrics = time.monotonic(), list(names), known_metrics(ncu)
    while left and time.monotonic() - begin < seconds:
        log, told = (folder / f"{len(names) - len(left)}.{kind}" for kind in ("csv", "jsonl"))
        told.unlink(missing_ok=True)
        status = run(ncu, metrics, left, launches, seconds - (time.monotonic() - begin), log, told)
        said = told_by(told)
        found = read(log)
        for row in case_rows(said, found, status):
            result.add(row)
        left = [name for name in left if name not in said]
        if not said:
            break
    return left


def taken_over(path: Path, names: Sequence[str]) -> list[Row]:
    """Rows of these cases in an earlier result, with its commit; not failed ones. Raises DiagnosticError (SPC293)."""
    earlier = tables.read(path)
    wrong = {row["case"] for row in earlier["rows"] if row.get("wrong")}
    rows = [row for row in earlier["rows"] if row["case"] in names and row["case"] not in wrong]
    return [{"commit": earlier.get("commit", ""), **row} for row in rows]


def warm(name: str) -> None:
    """Compiles what a case needs, in a process of its own."""
    CASES[name].make()()
    torch.cuda.synchronize()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="specc bench profile", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", action="append", choices=[*CASES], help="only these (default: all)")
    parser.add_argument("--launches", type=whole(1), default=3, metavar="N", help="of each case (default: 3)")
    parser.add_argument("--ncu", default="ncu", metavar="PATH", help="Nsight Compute's command (default: ncu)")
    parser.add_argument(
        "--warm", type=whole(0), default=WORKERS, metavar="N",
        help=f"compile everything beforehand in N processes (default: {WORKERS}); 0: it was, by a run with --seconds 0",
    )  # fmt: skip
    parser.add_argument("--seconds", type=float, default=240.0, help="begin no further case after so many seconds")
    parser.add_argument("--earlier", type=Path, metavar="FILE", help="take over what this profile.json has already")
    parser.add_argument("--pages", type=Path, metavar="DIR", help="keep what Nsight Compute writes here")
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="DIR", help="folder of the results")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """1 if a case failed."""
    args = _parser().parse_args(list(sys.argv[1:] if argv is None else argv))
    require_gpu("specc bench profile")
    ncu = profiler(args.ncu)
    names = args.case or list(CASES)
    earlier = [] if args.earlier is None else taken_over(args.earlier, names)
    names = [name for name in names if name not in {row["case"] for row in earlier}]
    if args.warm:
        compiled_in_parallel([partial(warm, name) for name in names], args.warm)
    if args.seconds <= 0:
        return 0
    result = report("profile", "specc.bench.profile", argv, args.output)
    for row in earlier:
        result.add(row)
    with tempfile.TemporaryDirectory(prefix="specc-profile-") as passing:
        folder = args.pages or Path(passing)
        make_folder(folder)
        result.write(skipped=measure(result, ncu, names, args.launches, args.seconds, folder))
    write_text(args.output / "profile.md", markdown(result.head | {"rows": result.rows}) + "\n")
    return int(result.wrong)


if __name__ == "__main__":
    sys.exit(main())
