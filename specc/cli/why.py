"""`specc why SPEC PASS`: why a pass fired or did not."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from specc.cli.common import add_json, add_spec, add_target, load_supported

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specc.diagnostics import Span
    from specc.manager import Note


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_spec(parser)
    parser.add_argument("pass_name", metavar="PASS", help="a pass, such as layer-major")
    add_target(parser)
    add_json(parser)


def _place(note: Note, spans: Mapping[str, Span]) -> Span | None:
    return next((spans[key] for key in note.keys if key in spans), None)


def run(args: argparse.Namespace) -> int:
    loaded = load_supported(args)
    from specc.driver import lower_spec, run_passes, spans_of

    result = run_passes(loaded, lower_spec(loaded, args.target), target=args.target, until=args.pass_name)
    spans = spans_of(loaded)
    notes = result.notes(args.pass_name)
    if args.json:
        entries = [
            {"graph": n.graph, "fired": n.fired, "message": n.message, "span": str(_place(n, spans) or "") or None}
            for n in notes
        ]
        print(json.dumps({"pass": args.pass_name, "notes": entries}, indent=2))
        return 0
    if not notes:
        print(f"{args.pass_name}: nothing to report")
    for note in notes:
        place = _place(note, spans)
        where = f"  ({place})" if place is not None else ""
        print(f"{'fired' if note.fired else 'did not fire'}: {note.graph}: {note.message}{where}")
    return 0
