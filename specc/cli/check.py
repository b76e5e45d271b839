"""`specc check SPEC`: property-based run over passes, invariants and the generated module."""

from __future__ import annotations

import argparse

from specc.cli.common import add_json, add_spec, add_target, load_supported, not_built, positive


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_spec(parser)
    add_target(parser)
    parser.add_argument("--max-examples", type=positive, default=200, metavar="N", help="default: 200")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="repeat a run; default: 0")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    load_supported(args)
    raise not_built("the property-based check")
