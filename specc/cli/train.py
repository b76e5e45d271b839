"""`specc train WHAT`: train the small models that the project ships, or your own."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from specc.cli import train_draft
from specc.cli.common import add_json, positive

if TYPE_CHECKING:
    from specc.train.schedule import TrainConfig

DESCRIPTION = """\
A Gated DeltaNet language model (the checkpoint layout of flash-linear-attention) with its own tokenizer, on
the texts of a data recipe, beside a Kneser-Ney 5-gram of the same tokens. OUT/model holds the result: safetensors,
config.json, tokenizer, model card, training log.
"""
EPILOG = """\
OUT is also the place of the prepared corpus and of the checkpoint: the same command on the same OUT goes on with a run
that was interrupted, at the last checkpoint. Without --data the standard library of this Python is the training text,
so that `specc train target --config tiny --steps 30 --out OUT` needs nothing else. The shipped model's recipe is
weights/gdn-15m/recipe.json; its entries say where to get each source, which --root holds.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="what", required=True, metavar="WHAT", title="what to train")
    _target_arguments(kinds.add_parser("target", help="a small target model, from texts"))
    train_draft.add_arguments(kinds.add_parser("draft", help="a drafter for the target of a spec"))


def run(args: argparse.Namespace) -> int:
    return train_draft.run(args) if args.what == "draft" else _train_target(args)


def _target_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of corpus, checkpoint and model")
    parser.add_argument(
        "--config", choices=("small", "tiny"), default="small", help="small: 14M parameters; tiny: 0.2M, for a CPU"
    )
    data = parser.add_argument_group("data")
    data.add_argument("--data", type=Path, metavar="FILE", help="data recipe (JSON); default: the standard library")
    data.add_argument("--root", type=Path, default=Path(), metavar="DIR", help="where the recipe's sources lie")
    data.add_argument("--corpus", type=Path, metavar="DIR", help="use this prepared corpus folder")
    data.add_argument("--prepare-only", action="store_true", help="stop after the corpus and the n-gram baseline")
    how = parser.add_argument_group("training")
    how.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    how.add_argument("--steps", type=positive, metavar="N", help="at most N steps (default: 3000 small, 300 tiny)")
    how.add_argument("--minutes", type=float, metavar="M", help="at most M minutes; the rate falls to its end by then")
    how.add_argument("--batch", type=positive, metavar="N", help="windows per step (default: 32 small, 8 tiny)")
    how.add_argument("--sequence", type=positive, metavar="N", help="tokens per window (default: 1024 small, 128 tiny)")
    how.add_argument("--learning-rate", type=float, default=3e-3, metavar="X", help="peak rate (default: 0.003)")
    how.add_argument("--checkpoint-every", type=positive, default=500, metavar="N", help="in steps (default: 500)")
    how.add_argument("--evaluate-every", type=positive, default=1000, metavar="N", help="in steps (default: 1000)")
    how.add_argument("--seed", type=int, default=0, metavar="N")
    how.add_argument("--no-compile", action="store_true", help="on CUDA: no torch.compile, no CUDA graph")
    add_json(parser)


def _train_target(args: argparse.Namespace) -> int:
    from specc.train.recipe import builtin_recipe, load_recipe
    from specc.train.target import Job, prepare_data, train_target

    recipe = load_recipe(args.data) if args.data else builtin_recipe()
    job = Job(args.out, args.config, recipe, args.root, args.corpus, _training(args), args.device)
    if args.prepare_only:
        _, ngram = prepare_data(job, _say)
        print(json.dumps(ngram, indent=1, sort_keys=True))
        return 0
    result = train_target(job, _say)
    if args.json:
        print(json.dumps(result, sort_keys=True))
    else:
        found, other = (part["held_out"]["all"]["bits_per_byte"] for part in (result, result["ngram"]))
        print(f"{args.out / 'model'}: {found:.4f} bits per byte of held-out text, the n-gram {other:.4f}")
    return 0


def _training(args: argparse.Namespace) -> TrainConfig:
    """Hyperparameters of the command line over the defaults of the configuration."""
    from specc.train.schedule import TrainConfig

    # 100 million tokens: several times that, on 60 MB of text, is memorised instead of learnt (weights/gdn-15m).
    steps, batch, sequence = (3000, 32, 1024) if args.config == "small" else (300, 8, 128)
    steps = args.steps or steps
    return TrainConfig(
        steps=steps,
        minutes=args.minutes,
        batch=args.batch or batch,
        sequence=args.sequence or sequence,
        learning_rate=args.learning_rate,
        warmup_steps=min(200, max(1, steps // 10)),
        seed=args.seed,
        log_every=20 if args.config == "small" else 10,
        evaluate_every=args.evaluate_every,
        checkpoint_every=args.checkpoint_every,
        compile=not args.no_compile,
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
