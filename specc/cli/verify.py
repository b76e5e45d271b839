"""`specc verify MODULE`: recompute the hashes in a generated module's header."""

from __future__ import annotations

import argparse
from pathlib import Path

from specc.cli.common import add_json, not_built


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("module", type=Path, metavar="MODULE", help="a generated module")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    raise not_built("the header check")
