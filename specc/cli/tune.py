"""`specc tune budget SPEC`: choose the draft tree that decodes fastest on a device."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from specc.cli.common import add_json, add_spec, positive

DESCRIPTION = """\
budget: measures how often the drafter's children are accepted, by depth and rank, on training prompts, and what a step
takes by nodes and levels on the device; then chooses the chain, static or dynamic tree with the most tokens per second,
runs it on prompts that nothing was chosen by, and writes the spec with that tree (and FILE.json with all measurements).
"""
EPILOG = """\
Prompts of test sets are refused: a tree that was chosen on an evaluation's prompts makes that evaluation report too
much. On --device cuda modules are compiled for Triton in parallel processes first (--build-minutes); --minutes bounds
what is measured then. Exit codes: 0 fine; 2 wrong input.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description, parser.epilog = f"{parser.description}\n\n{DESCRIPTION}", EPILOG
    parser.add_argument("what", choices=("budget",), metavar="budget", help="what to tune")
    add_spec(parser)
    parser.add_argument("--model", required=True, metavar="DIR|NAME", help="the target's folder or name")
    parser.add_argument("--draft-model", metavar="DIR|NAME|self-perturbed:SIGMA", help="the drafter's weights")
    prompts = parser.add_mutually_exclusive_group(required=True)
    prompts.add_argument("--prompts", type=Path, metavar="FILE", help="training prompts (.jsonl, or one per line)")
    prompts.add_argument(
        "--data", type=Path, metavar="DIR", help="a store of training text, or a folder with train.jsonl or .gz"
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="the tuned spec")
    parser.add_argument("--report", type=Path, metavar="FILE", help="the measurements (default: OUTPUT as .json)")
    parser.add_argument("--device", default="cpu", metavar="NAME", help="cpu (default), cuda or cuda:N")
    parser.add_argument("--allow-test", action="store_true", help="take prompts of a test set nevertheless")
    bounds = parser.add_argument_group("bounds")
    bounds.add_argument("--limit", type=positive, default=64, metavar="N", help="prompts (default: 64)")
    bounds.add_argument("--minutes", type=float, default=2.0, metavar="M", help="for measuring (default: 2)")
    bounds.add_argument("--build-minutes", type=float, default=2.5, metavar="M", help="cuda: to compile (default: 2.5)")
    bounds.add_argument("--max-new-tokens", type=positive, default=128, metavar="N", help="per text (default: 128)")
    bounds.add_argument("--rows", type=positive, default=8, metavar="N", help="texts recorded at once (default: 8)")
    trees = parser.add_argument_group("trees")
    trees.add_argument("--tree", action="append", choices=("chain", "static", "dynamic"), help="only these kinds")
    trees.add_argument("--max-nodes", type=positive, default=31, metavar="N", help="drafted nodes (default: 31)")
    trees.add_argument("--depth", type=positive, default=8, metavar="N", help="levels (default: 8)")
    trees.add_argument("--top-k", type=positive, default=4, metavar="N", help="children per node (default: 4)")
    trees.add_argument("--prune", action="store_true", help="write a pruning margin even if the spec has none")
    trees.add_argument(
        "--keep", type=float, default=0.99, metavar="X", help="acceptance that pruning must keep (default: 0.99)"
    )
    parser.add_argument("--modules", type=Path, metavar="DIR", help="keep compiled modules here, and use those there")
    parser.add_argument("--build-only", action="store_true", help="cuda: build modules and kernels ahead, then end")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="keep measurements here by content, and use those")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    from specc.runtime.device import device_for
    from specc.tune.budget import Options, tune
    from specc.tune.variants import KINDS

    device = device_for("triton" if args.device.startswith("cuda") else "reference", args.device)
    options = Options(
        spec=args.spec,
        model=args.model,
        output=args.output,
        draft_model=args.draft_model,
        prompts=args.prompts,
        data=args.data,
        overrides=tuple(args.overrides),
        device=device,
        limit=args.limit,
        minutes=args.minutes,
        build_minutes=args.build_minutes,
        max_new_tokens=args.max_new_tokens,
        nodes=args.max_nodes,
        levels=args.depth,
        top_k=args.top_k,
        kinds=tuple(kind for kind in KINDS if kind in (args.tree or KINDS)),
        keep=args.keep,
        prune=args.prune,
        rows=args.rows,
        allow_test=args.allow_test,
        modules=args.modules,
        build_only=args.build_only,
        cache=args.cache,
        report=args.report,
        command=f"specc tune budget {args.spec.name}",
    )
    findings = tune(options, lambda text: print(text, file=sys.stderr, flush=True))
    if findings is not None:
        print(json.dumps(findings.as_json(), sort_keys=True) if args.json else findings.text())
    return 0
