"""SpecLA's evaluation (arXiv:2607.16673): kernels, what a draft has to be worth, and decoding with trained heads.

    specc bench specla --model DIR --draft-model DIR --generic-draft-model DIR --data DIR --device cuda
                       [--minutes M] [--output DIR] [--limit N] [--set KEY.PATH=VALUE] [--part NAME ...]

- decoding: GSM8K, HumanEval and mixed prompts by weights/gdn-15m, plainly and speculatively, the head fed with what
  recurrent layers read out of their states beside hidden states (aligned), or with hidden states alone (generic);
- sensitivity: speed-up by the probability that a drafted token is right, at GDN-1.3B's geometry with random weights;
- kernels: verify by shape of tree, recovering a state, deferred updates, on that geometry; only on a GPU;
- ablations: one thing changed at a time, each as `--set` would, on a sample of the mixed prompts.

Finished cells are kept under OUTPUT/cells and not done again; what the time did not reach is named. Results:
specla.json, specla.md and a picture of every curve. Exit status 1: a cell failed, or a speculative text differs from
plain decoding by more than rounding.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specc.bench.arguments import whole
from specc.bench.evaluation.markdown import markdown, write_results
from specc.bench.evaluation.store import Store
from specc.bench.gpu_timing import WORKERS, gpu, require_gpu
from specc.bench.results import RESULTS, environment
from specc.bench.specla.cells import Setting
from specc.bench.specla.run import PARTS, POSITIONS, Evaluation, Found, Plan
from specc.bench.specla.variants import SET_UP, Drafter
from specc.runtime.model_folder import find_model
from specc.tune.variants import tuned_changes

NAME = "specla"


def _parser() -> argparse.ArgumentParser:
    about = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser(prog="specc bench specla", description=about)
    parser.add_argument("--model", metavar="DIR|NAME", help="the target: weights/gdn-15m")
    parser.add_argument("--draft-model", metavar="DIR", help="a head fed with readouts and hidden states")
    parser.add_argument("--generic-draft-model", metavar="DIR", help="a head fed with hidden states")
    parser.add_argument("--readouts-draft-model", metavar="DIR", help="a head fed with readouts alone")
    parser.add_argument("--bigram-model", metavar="DIR", help="a bigram drafter's tables")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of mt_bench, humaneval and gsm8k")
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    parser.add_argument("--minutes", type=float, metavar="M", help="begin nothing more after so many minutes")
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="DIR", help="folder of results and cells")
    parser.add_argument(
        "--cache", type=Path, metavar="DIR", help="of compiled modules and texts (default: OUTPUT/cache)"
    )
    parser.add_argument("--limit", type=whole(1), metavar="N", help="at most N prompts of each set")
    parser.add_argument("--max-new-tokens", type=whole(2), default=256, metavar="N")
    parser.add_argument("--subset", type=whole(1), default=30, metavar="N", help="mixed prompts of an ablation")
    parser.add_argument("--bound-positions", type=whole(1), default=POSITIONS, metavar="N",
                        help=f"of the numerical bound (default: {POSITIONS})")  # fmt: skip
    parser.add_argument("--steps", type=whole(1), default=300, metavar="N", help="simulated steps for each p")
    parser.add_argument("--part", action="append", choices=PARTS, help="only these (default: all)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only ablations whose name contains this")
    parser.add_argument("--tuned", type=Path, metavar="FILE", help="a spec whose tree is one more ablation")
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY.PATH=VALUE",
                        help="a key of every decoded spec")  # fmt: skip
    parser.add_argument("--warm", type=whole(0), metavar="N",
                        help="compile everything beforehand in N processes (default: 14 on a GPU, else 0)")  # fmt: skip
    parser.add_argument("--compile-only", action="store_true", help="write all modules to the cache and end")
    parser.add_argument(
        "--warm-only", action="store_true", help="compile their kernels too and end; no trained head yet"
    )
    return parser


def plan_of(args: argparse.Namespace) -> Plan:
    """The plan of the options. Raises DiagnosticError for folders that don't exist."""
    given: dict[Drafter, str | None] = {
        "aligned": args.draft_model, "generic": args.generic_draft_model, "readouts": args.readouts_draft_model,
        "bigram": args.bigram_model,
    }  # fmt: skip
    setting = Setting(
        args.device,
        (args.cache or args.output / "cache").resolve(),
        None if args.model is None else find_model(args.model).resolve(),
        {kind: find_model(folder).resolve() for kind, folder in given.items() if folder is not None},
        tuple(args.overrides),
        args.max_new_tokens,
        preparing=args.compile_only or args.warm_only,
    )
    small = not setting.on_gpu
    return Plan(
        setting, args.data, args.limit, args.subset, args.part or PARTS,
        tokens=120 if small else 1024, steps=min(args.steps, 60) if small else args.steps,
        positions=args.bound_positions, only=args.only,
        tuned=None if args.tuned is None else tuned_changes(SET_UP.spec, args.tuned),
        warm=(0 if small else WORKERS) if args.warm is None else args.warm,
    )  # fmt: skip


def bad(found: Found) -> bool:
    """Whether something failed or was not lossless."""
    records = [record for part in found.records.values() for record in part]
    lossy = any(not item["allowed"] for record in records for item in record["differences"])
    return bool(found.failed) or lossy or any(row["above_bound"] for row in found.variants)


def made_by(words: list[str], on_gpu: bool) -> dict[str, Any]:
    """Device, commit, command and packages of the run."""
    head: dict[str, Any] = environment("specc bench specla", words)
    return head | ({"gpu": gpu()} if on_gpu else {})


def main(argv: Sequence[str] | None = None) -> int:
    """1 if a cell failed or a text differs by more than rounding."""
    words = list(sys.argv[1:] if argv is None else argv)
    args = _parser().parse_args(words)
    plan, began = plan_of(args), time.monotonic()
    deadline = None if args.minutes is None else began + 60 * args.minutes

    def say(text: str) -> None:
        print(f"# {time.monotonic() - began:5.0f} s  {text}", flush=True)

    def write(found: Found) -> list[Path]:
        return write_results(args.output, NAME, head | found.as_json())

    evaluation = Evaluation(plan, Store(args.output / "cells"), deadline, say, write)
    if plan.setting.on_gpu and not args.compile_only:
        require_gpu("specc bench specla --device cuda")
    if args.compile_only or args.warm_only:
        return int(not evaluation.only_prepare(args.warm_only))
    head = made_by(words, plan.setting.on_gpu)
    found = evaluation.run()
    paths = write(found)
    print(markdown(head | found.as_json()))
    say(f"wrote {', '.join(map(str, paths))}")
    return int(bad(found))


if __name__ == "__main__":
    sys.exit(main())
