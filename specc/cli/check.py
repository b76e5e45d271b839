"""`specc check SPEC`: property-based run over passes, invariants and the generated module."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from specc.cli.common import add_json, add_spec, add_target, load_supported, positive

if TYPE_CHECKING:
    from specc.check.report import Rung
    from specc.check.runner import Progress
    from specc.spec import LoadedSpec

MAX_EXAMPLES = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_spec(parser)
    add_target(parser)
    parser.add_argument(
        "--max-examples",
        type=positive,
        default=MAX_EXAMPLES,
        metavar="N",
        help=f"default: {MAX_EXAMPLES}; with fewer than 60, what they exercise is not judged",
    )
    parser.add_argument(
        "--invariant",
        action="append",
        metavar="NAME",
        dest="invariants",
        help="only this invariant, by name or number (may be repeated); default: the spec's `invariants`",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="repeat a run; default: 0")
    parser.add_argument("--replay", metavar="TOKEN", help="run one counterexample again")
    parser.add_argument(
        "--device",
        default="cpu",
        metavar="NAME",
        help="where the module runs: cpu (default; for triton its interpreter, slow), cuda (triton) or npu (ascend)",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Exit code 0: everything holds; 1: a counterexample, or examples that don't count."""
    if args.target == "triton" and args.device == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")  # before the first import of torch's that imports Triton
    loaded = load_supported(args)
    chosen = args.invariants
    if chosen is None and isinstance(loaded.spec.invariants, tuple):
        chosen = list(loaded.spec.invariants)
    import torch

    from specc.check import replay
    from specc.check import run as check

    torch.set_num_threads(1)  # models are tiny: threads cost more than they give
    if args.replay is not None:
        report = replay(loaded, args.replay, chosen, args.seed, target=args.target, device=args.device)
    else:
        with _progress(args.json) as tell:
            where = {"target": args.target, "device": args.device}
            report = check(loaded, args.max_examples, chosen, args.seed, progress=tell, **where)
            # On hardware the ladder says more about what is wrong: it is climbed in any case.
            if args.target == "ascend" and args.invariants is None and (report.ok or args.device != "cpu"):
                report = replace(report, ladder=_ladder(loaded, args, tell))
    spec = str(args.spec)
    if args.json:
        print(json.dumps(report.as_json(spec, args.overrides), indent=2))
    else:
        print(report.as_text(spec, args.overrides))
    return 0 if report.ok else 1


def _ladder(loaded: LoadedSpec, args: argparse.Namespace, tell: Progress | None) -> tuple[Rung, ...]:
    """The rungs below the device: contracts, eager operators in half precision, GE graphs."""
    from specc.check.ascend.ladder import climb

    return tuple(climb(loaded, args.max_examples, args.seed, device=args.device, tell=tell))


@contextmanager
def _progress(quiet: bool) -> Iterator[Progress | None]:
    """A progress bar on a terminal, nothing in a pipe."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("compile", total=None)

        def tell(what: str, done: int, total: int) -> None:
            if total:
                bar.update(task, description=what, completed=done, total=total)
            else:
                bar.update(task, description=what)

        yield tell
