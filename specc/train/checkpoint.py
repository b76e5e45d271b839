"""What training loops keep in their folder: one checkpoint, and a log in JSON lines."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from specc.diagnostics import DiagnosticError, error
from specc.output import cannot_write, reason_of, replacing, write_text

CHECKPOINT = "checkpoint.pt"
LOG = "training_log.jsonl"
ROOM = "make room; the same command goes on"


def append_log(folder: Path, record: Mapping[str, Any]) -> None:
    """Append a line to the log. Raises DiagnosticError (SPC460) where it can't be written."""
    try:
        with (folder / LOG).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(record) + "\n")
    except OSError as problem:
        raise cannot_write(folder / LOG, reason_of(problem), ROOM) from problem


def cut_log(folder: Path, keep: Callable[[Mapping[str, Any]], bool]) -> None:
    """Drop the lines of the log that are not to be kept, and a last one that is not whole."""
    path = folder / LOG
    if path.is_file():
        lines = path.read_text("utf-8").splitlines(keepends=True)
        records = [json.loads(line) for line in lines if line.endswith("\n")]
        write_text(path, "".join(json.dumps(record) + "\n" for record in records if keep(record)))


def write_checkpoint(folder: Path, content: Mapping[str, Any]) -> None:
    """Write the checkpoint under a temporary name and rename it: a killed run leaves the one before.

    Raises DiagnosticError (SPC460) where it can't be written.
    """
    # torch reports a full disk as a RuntimeError of its archive writer
    with replacing(folder / CHECKPOINT, RuntimeError, remedy=ROOM) as temporary:
        torch.save(dict(content), temporary)


def read_checkpoint(folder: Path, device: torch.device, restore: Callable[[Mapping[str, Any]], None]) -> None:
    """Give the checkpoint's content to `restore`. Raises DiagnosticError (SPC473) where that does not take it."""
    path = folder / CHECKPOINT
    try:
        restore(torch.load(path, map_location=device, weights_only=True))
    except (RuntimeError, ValueError, KeyError, TypeError, pickle.UnpicklingError) as problem:
        help_text = "give another --out, or remove the checkpoint to begin anew"
        message = f"{path} is no checkpoint of this run: {str(problem).splitlines()[0]}"
        raise DiagnosticError([error("SPC473", message, help=help_text)]) from None


def remove_unfinished(folder: Path) -> None:
    """Remove what a run left that was killed while it wrote a checkpoint."""
    for leftover in folder.glob(f".{CHECKPOINT}.tmp-*"):
        leftover.unlink()
