"""`specc schema`: the JSON Schema of the spec language, for editors."""

from __future__ import annotations

import argparse
import sys
from importlib.resources import files


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No arguments."""


def run(args: argparse.Namespace) -> int:
    sys.stdout.write(files("specc").joinpath("spec", "schema.json").read_text(encoding="utf-8"))
    return 0
