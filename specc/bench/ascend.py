"""What specs become on Ascend, seen without an NPU: GE ops per layer, and the rungs of the test ladder that they climb.

    specc bench ascend SPEC... [--dtype float16] [--batch 1]
    specc bench ascend SPEC... --rungs [--rung NAME ...] [--dtype TYPE ...] [--batch B ...] [--thin] [--name NAME]

Without `--rungs`: ops of one layer in the graph of a whole step, and every Transpose and Cast with its source line and
the reason why it is there. With `--rungs`: a Markdown table of specs, rungs, types and batches, the whole product
unless some are named: the largest errors, of every rung from the float64 reference and of GE graphs from the eager
operators, beside their bounds. `--name` keeps the cells in results/NAME.json as they come; a cell of it whose
module has not changed is not run again. Needs `specc fetch torch-npu`, ONNX Runtime, IREE.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from specc.bench import ascend_table
from specc.bench.ascend_counts import LayerCount, step_count
from specc.bench.ascend_reasons import NO_OP, reason
from specc.bench.ascend_rungs import BATCHES, DTYPES, RUNGS, WALKS, Cell, cells, check_rungs, places, thinned
from specc.bench.ascend_table import markdown, shown
from specc.bench.results import environment, keep
from specc.spec import load


def layer_lines(layer: LayerCount) -> list[str]:
    """One layer's ops, most frequent first, and its movers with reasons."""
    ordered = sorted(layer.ops.items(), key=lambda item: (-item[1], item[0]))
    idle = sum(count for kind, line, made_for, count in layer.movers if reason(kind, line, made_for) == NO_OP)
    rest = f" ({layer.total - idle} without {idle} casts of a type to itself)" if idle else ""
    lines = [f"  {layer.kind} layer: {layer.total} ops{rest}"]
    lines.append("    " + ", ".join(f"{name} {count:g}" for name, count in ordered))
    for kind, line, made_for, count in layer.movers:
        lines += [f"    {kind} x {count}: {line}", f"      {reason(kind, line, made_for)}"]
    return lines


def counts(path: Path, dtype: str, batch: int) -> None:
    """Print the counts of a spec."""
    found = step_count(load(path), dtype, batch)
    print(f"{path.stem}, {dtype}, batch {batch}: {found.copies} TensorMove, {found.dirty} updates not in place")
    for layer in found.layers:
        print("\n".join(layer_lines(layer)))


def table(args: argparse.Namespace, arguments: Sequence[str]) -> bool:
    """Run the product and print its table; whether no cell failed."""
    known = ascend_table.read(args.name) if args.name else []
    made: dict[str, Any] = {"environment": environment("specc bench ascend", list(arguments)), "walks": WALKS}
    found: list[Cell] = []
    dtypes, batches = args.dtype or list(DTYPES), args.batch or list(BATCHES)
    take = thinned if args.thin else places
    product = take([path.stem for path in args.specs], args.rung or list(RUNGS), dtypes, batches)
    for path in args.specs:
        wanted = [place for place in product if place.spec == path.stem]
        for cell in cells(load(path), wanted, known):
            found.append(replace(cell, commit=cell.commit or made["environment"]["commit"]))
            place = cell.place
            print(f"{place.spec} {place.rung} {place.dtype} {place.batch}: {shown(cell)} {cell.why}", file=sys.stderr)
            if args.name:
                kept = {cell.place: cell for cell in (*known, *found)}
                keep(args.name, {**made, "cells": [cell.as_json() for cell in kept.values()]}, quiet=True)
    print(markdown(found))
    return all(cell.ok for cell in found)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 1 where a rung of the table is not climbed."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="specc bench ascend", description=__doc__.split("\n")[0])
    parser.add_argument("specs", nargs="+", type=Path, metavar="SPEC")
    parser.add_argument("--rungs", action="store_true", help="the table of specs, rungs, types and batches")
    parser.add_argument("--rung", action="append", choices=RUNGS, metavar="NAME", help=f"of {', '.join(RUNGS)}")
    parser.add_argument("--dtype", action="append", choices=DTYPES, metavar="TYPE", help=f"of {', '.join(DTYPES)}")
    parser.add_argument("--batch", action="append", type=int, metavar="B", help="rows; counted graphs: 1")
    parser.add_argument("--thin", action="store_true", help="of every spec and rung one type and batch, in turn")
    parser.add_argument("--name", metavar="NAME", help="keep the cells of --rungs in results/NAME.json")
    args = parser.parse_args(arguments)
    if args.rungs:
        check_rungs(args.rung or RUNGS)
        torch.set_num_threads(1)  # models are tiny: threads cost more than they give
        return 0 if table(args, arguments) else 1
    for path in args.specs:
        for dtype in args.dtype or ["float16"]:
            for batch in args.batch or [1]:
                counts(path, dtype, batch)
    return 0


if __name__ == "__main__":
    sys.exit(main())
