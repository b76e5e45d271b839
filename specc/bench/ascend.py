"""What specs become on Ascend, seen without an NPU: GE ops per layer, and the rungs of the test ladder that they climb.

    specc bench ascend SPEC... [--rungs] [--dtype float16] [--batch 1]

Without `--rungs`: ops of one layer in the graph of a whole step, and every Transpose and Cast with its source line and
the reason why it is there. With `--rungs`: a Markdown table of specs and rungs; numbers are the largest errors, of
eager operators from float64 and of GE graphs from eager operators. Needs `specc fetch torch-npu`, ONNX Runtime, IREE.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from specc.bench.ascend_counts import LayerCount, step_count
from specc.bench.ascend_reasons import NO_OP, reason
from specc.bench.ascend_rungs import row
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


def table(paths: Sequence[Path]) -> bool:
    """Print the table; whether every rung was climbed."""
    whole = True
    for number, path in enumerate(paths):
        cells = row(load(path))
        if number == 0:
            print(f"| spec | {' | '.join(cell.rung for cell in cells)} |\n| --- |{' --- |' * len(cells)}")
        print(f"| {path.stem} | {' | '.join(cell.text for cell in cells)} |", flush=True)
        whole &= all(cell.ok for cell in cells)
    return whole


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 1 where a rung of the table is not climbed."""
    parser = argparse.ArgumentParser(prog="specc bench ascend", description=__doc__.split("\n")[0])
    parser.add_argument("specs", nargs="+", type=Path, metavar="SPEC")
    parser.add_argument("--rungs", action="store_true", help="the table of specs and rungs")
    parser.add_argument("--dtype", default="float16", metavar="TYPE", help="of the counted graphs: float16, bfloat16")
    parser.add_argument("--batch", type=int, default=1, metavar="B", help="of the counted graphs")
    args = parser.parse_args(list(sys.argv[1:] if argv is None else argv))
    if args.rungs:
        return 0 if table(args.specs) else 1
    for path in args.specs:
        counts(path, args.dtype, args.batch)
    return 0


if __name__ == "__main__":
    sys.exit(main())
