"""Times of the gated delta rule's Triton kernels on a CUDA machine, each checked against float64 before it is timed.

    python -m specc.bench.kernels_delta [--part NAME ...] [--output FOLDER]

Each call is captured in a CUDA graph over input sets of more than 160 MB together and replayed; a time is the median
over replays, per call. Beside it: the floor ("read": the bytes that have to move at 4.3 TB/s), the error of u relative
to beta v (of a state for commits), and that of o before it is rounded (from a float32 run of the same kernel).
Configurations that are wrong are reported, never timed. Results: specc/bench/results/kernels_delta.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from specc.bench.delta_cases import (
    GEOMETRIES,
    commit_part,
    conv_part,
    hybrid_part,
    pending_part,
    serial_part,
    tree_part,
)
from specc.bench.delta_peers import peer_part
from specc.bench.results import RESULTS, environment, keep

PARTS = {
    "tree": tree_part,
    "serial": serial_part,
    "pending": pending_part,
    "commit": commit_part,
    "hybrid": hybrid_part,
    "conv": conv_part,
    "peers": peer_part,
}


def device() -> dict[str, Any]:
    """The GPU and the packages that matter."""
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "triton": metadata.version("triton"),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }


def main(arguments: list[str] | None = None) -> int:
    """Runs the parts; 1 if a configuration gave wrong results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=[*PARTS], help="only these (default: all)")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of kernels_delta.json")
    parser.add_argument("--seconds", type=float, default=240.0, help="start no further part after so many seconds")
    given = sys.argv[1:] if arguments is None else arguments
    chosen = parser.parse_args(given)
    if not torch.cuda.is_available():
        print("kernels_delta: no CUDA device", file=sys.stderr)
        return 2
    begin, rows, skipped = time.monotonic(), [], []
    result: dict[str, Any] = environment("specc.bench.kernels_delta", list(given)) | {"gpu": device()}
    for name in chosen.part or PARTS:
        if time.monotonic() - begin > chosen.seconds:
            skipped.append(name)
            continue
        for row in PARTS[name](GEOMETRIES):
            rows.append({"part": name, **row})
            print(json.dumps(rows[-1]), flush=True)
        print(f"# {name}: {time.monotonic() - begin:.0f} s", flush=True)
        keep("kernels_delta", result | {"rows": rows, "skipped": skipped}, chosen.output)
    return int(any(row.get("wrong") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
