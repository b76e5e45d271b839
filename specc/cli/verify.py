"""`specc verify MODULE`: recompute the hash in a generated module's header."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from specc.cli.common import add_json
from specc.cli.failure import CHECK_FAILED, FINE
from specc.diagnostics import render_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("module", type=Path, metavar="MODULE", help="a generated module")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    from specc.runtime.verify_file import check_file

    check = check_file(args.module)
    if args.json:
        finding = None if check.finding is None else check.finding.as_json()
        report = {"module": str(args.module), "unchanged": finding is None, "header": check.header, "finding": finding}
        print(json.dumps(report, sort_keys=True))
    elif check.finding is None:
        print(f"{args.module} is unchanged since it was generated")
        for name, value in check.header.items():
            print(f"  {name:22}{value}")
    else:
        print(render_text([check.finding]), file=sys.stderr)
    return FINE if check.finding is None else CHECK_FAILED
