"""Searches for the fastest right configuration of every kernel and geometry.

    specc bench tune [--family NAME ...] [--seconds S] [--output DIR]

A configuration is compared with float64 on random data before it may be timed, since some are wrong and not slow. A
family's rows, with the errors, and the table of the best configurations go to tuning_NAME.json, with the device. The
kernels' own tables (backends/triton/launch, backends/triton/ops) are set from it; a device without a table uses the
nearest.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from specc.bench.families import FAMILIES, there
from specc.bench.gpu_timing import FAILURES, Row, failed, report, require_gpu
from specc.bench.results import RESULTS


def best_of(rows: Iterable[Row], keys: Sequence[str]) -> dict[str, str]:
    """By the values of `keys`: the `config` of the fastest right row. Wrong ones and ones without times don't count."""
    best: dict[str, Row] = {}
    for row in rows:
        if row.get("wrong") or "us" not in row:
            continue
        key = ", ".join(f"{name}={row[name]}" for name in keys if name in row)
        if key not in best or row["us"] < best[key]["us"]:
            best[key] = row
    return {key: str(row["config"]) for key, row in best.items()}


def tune_family(family: str, seconds: float, output: Path, given: Sequence[str]) -> int:
    """One family in this process; 1 if it has no search or its search broke off."""
    module: Any = importlib.import_module(FAMILIES[family])
    search = getattr(module, "tune", None)
    if search is None:
        print(f"{family}: nothing to tune", file=sys.stderr)
        return 0
    begin = time.monotonic()
    result = report(f"tuning_{family.replace('-', '_')}", "specc.bench.tune", given, output)
    try:
        table: Mapping[str, str] = search(result, seconds)
    except FAILURES as failure:
        result.write(table={}, seconds=round(time.monotonic() - begin, 1), **failed(failure))
        print(f"{family}: {failed(failure)['failed']}", file=sys.stderr)
        return 1
    result.write(table=table, seconds=round(time.monotonic() - begin, 1))
    print(json.dumps({"family": family, "table": table}))
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """The largest exit status of the families."""
    given = list(sys.argv[1:] if argv is None else argv)
    about = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser(prog="specc bench tune", description=about)
    parser.add_argument("--family", action="append", choices=[*FAMILIES], help="only these (default: all)")
    parser.add_argument("--seconds", type=float, default=120.0, help="of a family: start nothing new after so many")
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="DIR", help="folder of the results")
    args = parser.parse_args(given)
    require_gpu("specc bench tune")
    chosen = args.family or [family for family in FAMILIES if there(family)]
    if len(chosen) == 1:
        return tune_family(chosen[0], args.seconds, args.output, given)
    # A fault of one kernel would end every later case of its process.
    rest = ["--seconds", str(args.seconds), "--output", str(args.output)]
    command = [sys.executable, "-m", "specc.bench.tune", *rest, "--family"]
    return max(subprocess.run([*command, family], check=False).returncode for family in chosen)


if __name__ == "__main__":
    sys.exit(main())
