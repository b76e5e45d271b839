"""What training loops keep in their folder: one checkpoint, and a log in JSON lines."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from specc.output import cannot_write

CHECKPOINT = "checkpoint.pt"
LOG = "training_log.jsonl"


def append_log(folder: Path, record: Mapping[str, Any]) -> None:
    """Append a line to the log."""
    with (folder / LOG).open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(record) + "\n")


def write_checkpoint(folder: Path, content: Mapping[str, Any]) -> None:
    """Write the checkpoint under a temporary name and rename it: a killed run leaves the one before.

    Raises DiagnosticError (SPC460) where it can't be written.
    """
    temporary = folder / f".{CHECKPOINT}.tmp-{os.getpid()}"
    try:
        torch.save(dict(content), temporary)
        os.replace(temporary, folder / CHECKPOINT)
    except (OSError, RuntimeError) as problem:  # torch reports a full disk as a RuntimeError of its archive writer
        temporary.unlink(missing_ok=True)
        reason = getattr(problem, "strerror", None) or "the checkpoint did not fit"
        raise cannot_write(folder / CHECKPOINT, reason, "make room; the same command goes on") from problem
