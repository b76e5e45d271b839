"""Times of the attention kernels on a CUDA machine at fixed points, each checked against float64 first.

    specc bench kernels --family attention [--peers] [--search] [--point N ...] [--seconds S] [--output DIR]

A point is one geometry, number of nodes, batch and context; contiguous and paged. `--search` tries every candidate
configuration, else the kernels' own table is timed. `--peers` measures SDPA, FlexAttention and SGLang's kernels on the
same inputs. `bar_us` is what a point may take at most where that was fixed beforehand.
Results: kernels_attention.json.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from specc.backends.triton.ops.attention import parts_of
from specc.backends.triton.ops.attention_configs import AttentionConfig
from specc.bench.gpu_timing import (
    Report,
    Row,
    checked,
    compiled_in_parallel,
    error,
    poison,
    report,
    require_gpu,
    sets_for,
)
from specc.bench.kernels_attention_cases import POINTS, Inputs, Point, call, candidates, exact, inputs, ragged, repeated
from specc.bench.kernels_attention_peers import peer_rows, peers_of, warm_up_peer
from specc.bench.results import RESULTS
from specc.bench.tune import best_of

BOUND = 4e-3
"""Of a bfloat16 output: half an ulp of it and of the weights of V."""


def configs_of(point: Point, search: bool) -> list[AttentionConfig]:
    """What to measure at a point. Pages and chains take what was found without: they are not searched."""
    found = list(candidates(point))
    return found if search and not point.page and not point.chain else found[:1]


def warm_up(point: Point, config: AttentionConfig) -> None:
    """Compile what a point needs, in a process of its own; small contexts take the same kernels as large ones."""
    torch.cuda.set_device(0)
    call(inputs(point, 0), config)()
    torch.cuda.synchronize()


def compile_all(points: Sequence[Point], search: bool, peers: bool) -> None:
    """Every kernel of the points at once, so that no time goes to compiling one after the other."""
    jobs: dict[tuple[object, ...], partial[None]] = {}
    for point in points:
        small = replace(point, context=min(point.context, 4096))
        for config in configs_of(point, search):
            tiles = point.batch * point.shared * -(-point.nodes * point.heads // point.shared // config.rows)
            split = parts_of(config, tiles, small.context) > 1
            same = (point.heads, point.shared, point.dim, point.page, point.chain, config, split)
            jobs.setdefault(same, partial(warm_up, small, config))
    for point in points if peers else ():
        for name in peers_of(point):
            if name.startswith(("Flex", "sglang")):
                # FlexAttention is compiled for every shape, the others by head dim and nodes.
                sizes = (point.batch, point.context) if name.startswith("Flex") else ()
                jobs.setdefault((name, point.nodes, point.dim, *sizes), partial(warm_up_peer, point, name))
    # What takes longest first.
    ordered = sorted(jobs.values(), key=lambda job: job.args[1] != "FlexAttention")
    compiled_in_parallel(ordered)


def rows_of(point: Point, configs: Sequence[AttentionConfig]) -> Iterator[Row]:
    """A row for each configuration: errors at the point's lengths and at ragged ones, then the time."""
    many = [inputs(point, seed) for seed in range(sets_for(point.read_bytes))]
    other = ragged(many[0])
    exact_of = ((many[0], exact(many[0])), (other, exact(other)))
    label = point.label | ({"bar_us": round(point.bar_us, 1)} if point.bar_us else {})
    for config in configs:
        errors = partial(errors_of, exact_of, config)
        calls = partial(lambda config: repeated([call(one, config) for one in many], point), config)
        yield checked({**label, "config": str(config)}, errors, {"o": BOUND, "ragged": BOUND}, calls, point.read_bytes)


def errors_of(cases: Sequence[tuple[Inputs, torch.Tensor]], config: AttentionConfig) -> Mapping[str, float]:
    """Of the output at both kinds of lengths, poisoned first."""
    found = {}
    for name, (one, expected) in zip(("o", "ragged"), cases, strict=True):
        out = torch.empty_like(one.q)
        poison(out)
        found[name] = error(call(one, config, out)(), expected)
    return found


def measure(result: Report, points: Sequence[Point], search: bool, peers: bool, deadline: float) -> list[str]:
    """Rows of all points, then of the peers; returns what there was no time for."""
    compile_all(points, search, peers)
    print(f"# compiled, {deadline - time.monotonic():.0f} s left", flush=True)
    left = []
    for point in points:
        if time.monotonic() > deadline:
            left.append(f"{point}")
            continue
        for row in rows_of(point, configs_of(point, search)):
            result.add(row)
    for point in points if peers else ():
        if time.monotonic() > deadline:
            left.append(f"peers at {point}")
            continue
        for row in peer_rows(point):
            result.add(row)
    return left


def tune(result: Report, seconds: float) -> Mapping[str, str]:
    """Search all points; the best configuration by geometry, nodes, batch and context."""
    left = measure(result, POINTS, True, False, time.monotonic() + seconds)
    result.write(skipped=left)
    return best_of(result.rows, ("geometry", "kind", "nodes", "batch", "context", "page"))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the points; 1 if a result was wrong."""
    given = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="specc bench kernels --family attention",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--point", action="append", type=int, help=f"only these of 0..{len(POINTS) - 1}")
    parser.add_argument("--search", action="store_true", help="every candidate configuration")
    parser.add_argument("--peers", action="store_true", help="measure what is compared with too")
    parser.add_argument("--seconds", type=float, default=300.0, help="start nothing new after so many")
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="DIR", help="folder of the results")
    args = parser.parse_args(given)
    require_gpu("specc bench kernels")
    begin = time.monotonic()
    result = report("kernels_attention", "specc.bench.kernels_attention", given, args.output)
    points = [POINTS[at] for at in args.point] if args.point else list(POINTS)
    left = measure(result, points, args.search, args.peers, begin + args.seconds)
    result.write(skipped=left, seconds=round(time.monotonic() - begin, 1))
    return int(any(row.get("wrong") for row in result.rows if "peer" not in row))


if __name__ == "__main__":
    sys.exit(main())
