"""One cell's work, done wherever a worker is: it finds the function by its name and never raises."""

from __future__ import annotations

import importlib
import sys
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from specc.bench.evaluation.cells import Cell
from specc.diagnostics import DiagnosticError

FAILURES: tuple[type[BaseException], ...] = (
    DiagnosticError, RuntimeError, ValueError, TypeError, AssertionError, ImportError, AttributeError, LookupError,
    ArithmeticError, OSError,
)  # fmt: skip
"""What a cell may fail with. Triton's own errors are added where it has been imported."""
SHOWN = 400


@dataclass(frozen=True, slots=True)
class Answer:
    """What a cell gave: its result, or why there is none. `attempts`: how often it was begun."""

    result: dict[str, Any] | None
    failure: str = ""
    seconds: float = 0.0
    attempts: int = 1


def failures() -> tuple[type[BaseException], ...]:
    """The errors that end a cell and not its worker."""
    triton = sys.modules.get("triton.errors")
    return FAILURES if triton is None else (*FAILURES, triton.TritonError)


def attempt(cell: Cell) -> Answer:
    """Do a cell's work. What it raises becomes the answer's `failure`: the kind of error and its first line."""
    began = time.monotonic()
    try:
        module, _, name = cell.work.partition(":")
        result = getattr(importlib.import_module(module), name)(cell.inputs, cell.places)
    except BaseException as problem:
        # Which errors are a cell's own is known only after its imports.
        if not isinstance(problem, failures()):
            raise
        text = str(problem).strip().splitlines()
        failure = f"{type(problem).__name__}: {text[0] if text else ''}"[:SHOWN].rstrip(": ")
        return Answer(None, failure, time.monotonic() - began)
    return Answer(dict(result), "", time.monotonic() - began)


def serve(connection: Connection) -> None:
    """A worker process: cells in, answers out, until the other end is closed."""
    try:
        while True:
            connection.send(attempt(connection.recv()))
    except (EOFError, OSError, KeyboardInterrupt):
        return
