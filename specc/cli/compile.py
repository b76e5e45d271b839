"""`specc compile SPEC`: write the generated module, or the folder of an export."""

from __future__ import annotations

import argparse
import json
import keyword
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specc.cli.common import add_json, add_spec, add_target, load_supported, positive

if TYPE_CHECKING:
    from specc.driver import Compilation

HIDING = sys.stdlib_module_names | {"specc", "torch"}
FOLDERS = ("onnx", "mlir")
"""Targets whose output is a folder."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_spec(parser)
    add_target(parser)
    where = "default: NAME.py here; onnx and mlir: the folder NAME_TARGET"
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=where)
    parser.add_argument("--batch", type=positive, metavar="B", help="onnx, mlir: rows; default: max_batch_size")
    parser.add_argument("--chunk", type=positive, metavar="T", help="onnx, mlir: tokens of one prefill; default: 128")
    parser.add_argument("--dump", type=Path, metavar="DIR", help="write the program after every pass into DIR")
    parser.add_argument("--no-verify", action="store_true", help="skip the IR verifier between passes")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    loaded = load_supported(args)
    from specc.output import check_output, make_folder, write_text

    folder = args.target in FOLDERS
    output = args.output if args.output is not None else _default_output(loaded.spec.name, args.target)
    if folder:
        from specc.backends.export.folder import check_folder
        from specc.backends.export.packages import check_installed

        check_installed(args.target)
        check_folder(output)
    else:
        check_output(output)
    _refuse_the_spec(output, args.spec)
    if args.dump is not None:
        make_folder(args.dump)
    from specc.driver import compile_spec

    done = compile_spec(loaded, args.target, dump=args.dump, verify=not args.no_verify)
    if folder:
        return _report(args, done, output, _export(args, done, output))
    write_text(output, done.source)
    return _report(args, done, output, {"bytes": len(done.source.encode())})


def _export(args: argparse.Namespace, done: Compilation, output: Path) -> dict[str, Any]:
    """Write the folder; what `--json` says of it."""
    from specc.backends.export.export import export_program, sizes_of
    from specc.backends.export.folder import write_folder
    from specc.driver import module_info

    sizes = sizes_of(done.program, args.batch, args.chunk)
    info = module_info(done.loaded, args.target)

    def progress(step: str) -> None:
        if not args.json:
            print(f"  {step}", file=sys.stderr)

    made = export_program(args.target, done.program, info, done.source, sizes, progress)
    write_folder(output, made.files)
    sized = sum(len(content) for content in made.files.values())
    return {"bytes": sized, "batch": sizes.batch, "chunk": sizes.chunk, "files": sorted(made.files)}


def _report(args: argparse.Namespace, done: Compilation, output: Path, facts: dict[str, Any]) -> int:
    records = done.passes.records
    if args.json:
        passes = [
            {"name": record.name, "changed": record.changed, "seconds": record.seconds + record.check_seconds}
            for record in records
        ]
        print(json.dumps({"output": str(output), **facts, "passes": passes}, indent=2))
        return 0
    changed = ", ".join(record.name for record in records if record.changed)
    size = f"{len(done.source.splitlines())} lines"
    if "files" in facts:
        size = f"{len(facts['files'])} files, batch {facts['batch']}, prefill of {facts['chunk']}"
    print(f"wrote {output} ({size}); passes that changed the program: {changed}")
    return 0


def _default_output(name: str, target: str) -> Path:
    """NAME.py; refused (SPC460) if nobody could import it, or if it would be imported in place of another module."""
    from specc.output import cannot_write

    stem = name.replace("-", "_")
    if target in FOLDERS:
        return Path(f"{stem}_{target}")
    if keyword.iskeyword(stem) or stem in HIDING:
        reason = "no module can have this name" if keyword.iskeyword(stem) else f"it would hide the module `{stem}`"
        raise cannot_write(f"{stem}.py", reason, "give another file with -o, or change the spec's `name`")
    return Path(f"{stem}.py")


def _refuse_the_spec(output: Path, spec: Path) -> None:
    """Refuse (SPC460) to write the module over its own spec."""
    from specc.output import cannot_write

    if output.exists() and output.samefile(spec):
        raise cannot_write(output, "it is the spec", "give another file with -o")
