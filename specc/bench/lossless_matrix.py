"""Token-for-token lossless decoding by every verify schedule and every commit of recurrent states.

    specc bench lossless-matrix --model DIR --prompts FILE [--spec FILE] [--tokens 128] [--limit N] [-o JSON]

For each cell of {replay, serial, hybrid, tree} x {snapshots, replay, factors-immediate, factors-deferred,
factors-windowed}: the spec is compiled with that schedule and commit, and the prompts are decoded with drafts that are
simulated: trees around the plain text with errors planted in them. Every emitted token must be the plain decoding's
(by the first cell's module; each cell also decodes its first batch plainly), and at least a quarter of the steps must
accept a branch, a node that is not its parent's first child, or the cell proves nothing. Cells that are done are kept
in the file, so that an interrupted run goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specc.bench.arguments import whole
from specc.bench.planted_decoding import CellResult, decode_planted
from specc.bench.results import RESULTS, commit, environment
from specc.output import cannot_write, check_output, make_folder, write_text
from specc.runtime.generate import Request, batches, check_requests, decode_batch
from specc.runtime.prompts import load_prompts
from specc.runtime.session import Session, open_session
from specc.spec import load

SPECS = Path(__file__).resolve().parents[1] / "specs"
SCHEDULES = ("replay", "serial", "hybrid", "tree")
COMMITS: Mapping[str, tuple[str, ...]] = {
    "snapshots": ("commit.state=snapshots", "commit.update=immediate", "commit.window=null"),
    "replay": ("commit.state=replay", "commit.update=immediate", "commit.window=null"),
    "factors-immediate": ("commit.state=factors", "commit.update=immediate", "commit.window=null"),
    "factors-deferred": ("commit.state=factors", "commit.update=deferred", "commit.window=1"),
    "factors-windowed": ("commit.state=factors", "commit.update=deferred", "commit.window=8"),
}
BRANCH_SHARE = 0.25
"""Share of steps that must accept a branch."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A schedule and a commit."""

    schedule: str
    commit: str

    @property
    def name(self) -> str:
        """As the table and the JSON call it."""
        return f"{self.schedule} x {self.commit}"

    @property
    def overrides(self) -> tuple[str, ...]:
        """Keys of the spec."""
        return (f"verify.recurrence={self.schedule}", *COMMITS[self.commit])


CELLS = tuple(Cell(schedule, commit) for schedule in SCHEDULES for commit in COMMITS)


def plain_texts(session: Session, prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
    """Greedy plain decoding of every prompt, `tokens` new ones each."""
    requests = [Request(number, str(number), tuple(ids)) for number, ids in enumerate(prompts)]
    check_requests(requests, session.module)
    made = []
    for group in batches(requests, session.module.MAX_BATCH_SIZE):
        made += [item.tokens for item in decode_batch(session.decoder, group, tokens, speculative=False).results]
    return made


def run_cell(
    session: Session, prompts: Sequence[Sequence[int]], plain: Sequence[Sequence[int]], tokens: int, seed: int
) -> CellResult:
    """One cell: speculative texts against the plain ones, and the cell's own plain decoding of its first batch."""
    spec = session.loaded.spec
    first = plain_texts(session, prompts[: session.module.MAX_BATCH_SIZE], len(plain[0]))
    result = decode_planted(session.module, session.decoder.weights, spec, prompts, plain, tokens, seed)
    result.plain_differences = sum(one != two for one, two in zip(first, plain, strict=False))
    return result


def passed(cell: Mapping[str, Any]) -> bool:
    """Whether a recorded cell shows what it must: no difference but one that rounding explains (none is expected), and
    enough branches."""
    wrong = [item for item in cell["differences"] if not item["allowed"]]
    return not wrong and not cell["plain_differences"] and cell["branch_share"] >= BRANCH_SHARE


def recorded(path: Path, settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Cells of an earlier run with the same settings, by name.

    Raises DiagnosticError (SPC460) where `path` can't be written to, or holds something else, which is not overwritten.
    """
    make_folder(path.parent)
    check_output(path)
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        cells = {cell["name"]: cell for cell in found["cells"]}
    except (OSError, ValueError, KeyError, TypeError) as reason:
        remedy = "name a new file, or one that an earlier run has written"
        raise cannot_write(path, "it holds something else than cells of this benchmark", remedy) from reason
    if found.get("settings") != settings:
        print(f"{path} holds cells of other settings; they are dropped", file=sys.stderr)
        return {}
    return cells


def _write(path: Path, head: Mapping[str, Any], cells: Mapping[str, Mapping[str, Any]]) -> None:
    ordered = [cells[cell.name] for cell in CELLS if cell.name in cells]
    summary = {"done": len(ordered), "of": len(CELLS), "passed": sum(map(passed, ordered))}
    write_text(path, json.dumps({**head, **summary, "cells": ordered}, indent=1, sort_keys=True) + "\n")


def _arguments(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    words = list(sys.argv[1:] if argv is None else argv)
    about = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser(prog="specc bench lossless-matrix", description=about)
    parser.add_argument("--model", required=True, metavar="DIR|NAME")
    parser.add_argument("--prompts", required=True, type=Path, metavar="FILE")
    parser.add_argument("--spec", type=Path, default=SPECS / "gdn-15m-tree.yaml", metavar="FILE")
    parser.add_argument("--tokens", type=whole(1), default=128, metavar="N", help="new tokens per prompt")
    parser.add_argument("--limit", type=whole(1), metavar="N", help="only the first N prompts")
    parser.add_argument(
        "--prompt-tokens", type=whole(1), default=256, metavar="N", help="prompts are cut to this length"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the planted errors")
    parser.add_argument("--batch", type=whole(1), metavar="N", help="prompts decoded at once; default: the spec's")
    parser.add_argument("--threads", type=whole(1), metavar="N", help="of torch; small models are fastest with 1")
    parser.add_argument("--only", default="", metavar="TEXT", help="only cells whose name contains this")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "lossless_matrix.json", metavar="JSON")
    args = parser.parse_args(words)
    if not any(args.only in cell.name for cell in CELLS):
        parser.error(f"argument --only: no cell's name contains {args.only!r}; one is {CELLS[0].name!r}")
    return args, words


def _cut_prompts(session: Session, args: argparse.Namespace) -> list[list[int]]:
    prompts = load_prompts(args.prompts)[: args.limit]
    return [prompt.first_ids(session.tokenizer)[: args.prompt_tokens] for prompt in prompts]


def main(argv: Sequence[str] | None = None) -> int:
    args, words = _arguments(argv)
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    names = ("tokens", "limit", "prompt_tokens", "batch", "seed")
    settings = {name: getattr(args, name) for name in names}
    settings |= {"spec": args.spec.name, "model": Path(args.model).name, "prompts": args.prompts.name}
    cells = recorded(args.output, settings)
    head: dict[str, Any] = {"environment": environment("specc.bench.lossless_matrix", words), "settings": settings}
    head["drafts"] = "simulated: trees around the plain text with planted errors"
    plain: list[list[int]] = []
    for cell in CELLS:
        if cell.name in cells or args.only not in cell.name:
            continue
        began = time.perf_counter()
        overrides = [*cell.overrides, *([f"runtime.max_batch_size={args.batch}"] if args.batch else [])]
        session = open_session(load(args.spec, overrides), args.model, ignore_eos=True)
        prompts = _cut_prompts(session, args)
        plain = plain or plain_texts(session, prompts, args.tokens + session.loaded.spec.depth)
        result = run_cell(session, prompts, plain, args.tokens, args.seed)
        seconds = round(time.perf_counter() - began, 1)
        cells[cell.name] = {
            "name": cell.name,
            **result.as_json(),
            "commit": commit(),  # of this cell: a run that was interrupted may go on at a later one
            "seconds": seconds,
            "threads": torch.get_num_threads(),
        }
        _write(args.output, head, cells)
        print(
            f"{'passed' if passed(cells[cell.name]) else 'FAILED'}  {cell.name}: {result.summary}, {seconds} s",
            flush=True,
        )
    wrong = [name for name, cell in cells.items() if not passed(cell)]
    print(f"{len(cells) - len(wrong)} of {len(cells)} cells are lossless; {args.output}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
