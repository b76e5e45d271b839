"""Times of the fused linear layers on a CUDA machine, each checked against float64 before it is timed.

    python -m specc.bench.kernels_linear [--part NAME ...] [--model NAME ...] [--output FOLDER] [--seconds S]

Parts: `gemm`: every linear layer of three models with the table's configuration for several numbers of rows, beside
torch (the product alone, and with its norm, gate and residual as torch's kernels); `search`: other configurations;
`chain`: all linear layers of a model in one graph, with and without programmatic dependent launch, beside torch. A
configuration whose result is wrong, or where a row's bits depend on the number of rows, is reported and not timed.
Results: specc/bench/results/kernels_linear.json.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from specc.backends.triton.ops.linear import LinearConfig, composed
from specc.bench.gpu_timing import (
    Report,
    Row,
    checked,
    compiled_in_parallel,
    guarded,
    report,
    require_gpu,
    timed,
)
from specc.bench.linear_cases import (
    BOUNDS,
    EPS,
    MODELS,
    ROWS,
    Gemm,
    Model,
    calls,
    candidates,
    chosen,
    errors,
    operands,
    weights,
)
from specc.bench.linear_chain import FEW, MANY, chain_part, tuned_chain
from specc.bench.results import RESULTS


def text(config: LinearConfig) -> str:
    """A configuration in one line."""
    return " ".join([type(config).__name__, *(f"{name}={value}" for name, value in asdict(config).items())])


def warm(gemm: Gemm, config: LinearConfig, rows: Sequence[int]) -> None:
    """Compiles what a configuration needs (in a process of its own: compiled kernels are kept on disk)."""
    weight = torch.zeros(gemm.shape, device="cuda", dtype=torch.bfloat16)
    for count in rows:
        operands(gemm, count, weight).launch(gemm, config)
    torch.cuda.synchronize()


def one(gemm: Gemm, owner: str, config: LinearConfig, many: Sequence[Tensor], rows: int, invariant: bool) -> Row:
    """A configuration at one number of rows: checked, then timed."""
    label = {"model": owner, "gemm": gemm.name, "weight": list(gemm.shape), "rows": rows, "config": text(config)}
    return checked(
        label,
        partial(errors, gemm, config, many[0], rows, invariant),
        BOUNDS if invariant else {"y": BOUNDS["y"]},
        partial(calls, gemm, config, many, rows),
        float(gemm.bytes),
    )


def gemm_part(models: Sequence[Model], some: Sequence[int] | None = None) -> Iterator[Row]:
    """The table's configuration, beside torch."""
    for owner in models:
        for gemm in (*owner.gemms, owner.head):
            many = weights(gemm)
            for rows in some or ROWS:
                config = chosen(gemm, rows)
                row = {
                    "model": owner.name,
                    "gemm": gemm.name,
                    "weight": list(gemm.shape),
                    "rows": rows,
                    "config": "torch",
                }
                if config is not None:
                    row = one(gemm, owner.name, config, many, rows, rows in (16, 128))
                each = operands(gemm, rows, many[0])
                alone = [partial(torch.nn.functional.linear, each.x, weight) for weight in many]
                activation = "silu_mul" if gemm.gated else "none"
                whole = [
                    partial(composed, each.x, weight, None, each.norm, EPS, activation, each.residual)
                    for weight in many
                ]
                yield row | timed(alone).row("torch_product_us") | timed(whole).row("torch_us")
            del many


def search_part(models: Sequence[Model], some: Sequence[int] | None = None) -> Iterator[Row]:
    """Other configurations, for one and for 16 rows."""
    for owner in models:
        for gemm in (*owner.gemms, owner.head):
            many = weights(gemm)
            for config in candidates(gemm):
                first = one(gemm, owner.name, config, many, 16, False)
                yield first
                if not first["wrong"]:
                    yield one(gemm, owner.name, config, many, 1, False)
            del many


PARTS = {"gemm": gemm_part, "search": search_part, "chain": chain_part}


def compile_ahead(models: Sequence[Model], parts: Sequence[str]) -> None:
    """All kernels of the parts, side by side."""
    jobs: dict[tuple[object, ...], partial[None]] = {}
    for owner in models:
        for gemm in (*owner.gemms, owner.head):
            needed = [(chosen(gemm, count), counts) for count, counts in ((1, (1, 32)), (MANY[-1], MANY))]
            if "search" in parts:
                needed += [(config, counts[-1:]) for counts in (FEW, MANY) for config in candidates(gemm, counts[-1])]
            for config, counts in needed:
                if config is not None:
                    key = (gemm.norm, gemm.gated, gemm.residual, gemm.hidden, config, counts)
                    jobs.setdefault(key, partial(warm, gemm, config, counts))
    compiled_in_parallel(list(jobs.values()))


def tune(result: Report, seconds: float) -> Mapping[str, str]:
    """The configurations with which a model's chain is fastest, layer by layer."""
    begin, table = time.monotonic(), dict[str, str]()
    for owner in MODELS.values():
        if time.monotonic() - begin > seconds:
            break
        compile_ahead([owner], ["search"])
        for counts in (FEW, MANY):
            label: Row = {"part": "tune", "model": owner.name, "rows": list(counts)}
            for row in guarded(label, tuned_chain(owner, counts)):
                result.add(label | row)
                found = row.get("table", {}).items()
                table |= {f"{owner.name} {name}, up to {counts[-1]} rows": config for name, config in found}
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the parts; 1 if a configuration gave wrong results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=[*PARTS], help="only these (default: gemm and chain)")
    parser.add_argument("--model", action="append", choices=[*MODELS], help="only these (default: all)")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of kernels_linear.json")
    parser.add_argument("--seconds", type=float, default=120.0, help="start no further model after so many seconds")
    parser.add_argument("--rows", type=int, action="append", help="numbers of rows, of gemm and chain")
    parser.add_argument("--peers", action="store_true", help="torch is always beside; there is no other peer")
    given = parser.parse_args(arguments)
    require_gpu("specc bench kernels --family linear")
    begin = time.monotonic()
    result = report("kernels_linear", "specc.bench.kernels_linear", arguments, given.output)
    parts = given.part or ["gemm", "chain"]
    owners = [MODELS[name] for name in given.model or MODELS]
    compile_ahead(owners, parts)
    print(f"# compiled: {time.monotonic() - begin:.0f} s", flush=True)
    for part in parts:
        for owner in owners:
            if time.monotonic() - begin > given.seconds:
                print(f"# {part} {owner.name}: left out, no time", flush=True)
                continue
            for row in guarded({"part": part, "model": owner.name}, PARTS[part]([owner], given.rows)):
                result.add({"part": part, **row})
            print(f"# {part} {owner.name}: {time.monotonic() - begin:.0f} s", flush=True)
    return int(result.wrong)


if __name__ == "__main__":
    sys.exit(main())
