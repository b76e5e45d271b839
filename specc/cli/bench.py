"""`specc bench NAME …`: benchmarks."""

from __future__ import annotations

import argparse

from specc.cli.common import add_json
from specc.diagnostics import DiagnosticError, error

NAMES = ("demo", "parity", "cpu-speed", "lossless-matrix", "traffic")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help=f"the benchmark: {', '.join(NAMES)}")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="…", help="its own options (--help lists them)")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    if args.name not in NAMES:
        known = ", ".join(NAMES)
        raise DiagnosticError([error("SPC290", f"there is no benchmark `{args.name}`", help=f"there are {known}")])
    if args.name == "demo":
        from specc.bench.demo import main
    elif args.name == "parity":
        from specc.bench.parity import main
    elif args.name == "lossless-matrix":
        from specc.bench.lossless_matrix import main
    elif args.name == "traffic":
        from specc.bench.traffic import main
    else:
        from specc.bench.cpu_speed import main
    return main([*args.arguments, "--json"] if args.json and args.name == "traffic" else args.arguments)
