"""Times of the gated delta rule's Triton kernels on a CUDA machine, each checked against float64 before it is timed.

    python -m specc.bench.kernels_delta [--part NAME ...] [--peers] [--warm N] [--output FOLDER] [--seconds S]

Parts: `tree` (verify, all phases counted), `serial` (a chain of 16, and plain decoding), `pending` (deferred and
windowed commits beside verify + commit), `commit` (all layers from factors, beside replay), `hybrid` (schedules by
shape of tree, and what `auto` takes), `states` (verify that keeps every node's state), `conv`, and with --peers
flash-linear-attention and SGLang's kernels. Errors: of u relative to beta v, of states, and of o before it is rounded
(a float32 run of the same kernel); `bits`: in how many numbers a chain differs from single tokens. `read_us`: the
bytes that have to move at 4.3 TB/s. Results: specc/bench/results/kernels_delta.json.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from specc.bench import delta_peers, delta_pending_search, delta_schedules, delta_tree_cases, delta_walk_cases
from specc.bench.arguments import whole
from specc.bench.delta_inputs import BATCHES, GEOMETRIES
from specc.bench.gpu_timing import WORKERS, Report, Row, compiled_in_parallel, guarded, report, require_gpu
from specc.bench.results import RESULTS
from specc.bench.tune import best_of

PARTS: Mapping[str, Callable[[], Iterator[Row]]] = {
    "tree": delta_tree_cases.tree_part,
    "pending": delta_tree_cases.pending_part,
    "serial": delta_walk_cases.serial_part,
    "commit": delta_walk_cases.commit_part,
    "hybrid": delta_schedules.hybrid_part,
    "states": delta_schedules.states_part,
    "conv": delta_walk_cases.conv_part,
    "peers": delta_peers.peer_part,
}


def jobs(parts: Sequence[str]) -> list[partial[None]]:
    """What to compile before they run."""
    found = [job for part in ("tree", "pending") if part in parts for job in delta_tree_cases.jobs(part)]
    found += delta_schedules.jobs() if {"hybrid", "states"} & set(parts) else []
    found += delta_walk_cases.jobs() if {"serial", "commit"} & set(parts) else []
    return found + (delta_peers.jobs() if "peers" in parts else [])


def tune(result: Report, seconds: float) -> Mapping[str, str]:
    """The fastest configuration of the tree schedule by geometry, nodes and batch, and of commits."""
    begin = time.monotonic()
    tune_commits(result, seconds / 2)
    compiled_in_parallel(delta_tree_cases.jobs("search"))
    for geometry, nodes in delta_tree_cases.POINTS:
        for batch in BATCHES:
            if time.monotonic() - begin < seconds:
                for row in guarded({"part": "search"}, delta_tree_cases.search(geometry, nodes, batch)):
                    result.add({"part": "search", **row})
    return best_of(result.rows, ("part", "kind", "geometry", "nodes", "batch"))


def tune_commits(result: Report, seconds: float) -> None:
    """Rows of the searches with factors pending and of the commit of all layers."""
    begin = time.monotonic()
    compiled_in_parallel(delta_pending_search.jobs())
    for geometry in GEOMETRIES:
        for row in guarded({"part": "search-commit"}, delta_pending_search.commit_search(geometry)):
            result.add({"part": "search-commit", **row})
    for geometry in GEOMETRIES:
        for batch in BATCHES:
            if time.monotonic() - begin < seconds:
                for row in guarded({"part": "search-pending"}, delta_pending_search.pending_search(geometry, batch)):
                    result.add({"part": "search-pending", **row})


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the parts; 1 if a configuration gave wrong results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=[*PARTS], help="only these (default: all but peers)")
    parser.add_argument("--tune-commits", action="store_true", help="only search configurations of commits")
    parser.add_argument("--peers", action="store_true", help="with what is compared with, which has to be importable")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of kernels_delta.json")
    parser.add_argument("--seconds", type=float, default=240.0, help="start no further part after so many seconds")
    parser.add_argument(
        "--warm", type=whole(0), default=WORKERS, metavar="N",
        help=f"compile everything beforehand in N processes (default: {WORKERS}); 0: it was, by a run with --seconds 0",
    )  # fmt: skip
    given = parser.parse_args(arguments)
    require_gpu("specc bench kernels --family delta")
    begin = time.monotonic()
    if given.tune_commits:
        tune_commits(report("tuning_commits", "specc.bench.kernels_delta", arguments, given.output), given.seconds)
        return 0
    result = report("kernels_delta", "specc.bench.kernels_delta", arguments, given.output)
    parts = given.part or [part for part in PARTS if part != "peers"]
    parts += ["peers"] if given.peers and "peers" not in parts else []
    if given.warm:
        compiled_in_parallel(jobs(parts), given.warm)
    print(f"# compiled: {time.monotonic() - begin:.0f} s", flush=True)
    for part in parts:
        if time.monotonic() - begin > given.seconds:
            print(f"# {part}: left out, no time", flush=True)
            continue
        for row in guarded({"part": part}, PARTS[part]()):
            result.add({"part": part, **row})
        print(f"# {part}: {time.monotonic() - begin:.0f} s", flush=True)
    return int(result.wrong)


if __name__ == "__main__":
    sys.exit(main())
