"""`specc doctor`: which parts this installation can use. Nothing heavy is imported to find out."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from importlib import metadata
from pathlib import Path

from specc import __version__
from specc.cli.common import add_json

REQUIRED = ("torch", "pydantic", "PyYAML", "numpy", "safetensors", "tokenizers", "jinja2", "rich", "hypothesis")
OPTIONAL = {
    "triton": "the triton backend",
    "torch_npu": "the ascend backend on an NPU",
    "gguf": "specc fetch",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    required = {name: _version(name) for name in REQUIRED}
    optional = {name: _version(name) for name in OPTIONAL}
    nvidia = Path("/proc/driver/nvidia/version").exists()
    missing = [name for name, version in required.items() if version is None]
    if args.json:
        report = {
            "specc": __version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "required": required,
            "optional": optional,
            "nvidia_driver": nvidia,
            "missing": missing,
        }
        print(json.dumps(report))
    else:
        print(f"specc {__version__}, Python {platform.python_version()}, {platform.platform()}")
        for name, version in required.items():
            print(f"  {name:12} {version or 'MISSING'}")
        for name, version in optional.items():
            print(f"  {name:12} {version or 'not installed'}  ({OPTIONAL[name]})")
        print(f"  NVIDIA driver {'found' if nvidia else 'not found'}")
    if missing:
        print(f"missing: pip install {' '.join(missing)}", file=sys.stderr)
        return 1
    return 0


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
