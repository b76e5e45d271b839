"""`specc fetch MODEL`: a model into the cache folder, checked by sha256, resumable."""

from __future__ import annotations

import argparse
from pathlib import Path

from specc.cli.common import add_json, not_built


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a known model, such as smollm2-135m-instruct")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="default: the user's cache folder")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    raise not_built("fetching")
