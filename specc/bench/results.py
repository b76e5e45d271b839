"""Raw results under specc/bench/results/: numbers with the device, commit and command that made them."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from specc import __version__
from specc.output import write_text

RESULTS = Path(__file__).with_name("results")
PACKAGES = ("torch", "transformers", "tokenizers", "safetensors")


COMMIT = "SPECC_COMMIT"
"""Environment variable: the commit of the source tree, for copies that are not a checkout."""


def environment(module: str, arguments: list[str]) -> dict[str, Any]:
    """What produced a result; `module` is the script's dotted name."""
    return {
        "command": f"python -m {module} {shlex.join(arguments)}".rstrip(),
        "commit": commit(),
        "device": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_average": [round(value, 2) for value in os.getloadavg()],
        "python": platform.python_version(),
        "specc": __version__,
        "packages": {name: _version(name) for name in PACKAGES},
    }


def commit() -> str:
    """The commit of the source tree, with `+` if it has changes; what `SPECC_COMMIT` says in a copy that is no
    checkout, else empty there."""
    if COMMIT in os.environ:
        return os.environ[COMMIT]
    folder = Path(__file__).resolve().parent
    told = []
    for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"]):
        try:
            done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=False)
        except OSError:
            return ""
        if done.returncode:
            return ""
        told.append(done.stdout.strip())
    return told[0] + ("+" if told[1] else "")


def processor() -> str:
    """The CPU's name."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()


def keep(name: str, result: Mapping[str, Any], folder: Path = RESULTS, quiet: bool = False) -> Path:
    """Write `name`.json into `folder`; returns its path. Says so on stderr unless `quiet`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    write_text(path, json.dumps(result, indent=2, sort_keys=True) + "\n")
    if not quiet:
        print(f"wrote {path}", file=sys.stderr)
    return path


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
