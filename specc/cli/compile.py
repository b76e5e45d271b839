"""`specc compile SPEC`: write the generated module."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from specc.cli.common import add_json, add_spec, add_target, load_supported


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_spec(parser)
    add_target(parser)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="default: NAME.py here")
    parser.add_argument("--dump", type=Path, metavar="DIR", help="write the program after every pass into DIR")
    parser.add_argument("--no-verify", action="store_true", help="skip the IR verifier between passes")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    loaded = load_supported(args)
    from specc.driver import compile_spec
    from specc.output import write_text

    output: Path = args.output or Path(loaded.spec.name.replace("-", "_") + ".py")
    done = compile_spec(loaded, args.target, dump=args.dump, verify=not args.no_verify)
    write_text(output, done.source)
    seconds = {record.name: record.seconds + record.check_seconds for record in done.passes.records}
    if args.json:
        report = {
            "output": str(output),
            "bytes": len(done.source.encode()),
            "passes": [
                {"name": record.name, "changed": record.changed, "seconds": seconds[record.name]}
                for record in done.passes.records
            ],
        }
        print(json.dumps(report, indent=2))
        return 0
    changed = [record.name for record in done.passes.records if record.changed]
    print(
        f"wrote {output} ({len(done.source.splitlines())} lines); passes that changed the program: {', '.join(changed)}"
    )
    return 0
