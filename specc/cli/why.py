"""`specc why SPEC PASS`: why a pass fired or did not."""

from __future__ import annotations

import argparse

from specc.cli.common import add_json, add_spec, add_target, load_supported, not_built


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_spec(parser)
    parser.add_argument("pass_name", metavar="PASS", help="a pass, such as layer-major")
    add_target(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    load_supported(args)
    raise not_built("the pass pipeline")
