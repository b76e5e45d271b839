"""A sweep is a list of cells: a function's name, its inputs, and a key that is made of nothing else.

Two cells with the same key give the same result on the same machine, so that a finished one is never done again, and
one whose inputs, model or code changed is. Paths are no part of the key: they say where the inputs lie on a machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from specc.diagnostics import DiagnosticError, error

SCHEMA = "specc.cell/1"
CHUNK = 1 << 22
PACKAGE = Path(__file__).resolve().parents[2]
CODE = ("backends", "passes", "lower", "models", "draft", "ir", "spec", "runtime", "bench/evaluation")
"""Folders of the package whose sources decide what a cell gives."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One piece of a sweep.

    name: for people, unique in its sweep; work: "package.module:function", called with `inputs` and `places` and giving
    a JSON-ready mapping; inputs: JSON-ready, and all that the result depends on; places: name -> path on this machine.
    """

    name: str
    work: str
    inputs: Mapping[str, Any]
    places: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Hex sha256 of `work` and `inputs`."""
        return key_of({"schema": SCHEMA, "work": self.work, "inputs": self.inputs})


def key_of(value: Any) -> str:
    """Hex sha256 of a JSON-ready value; the order of its keys does not matter. Raises TypeError for other values."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


@lru_cache(maxsize=16)
def fingerprint_of(folder: Path) -> str:
    """Hex sha256 of the names and bytes of a model folder's files; documents and folders inside do not count.

    Raises DiagnosticError (SPC401) for what is no folder.
    """
    if not folder.is_dir():
        raise DiagnosticError([error("SPC401", f"the model folder {folder} does not exist", help="give a folder")])
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file() and not path.name.startswith(".") and path.suffix not in (".md", ".jsonl"):
            digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
            with path.open("rb") as file:
                while chunk := file.read(CHUNK):
                    digest.update(chunk)
    return digest.hexdigest()


@lru_cache(maxsize=1)
def code_fingerprint() -> str:
    """Hex sha256 of the sources that compile and run a decoder, so that results of other code are made again."""
    digest = hashlib.sha256()
    for part in CODE:
        root = (PACKAGE / part).resolve()
        for path in sorted(root.rglob("*.py")):
            digest.update(f"{part}/{path.relative_to(root).as_posix()}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()
