"""`specc compile SPEC`: write the generated module."""

from __future__ import annotations

import argparse
import json
import keyword
import sys
from pathlib import Path

from specc.cli.common import add_json, add_spec, add_target, load_supported

HIDING = sys.stdlib_module_names | {"specc", "torch"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_spec(parser)
    add_target(parser)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="default: NAME.py here")
    parser.add_argument("--dump", type=Path, metavar="DIR", help="write the program after every pass into DIR")
    parser.add_argument("--no-verify", action="store_true", help="skip the IR verifier between passes")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    loaded = load_supported(args)
    from specc.output import check_output, make_folder, write_text

    output = args.output if args.output is not None else _default_output(loaded.spec.name)
    check_output(output)
    _refuse_the_spec(output, args.spec)
    if args.dump is not None:
        make_folder(args.dump)
    from specc.driver import compile_spec

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


def _default_output(name: str) -> Path:
    """NAME.py; refused (SPC460) if nobody could import it, or if it would be imported in place of another module."""
    from specc.output import cannot_write

    stem = name.replace("-", "_")
    if keyword.iskeyword(stem) or stem in HIDING:
        reason = "no module can have this name" if keyword.iskeyword(stem) else f"it would hide the module `{stem}`"
        raise cannot_write(f"{stem}.py", reason, "give another file with -o, or change the spec's `name`")
    return Path(f"{stem}.py")


def _refuse_the_spec(output: Path, spec: Path) -> None:
    """Refuse (SPC460) to write the module over its own spec."""
    from specc.output import cannot_write

    if output.exists() and output.samefile(spec):
        raise cannot_write(output, "it is the spec", "give another file with -o")
