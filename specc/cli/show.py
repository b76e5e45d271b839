"""`specc show SPEC`: print the program of a spec, as lowered or after a pass."""

from __future__ import annotations

import argparse
import json

from specc.cli.common import add_json, add_spec, add_target, load_supported


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_spec(parser)
    add_target(parser)
    parser.add_argument("--after", metavar="PASS", help="after this pass; `lower` for the naive program")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    loaded = load_supported(args)
    from specc.driver import lower_spec, run_passes
    from specc.ir.printer import fingerprint, print_program

    program = run_passes(loaded, lower_spec(loaded, args.target), target=args.target, until=args.after).program
    text = print_program(program)
    if args.json:
        print(json.dumps({"after": args.after, "fingerprint": fingerprint(program), "ir": text}, indent=2))
    else:
        print(text, end="")
    return 0
