"""The times of verify schedules that `auto` looks up, from a run of the kernels.

    python -m specc.bench.schedule_points kernels_delta.json [--output FILE]

Takes the rows of the parts `hybrid` and `states` (`specc bench kernels --family delta`) that were right, and writes
specc/passes/select_schedule/h200.json: [schedule, sizes, sequences, parent rows, states kept, microseconds], with the
device, the versions, the commit and the command of the run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from specc.bench import tables
from specc.bench.delta_inputs import GEOMETRIES
from specc.bench.delta_schedules import ALL, schedule_times
from specc.bench.gpu_timing import Row
from specc.output import write_text
from specc.passes.select_schedule.measured import TIMES

SIZES = {one.name: [one.heads, one.value_heads, one.keys, one.values] for one in GEOMETRIES}
SOURCE = ("gpu", "commit", "command")
"""What is told of the run."""


def points(rows: Sequence[Row]) -> Iterator[list[Any]]:
    """Every schedule's time for every shape that was measured."""
    for row in rows:
        if row["part"] not in ("hybrid", "states") or row.get("wrong") or row.get("us") is None or "shape" not in row:
            continue
        kept = row["part"] == "states"
        times = {row["schedule"]: row["us"]} if kept else schedule_times(row)
        for schedule, time in times.items():
            yield [schedule, SIZES[row["geometry"]], row["batch"], ALL[row["shape"]], kept, round(time, 2)]


def text_of(found: dict[str, Any]) -> str:
    """The file's text, a line a point."""
    lines = ",\n".join("  " + json.dumps(point) for point in points(found["rows"]))
    source = json.dumps({key: found[key] for key in SOURCE if key in found})
    return f'{{"source": {source},\n "points": [\n{lines}\n]}}\n'


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="kernels_delta.json")
    parser.add_argument("--output", type=Path, default=TIMES, metavar="FILE", help="what to write")
    given = parser.parse_args(arguments)
    write_text(given.output, text_of(tables.read(given.results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
