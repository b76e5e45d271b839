"""`specc bench NAME …`: benchmarks."""

from __future__ import annotations

import argparse

from specc.cli.common import add_json, not_built


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the benchmark")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="…", help="its own options")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    raise not_built(f"the benchmark `{args.name}`")
