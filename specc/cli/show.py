"""`specc show SPEC`: print the program of a spec, as lowered or after a pass."""

from __future__ import annotations

import argparse

from specc.cli.common import add_json, add_spec, add_target, load_supported, not_built


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_spec(parser)
    add_target(parser)
    parser.add_argument("--after", metavar="PASS", help="after this pass; `lower` for the naive program")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    load_supported(args)
    raise not_built("the pass pipeline")
