"""`specc trace …`: compare, export and sum up the files that `specc run --trace` writes."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specc.cli.common import add_json
from specc.cli.failure import CHECK_FAILED, FINE

if TYPE_CHECKING:
    from specc.trace.diff import Comparison, StageTimes

DESCRIPTION = """\
diff A B: the first difference of every request, in words; timings don't count (exit code 0: equal, 1: different).
perfetto A -o FILE: a timeline for ui.perfetto.dev or chrome://tracing.
summary A: acceptance by depth, share of every stage, each request's numbers.
"""
IGNORABLE = (*("seed", "spec", "pipeline", "name"), *("drafted", "parent", "path", "accept_length", "bonus", "emitted"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = f"{parser.description}\n\n{DESCRIPTION}"
    what = parser.add_subparsers(dest="what", required=True, metavar="diff|perfetto|summary")
    diff = what.add_parser("diff", help="compare two traces")
    diff.add_argument("a", type=Path, metavar="A", help="a trace file")
    diff.add_argument("b", type=Path, metavar="B", help="another")
    diff.add_argument("--timing", action="store_true", help="show a table of both runs' times by stage, too")
    diff.add_argument("--texts", action="store_true", help="compare the emitted texts, whatever the steps were")
    diff.add_argument(
        "--ignore",
        action="append",
        default=[],
        choices=IGNORABLE,
        metavar="FIELD",
        help="leave a field out, such as spec and pipeline where two specs are compared (may be repeated)",
    )
    add_json(diff)
    export = what.add_parser("perfetto", help="write Chrome trace events")
    export.add_argument("a", type=Path, metavar="A", help="a trace file")
    export.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="where the JSON goes")
    summed = what.add_parser("summary", help="numbers of one trace")
    summed.add_argument("a", type=Path, metavar="A", help="a trace file")
    add_json(summed)


def run(args: argparse.Namespace) -> int:
    if args.what == "diff":
        return _diff(args)
    if args.what == "perfetto":
        return _perfetto(args)
    from specc.trace.read import read_trace
    from specc.trace.summary import summary, summary_text

    found = summary(read_trace(args.a))
    print(json.dumps(found, sort_keys=True) if args.json else _plain(summary_text(found)))
    return FINE


def _diff(args: argparse.Namespace) -> int:
    """Exit code 0: equal; 1: different."""
    from specc.trace.diff import compare, compare_texts, compare_timing
    from specc.trace.read import read_trace

    a, b = read_trace(args.a), read_trace(args.b)
    found = compare_texts(a, b) if args.texts else compare(a, b, args.ignore)
    times = compare_timing(a, b) if args.timing else []
    if args.json:
        result: dict[str, Any] = {
            "equal": found.equal,
            "equal_requests": found.equal_requests,
            "differences": [item.as_json() for item in found.differences],
        }
        if args.timing:
            keys = ("stage", "seconds", "runs", "ratio")
            result["timing"] = [{key: getattr(item, key) for key in keys} for item in times]
        print(json.dumps(result, sort_keys=True))
    else:
        print(_plain("\n".join([*_differences(found), *_table(times)])))
    return FINE if found.equal else CHECK_FAILED


def _differences(found: Comparison) -> list[str]:
    lines = [
        item.text if item.request is None else f"request {item.request} ({item.name}): {item.text}"
        for item in found.differences
    ]
    if found.equal:
        return [f"equal: {found.equal_requests} requests"]
    different = sum(item.request is not None for item in found.differences)
    return [*lines, f"{different} requests differ, {found.equal_requests} are equal"]


def _table(times: list[StageTimes]) -> list[str]:
    """Seconds per run: a batch's step is one run, however many rows it has."""
    if not times:
        return []
    lines = ["", f"{'stage':10} {'A ms/run':>10} {'B ms/run':>10} {'B / A':>7} {'A runs':>7} {'B runs':>7}"]
    for item in times:
        each = [
            f"{seconds / runs * 1e3:10.3f}" if runs else f"{'-':>10}"
            for seconds, runs in zip(item.seconds, item.runs, strict=True)
        ]
        ratio = "-" if item.ratio is None else f"{item.ratio:.3f}"
        lines.append(f"{item.stage:10} {each[0]} {each[1]} {ratio:>7} {item.runs[0]:7} {item.runs[1]:7}")
    return lines


def _perfetto(args: argparse.Namespace) -> int:
    from specc.output import check_output, write_text
    from specc.trace.perfetto import perfetto
    from specc.trace.read import read_trace

    check_output(args.output)
    trace = read_trace(args.a)
    document = perfetto(trace)
    write_text(args.output, json.dumps(document, separators=(",", ":")) + "\n")
    print(f"wrote {args.output}: {len(document['traceEvents'])} events of {len(trace.requests)} requests")
    return FINE


def _plain(text: str) -> str:
    """Names of prompts come from files: nothing in them reaches the terminal as a control character."""
    from specc.diagnostics import printable

    return printable(text, keep="\n")
