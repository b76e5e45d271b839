"""`specc explain CODE`: what a diagnostic code means, with an example that raises it."""

from __future__ import annotations

import argparse
import json
import textwrap

from specc.cli.common import add_json
from specc.codes import CODES, Code
from specc.diagnostics import DiagnosticError, error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("code", nargs="?", metavar="CODE", help="a code such as SPC020; none: list them all")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    if args.code is None:
        listed = [{"code": entry.code, "title": entry.title} for entry in CODES.values()]
        print(json.dumps(listed) if args.json else "\n".join(f"{e['code']}  {e['title']}" for e in listed))
        return 0
    entry = CODES.get(args.code.upper())
    if entry is None:
        raise DiagnosticError(
            [
                error(
                    "SPC901",
                    f"there is no diagnostic code `{args.code}`",
                    help="codes look like SPC020; `specc explain` lists them all",
                )
            ]
        )
    print(json.dumps(_as_json(entry)) if args.json else _as_text(entry))
    return 0


def _as_json(entry: Code) -> dict[str, object]:
    return {
        "code": entry.code,
        "title": entry.title,
        "explanation": entry.explanation,
        "example": entry.example,
        "overrides": list(entry.overrides),
    }


def _as_text(entry: Code) -> str:
    parts = [f"{entry.code}: {entry.title}", textwrap.fill(entry.explanation, width=100)]
    if entry.example:
        example = textwrap.indent(entry.example.rstrip("\n"), "    ")
        flags = "".join(f"\n    --set '{text}'" for text in entry.overrides)
        parts.append(f"Example:\n\n{example}{flags}")
    return "\n\n".join(parts)
