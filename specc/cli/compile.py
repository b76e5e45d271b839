"""`specc compile SPEC`: write the generated module."""

from __future__ import annotations

import argparse
from pathlib import Path

from specc.cli.common import add_json, add_spec, add_target, load_supported, not_built


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_spec(parser)
    add_target(parser)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="default: NAME.py here")
    parser.add_argument("--dump", type=Path, metavar="DIR", help="write the program after every pass into DIR")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    load_supported(args)
    raise not_built("the compile driver")
