"""The `specc` command. Parsing only: each command is one file, which imports what it needs when it runs.

Exit codes: 0 fine; 1 a check failed; 2 the user's input is wrong; 3 an internal error.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Protocol, cast

from specc import __version__
from specc.cli.failure import Boundary

COMMANDS: dict[str, str] = {
    "compile": "compile a spec to a standalone Python module",
    "check": "property-based run: passes, invariants, generated module",
    "run": "decode prompts with a model by the compiled spec",
    "report": "write one HTML page of results, a trace and a compiled spec",
    "trace": "compare two traces, export one as a timeline, sum one up",
    "bench": "kernels, end to end, budget sweep, ablations: tables, plots, JSON",
    "tune": "choose the draft tree that decodes fastest on a device",
    "show": "print a spec's program, after a pass",
    "why": "say why a pass did or did not fire on a spec",
    "explain": "explain a diagnostic code",
    "schema": "print the JSON Schema of the spec language",
    "doctor": "say what this machine can compile and run",
    "train": "train a small model: corpus, tokenizer, baseline, weights, model card",
    "fetch": "fetch a model into the cache, checked by sha256",
    "verify": "check a generated module against its own header",
}


COMPILING = ("compile", "check", "show", "why", "tune")
"""Commands that make large graphs and trees and keep them. Python's collector walks over all of them again and again,
which is a sixth of the time of `check`: it runs less often there."""


class Command(Protocol):
    """What the module of a command provides."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int: ...


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. SystemExit is raised by argparse only (usage, --help)."""
    words = list(sys.argv[1:] if argv is None else argv)
    _prepare_streams()
    boundary = Boundary(words)
    with boundary:
        try:
            boundary.exit_code = _run(words, boundary)
        finally:
            sys.stdout.flush()  # here, where errors are still caught
    return boundary.exit_code


def _run(words: Sequence[str], boundary: Boundary) -> int:
    """Parse and run, and tell `boundary` what a report of an error needs."""
    name = next((word for word in words if not word.startswith("-")), None)
    if name not in COMMANDS or words[0] != name:
        _top_parser().parse_args(words)
        return 2
    command = cast(Command, importlib.import_module(f"specc.cli.{name}"))
    parser = argparse.ArgumentParser(prog=f"specc {name}", description=COMMANDS[name])
    command.add_arguments(parser)
    args = parser.parse_args(words[1:])
    boundary.spec, boundary.as_json = getattr(args, "spec", None), getattr(args, "json", False)
    if name in COMPILING:
        gc.set_threshold(50_000, 20, 50)
    return command.run(args)


def _prepare_streams() -> None:
    """What a stream can't show (`…` in ASCII, a file name that is not UTF-8) is escaped; a closed one takes nothing."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  # open as long as the process
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _top_parser() -> argparse.ArgumentParser:
    """The parser of `specc` without a known command: help, version, or a usage error."""
    width = max(len(name) for name in COMMANDS)
    listing = "\n".join(f"  {name:{width}}  {text}" for name, text in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="specc",
        description="A compiler for speculative decoding: from a YAML spec to a standalone module.",
        epilog=f"commands:\n{listing}\n\n`specc COMMAND --help` lists a command's options.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"specc {__version__}")
    parser.add_argument("command", choices=tuple(COMMANDS), metavar="COMMAND")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="…")
    return parser
