"""`specc run SPEC`: decode prompts with a model."""

from __future__ import annotations

import argparse
from pathlib import Path

from specc.cli.common import add_json, add_spec, add_target, load_supported, not_built, positive


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_spec(parser)
    add_target(parser)
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="a Hugging Face model folder")
    parser.add_argument("--draft-model", type=Path, metavar="DIR", help="the drafter's folder, if it has weights")
    prompts = parser.add_mutually_exclusive_group(required=True)
    prompts.add_argument("--prompt", metavar="TEXT", help="one prompt")
    prompts.add_argument("--prompts", type=Path, metavar="FILE", help="a file of prompts")
    parser.add_argument("--max-new-tokens", type=positive, default=256, metavar="N", help="default: 256")
    parser.add_argument("--raw", action="store_true", help="do not apply the chat template")
    parser.add_argument("--verify-lossless", action="store_true", help="compare with plain decoding, token by token")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write one JSON line per step")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    load_supported(args)
    raise not_built("the generate loop")
