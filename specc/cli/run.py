"""`specc run SPEC`: decode prompts with a model."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import nullcontext
from pathlib import Path

from specc.cli.common import add_json, add_spec, add_target, load_supported, positive
from specc.cli.failure import CHECK_FAILED, FINE, INTERRUPTED

EPILOG = """\
A spec without accept.stop_tokens takes those of the model's folder (generation_config.json, else config.json).
Ctrl-C ends the run with what was produced. Exit codes: 0 fine; 1 --verify-lossless failed; 2 wrong input;
130 interrupted.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_spec(parser)
    add_target(parser)
    parser.add_argument(
        "--model", required=True, metavar="DIR|NAME", help="a Hugging Face model folder, or a model that was fetched"
    )
    parser.add_argument(
        "--draft-model",
        metavar="DIR|NAME|self-perturbed:SIGMA",
        help="the drafter's weights; self-perturbed: a simulated drafter, the target's weights with noise",
    )
    prompts = parser.add_mutually_exclusive_group(required=True)
    prompts.add_argument("--prompt", metavar="TEXT", help="one prompt")
    prompts.add_argument("--prompts", type=Path, metavar="FILE", help="a file of prompts (.jsonl, or one per line)")
    prompts.add_argument("--demo-prompts", action="store_true", help="the prompts of the demonstration")
    parser.add_argument("--max-new-tokens", type=positive, default=256, metavar="N", help="default: 256")
    parser.add_argument("--raw", action="store_true", help="do not apply the chat template")
    parser.add_argument("--ignore-eos", action="store_true", help="compile without stop tokens")
    parser.add_argument("--verify-lossless", action="store_true", help="compare with plain decoding, token by token")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write one JSON line per request and step")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the results as JSON, besides printing them")
    parser.add_argument(
        "--device",
        metavar="NAME",
        help="cpu, cuda, cuda:N, npu or npu:N; default: cuda for --target triton, npu for ascend if there is one, "
        "else cpu",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    from specc.runtime.device import device_for
    from specc.runtime.prompts import DEMO_PROMPTS, load_prompts, one_prompt

    loaded = load_supported(args)
    device = device_for(args.target, args.device)
    if args.prompt is not None:
        prompts = [one_prompt(args.prompt)]
    else:
        prompts = load_prompts(DEMO_PROMPTS if args.demo_prompts else args.prompts)

    from specc.output import check_output, write_text
    from specc.runtime.run_report import RunView, progress_bars, run_json, summary
    from specc.runtime.session import Watcher, open_session, run_prompts
    from specc.runtime.trace import write_trace

    for output in (args.trace, args.report):
        if output is not None:
            check_output(output)  # before the work, not after it
    bars = progress_bars(sys.stderr)
    with bars or nullcontext():

        def report(text: str) -> None:
            if bars is not None:
                for task in bars.task_ids:
                    bars.remove_task(task)
                bars.add_task(text, total=None)

        session = open_session(
            loaded,
            args.model,
            args.draft_model,
            target=args.target,
            device=device,
            ignore_eos=args.ignore_eos,
            report=report,
        )
        view = Watcher() if args.json else RunView(session.tokenizer, sys.stdout, bars, args.max_new_tokens)
        result = run_prompts(
            session, prompts, args.max_new_tokens, raw=args.raw, verify_lossless=args.verify_lossless, watcher=view
        )
    if args.trace is not None:
        write_trace(args.trace, result.traces, result.names, session.identity)
    text = json.dumps(run_json(session, result), sort_keys=True)
    if args.report is not None:
        write_text(args.report, text + "\n")
    print(text if args.json else f"\n{summary(session, result)}")
    if result.lossless is not None and result.lossless.failed:
        return CHECK_FAILED
    return INTERRUPTED if result.interrupted else FINE
