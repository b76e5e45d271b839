"""`specc bench NAME …`: benchmarks."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping

from specc.cli.common import add_json
from specc.diagnostics import DiagnosticError, error

BENCHMARKS: Mapping[str, str] = {
    "demo": "specc.bench.demo",
    "parity": "specc.bench.parity",
    "cpu-speed": "specc.bench.cpu_speed",
    "lossless-matrix": "specc.bench.lossless_matrix",
    "traffic": "specc.bench.traffic",
    "kernels": "specc.bench.kernels",
    "step": "specc.bench.step",
    "profile": "specc.bench.profile",
    "tune": "specc.bench.tune",
    "soak": "specc.bench.soak",
    "specla": "specc.bench.specla.main",
    "tables": "specc.bench.tables",
    "eagle-pangu": "specc.bench.eagle_pangu.command",
    "ascend": "specc.bench.ascend",
}
"""Name -> the module whose `main` it is. They import torch, so they are imported only when they are run."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help=f"the benchmark: {', '.join(BENCHMARKS)}")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="…", help="its own options (--help lists them)")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    if args.name not in BENCHMARKS:
        known = ", ".join(BENCHMARKS)
        raise DiagnosticError([error("SPC290", f"there is no benchmark `{args.name}`", help=f"there are {known}")])
    main = importlib.import_module(BENCHMARKS[args.name]).main
    # Only `traffic` prints JSON instead of text; the others write it to a file.
    status: int = main([*args.arguments, "--json"] if args.json and args.name == "traffic" else args.arguments)
    return status
