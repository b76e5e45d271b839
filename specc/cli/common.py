"""Arguments and small helpers that several commands share. Imports of the compiler happen inside functions."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from specc.diagnostics import Diagnostic, DiagnosticError, error, render_text

if TYPE_CHECKING:
    from specc.spec import LoadedSpec


def add_spec(parser: argparse.ArgumentParser) -> None:
    """SPEC and `--set`."""
    parser.add_argument("spec", type=Path, metavar="SPEC", help="a decoding spec (YAML)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY.PATH=VALUE",
        dest="overrides",
        help="override a key of the spec, such as commit.update=deferred (may be repeated)",
    )


def add_target(parser: argparse.ArgumentParser) -> None:
    """`--target`; unknown names are left to the compiler, which explains them (SPC200)."""
    names = "reference (default), triton, ascend, onnx or mlir"
    parser.add_argument("--target", default="reference", metavar="NAME", help=names)


def add_json(parser: argparse.ArgumentParser) -> None:
    """`--json`."""
    parser.add_argument("--json", action="store_true", help="print results, and errors, as JSON")


def load_spec(args: argparse.Namespace) -> LoadedSpec:
    """The spec of `args`, its warnings printed. Raises SpecError."""
    from specc.spec import load

    loaded = load(args.spec, args.overrides)
    warn(loaded.warnings)
    return loaded


def load_supported(args: argparse.Namespace) -> LoadedSpec:
    """The spec of `args` if `args.target` can compile it. Raises SpecError or DiagnosticError (SPC2xx)."""
    from specc.spec import unsupported

    loaded = load_spec(args)
    refusals = unsupported(loaded, args.target)
    if refusals:
        raise DiagnosticError(refusals)
    return loaded


def warn(diagnostics: Sequence[Diagnostic]) -> None:
    """Print warnings to stderr."""
    if diagnostics:
        print(render_text(diagnostics), file=sys.stderr)


def positive(text: str) -> int:
    """argparse type: a whole number of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def not_built(what: str) -> DiagnosticError:
    """SPC290 for a part of the compiler that does not exist yet."""
    return DiagnosticError([error("SPC290", f"{what} is not built yet", help="it is part of a later version")])
