"""Markdown tables of kernel results: specc beside every peer.

    specc bench tables FILE.json --by KEY [--by KEY ...] [--where KEY=VALUE ...] [--floor]

One line for each combination of the `--by` keys' values; in it the fastest right time of specc's rows (those without
`peer`) and of each peer's, in microseconds, and how much faster specc is than the fastest peer. Rows that were wrong or
failed don't count. The device, the versions, the commit and the command stand below.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from specc.diagnostics import DiagnosticError, error

OWN = "specc"
Row = Mapping[str, Any]


def read(path: Path) -> dict[str, Any]:
    """A result file. Raises DiagnosticError (SPC293) for anything else."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        found["rows"][:0]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        message = f"{path} holds no rows of a benchmark: {problem}"
        raise DiagnosticError([error("SPC293", message, help="give a file that `specc bench` has written")]) from None
    return found


def shown(value: Any) -> str:
    """A cell."""
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def number(us: float | None) -> str:
    """Three significant digits, no more than a microsecond's tenth below a hundred."""
    if us is None:
        return "-"
    return f"{us:.0f}" if us >= 100 else f"{us:.1f}"


def lines_of(rows: Iterable[Row], by: Sequence[str], where: Mapping[str, str]) -> dict[tuple[str, ...], dict[str, Row]]:
    """Values of `by` -> who -> the fastest right row."""
    found: dict[tuple[str, ...], dict[str, Row]] = {}
    for row in rows:
        if row.get("wrong") or row.get("us") is None or any(key not in row for key in by):
            continue
        if any(shown(row.get(key)) != value for key, value in where.items()):
            continue
        line = found.setdefault(tuple(shown(row[key]) for key in by), {})
        who = str(row.get("peer", OWN))
        if who not in line or row["us"] < line[who]["us"]:
            line[who] = row
    return found


def table(result: Mapping[str, Any], by: Sequence[str], where: Mapping[str, str], floor: bool) -> str:
    """Markdown."""
    lines = lines_of(result["rows"], by, where)
    peers = sorted({who for line in lines.values() for who in line} - {OWN})
    head = [*by, *(["floor us"] if floor else []), f"{OWN} us", *(f"{peer} us" for peer in peers)]
    head += ["times faster"] if peers else []
    text = [f"| {' | '.join(head)} |", f"| {' | '.join('---' for _ in head)} |"]
    for key, line in lines.items():
        own = line.get(OWN, {})
        best = min((line[peer]["us"] for peer in peers if peer in line), default=None)
        cells = [*key, *([number(own.get("read_us"))] if floor else []), number(own.get("us"))]
        cells += [number(line.get(peer, {}).get("us")) for peer in peers]
        if peers:
            cells.append(f"{best / own['us']:.1f}" if best and own else "-")
        text.append(f"| {' | '.join(cells)} |")
    return "\n".join([*text, "", source(result)])


def source(result: Mapping[str, Any]) -> str:
    """What made the numbers."""
    device = result.get("gpu") or {}
    versions = ", ".join(f"{name} {device[name]}" for name in ("torch", "triton", "cuda") if name in device)
    name = device.get("gpu", result.get("device", ""))
    return f"{name}, {versions}, commit {str(result.get('commit', ''))[:12]}, `{result.get('command', '')}`"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="specc bench tables", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("file", type=Path, metavar="FILE.json")
    parser.add_argument("--by", action="append", required=True, metavar="KEY", help="keys of a line, in order")
    parser.add_argument("--where", action="append", default=[], metavar="KEY=VALUE", help="only rows with this value")
    parser.add_argument("--floor", action="store_true", help="a column of the time to read what has to be read")
    args = parser.parse_args(list(sys.argv[1:] if argv is None else argv))
    if wrong := [text for text in args.where if "=" not in text]:
        parser.error(f"argument --where: {wrong[0]!r} is not KEY=VALUE")
    where = {key: value for key, _, value in (text.partition("=") for text in args.where)}
    print(table(read(args.file), args.by, where, args.floor))
    return 0


if __name__ == "__main__":
    sys.exit(main())
