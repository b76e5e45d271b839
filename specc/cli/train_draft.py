"""`specc train draft SPEC`: a drafter for the spec's target, from text that the target writes itself."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from specc.cli.common import add_json, add_spec, load_spec, positive

if TYPE_CHECKING:
    from specc.train.draft.evaluate import Trial
    from specc.train.draft.job import Job, Say, WriteTexts
    from specc.train.draft.loop import DraftConfig
    from specc.train.draft.targets import FrozenTarget

DESCRIPTION = """\
A drafter for the spec's target. eagle3: an EAGLE-3 head, which starts from the target's own weights and is trained on
the target's continuations of training prompts (never the test prompts). bigram: a table of the most frequent next
tokens of the same text. OUT/head holds the result: safetensors, config.json, recipe, training log, card; OUT/texts the
training text.
"""
EPILOG = """\
The same command on the same OUT goes on with a run that was interrupted: with the text at its last shard, with the
training at its last checkpoint. Several GPUs: torchrun --nproc-per-node N -m specc train draft ….
"""
ENDLESS = 10_000_000
PROMPTS = {"gsm8k": 7473, "stubs": 4000, "user_turns": 25000, "beginnings": 20000}
"""Training prompts by kind: problems, beginnings of functions, sampled user turns (assistants), beginnings of texts."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    add_spec(parser)
    parser.add_argument("--model", required=True, metavar="DIR|NAME", help="the target: a folder, or a fetched model")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of text, checkpoint and head")
    parser.add_argument("--kind", choices=("eagle3", "bigram"), help="default: the spec's draft.method")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    _text_arguments(parser.add_argument_group("training text"))
    _training_arguments(parser.add_argument_group("training"))
    trial = parser.add_argument_group("trial of the compiled module on held-out prompts")
    trial.add_argument("--trial-prompts", type=int, default=8, metavar="N", help="0: no trial (default: 8)")
    trial.add_argument("--trial-tokens", type=positive, default=64, metavar="N", help="new tokens each (default: 64)")
    trial.add_argument("--trial-seconds", type=float, default=60.0, metavar="S", help="begin no batch after S seconds")
    trial.add_argument("--trial-target", default="reference", metavar="NAME", help="reference (default) or triton")
    add_json(parser)


def _text_arguments(text: argparse._ArgumentGroup) -> None:
    text.add_argument("--data", type=Path, metavar="DIR", help="folder of gsm8k, humaneval and mt_bench")
    text.add_argument("--corpus", type=Path, metavar="DIR", help="a prepared corpus, for beginnings of its texts")
    text.add_argument("--texts", type=Path, metavar="DIR", help="use the training text in this folder; generate none")
    text.add_argument("--tokens", type=positive, metavar="N", help="generate at most about N tokens")
    text.add_argument("--text-seconds", type=float, metavar="S", help="generate for at most S seconds")
    text.add_argument("--text-batch", type=positive, metavar="N", help="texts at a time (default: 512; cpu: 32)")
    text.add_argument(
        "--temperature", type=float, default=0.0, metavar="X",
        help="continue the prompts once more with tokens drawn at this temperature (default: 0, greedy texts only)",
    )  # fmt: skip
    text.add_argument("--new-tokens", type=positive, default=256, metavar="N", help="at most N a text (default: 256)")
    for name, count in PROMPTS.items():
        flag = f"--{name.replace('_', '-')}"
        text.add_argument(flag, type=int, default=count, metavar="N", help=f"prompts of that kind (default: {count})")
    text.add_argument("--texts-only", action="store_true", help="stop when the training text is there")


def _training_arguments(how: argparse._ArgumentGroup) -> None:
    how.add_argument("--minutes", type=float, metavar="M", help="train for at most M minutes; the rate ends by then")
    how.add_argument("--steps", type=positive, metavar="N", help="at most N updates (default: 2000 without --minutes)")
    how.add_argument("--unroll", type=positive, default=4, metavar="N", help="training-time test steps (default: 4)")
    how.add_argument("--decay", type=float, default=0.8, metavar="X", help="weight of step s is X^s (default: 0.8)")
    how.add_argument(
        "--batch", type=positive, default=64, metavar="N", help="rows of --sequence per step (default: 64)"
    )
    how.add_argument("--sequence", type=positive, default=512, metavar="N", help="cut texts to N tokens (default: 512)")
    how.add_argument("--learning-rate", type=float, default=1e-3, metavar="X", help="peak rate (default: 0.001)")
    how.add_argument("--warm-up", type=positive, default=50, metavar="N", help="steps (default: 50)")
    how.add_argument("--weight-decay", type=float, default=0.01, metavar="X", help="default: 0.01")
    how.add_argument(
        "--loop-tokens", type=int, default=32, metavar="N",
        help="read texts that repeat themselves for N tokens behind the first repetition (default: 32; -1: whole)",
    )  # fmt: skip
    how.add_argument("--log-every", type=positive, default=20, metavar="N", help="in steps (default: 20)")
    how.add_argument("--checkpoint-every", type=positive, default=1000, metavar="N", help="in steps (default: 1000)")
    how.add_argument("--evaluate-every", type=positive, default=500, metavar="N", help="in steps (default: 500)")


def run(args: argparse.Namespace) -> int:
    from specc.train.draft.job import count_bigram, prepare, train_draft
    from specc.train.draft.parallel import opened

    job = make_job(args)
    if args.texts_only:
        with opened(args.device) as world:
            prepare(job, world, say)
        return 0
    if (args.kind or job.loaded.spec.draft.method) == "bigram":
        facts = count_bigram(job, say)
        print(json.dumps(facts, sort_keys=True) if args.json else f"{args.out / 'head'}: {facts['pairs']:,} pairs")
        return 0
    result = train_draft(job, say)
    if not result:
        return 0  # another process than the first
    if args.json:
        print(json.dumps(result, sort_keys=True))
    else:
        found = result["held_out"]
        print(f"{args.out / 'head'}: held-out top-1 {found['top1'][0]:.1%}, chain length {found['chain_length']:.2f}")
        if "compiled" in result:
            tried = result["compiled"]
            lossless = f"{tried['lossless']['differences']} of {tried['lossless']['tokens']} tokens differ"
            print(f"compiled: acceptance length {tried['acceptance_length']:.2f}; {lossless} from plain decoding")
    return 0


def make_job(args: argparse.Namespace) -> Job:
    """The job of a command line. Raises what a spec and a model folder raise."""
    from specc.runtime.model_folder import find_model
    from specc.train.draft.job import Job

    loaded = load_spec(args)
    model = find_model(args.model)
    config, write = _config(args), _writer(args, model)
    return Job(loaded, model, args.out, config, args.device, args.texts, write, _trial(args))


def _config(args: argparse.Namespace) -> DraftConfig:
    from specc.train.draft.loop import DraftConfig
    from specc.train.schedule import TrainConfig

    steps = args.steps or (ENDLESS if args.minutes else 2000)
    train = TrainConfig(
        steps=steps,
        minutes=args.minutes,
        batch=args.batch,
        sequence=args.sequence,
        learning_rate=args.learning_rate,
        warmup_steps=min(args.warm_up, max(1, steps // 4)),
        weight_decay=args.weight_decay,
        seed=args.seed,
        log_every=args.log_every,
        evaluate_every=args.evaluate_every,
        checkpoint_every=args.checkpoint_every,
    )
    loop_tokens = args.loop_tokens if args.loop_tokens >= 0 else None
    return DraftConfig(train, args.unroll, args.decay, loop_tokens)


def _trial(args: argparse.Namespace) -> Trial | None:
    from specc.train.draft.evaluate import Trial

    if args.trial_prompts < 1:
        return None
    return Trial(args.trial_target, args.device, args.trial_prompts, args.trial_tokens, args.trial_seconds)


def _writer(args: argparse.Namespace, model: Path) -> WriteTexts | None:
    """What generates the training text, if there is something to read prompts from."""
    if args.data is None:
        return None

    def write(target: FrozenTarget, fingerprint: str, folder: Path, tell: Say) -> object:
        from specc.runtime.tokenizer import Tokenizer
        from specc.train.draft.continuations import TextOptions, make_continuations

        options = TextOptions(
            data=args.data,
            fingerprint=fingerprint,
            corpus=args.corpus,
            **{name: getattr(args, name) for name in PROMPTS},
            max_new_tokens=args.new_tokens,
            batch=args.text_batch or (512 if args.device == "cuda" else 32),
            seed=args.seed,
            temperature=args.temperature,
            max_tokens=args.tokens,
            max_seconds=args.text_seconds,
        )
        return make_continuations(target, Tokenizer.from_folder(model), options, folder, tell)

    return write


def say(text: str) -> None:
    """A line for people."""
    print(text, file=sys.stderr, flush=True)
