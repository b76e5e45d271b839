"""Cells that only prepare: a module compiled and run for a few steps, so that sources and kernels lie on disk.

They run in many processes at once, before anything is timed; their answers are not kept with the results.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from specc.bench.evaluation.along import runner_of
from specc.bench.evaluation.cells import Cell
from specc.bench.evaluation.modules import kept_source, loaded_spec, opened
from specc.bench.evaluation.pool import Processes, run_cells
from specc.bench.evaluation.store import Store
from specc.bench.evaluation.turns import warm_up
from specc.runtime.session import with_stop_tokens
from specc.runtime.tokenizer import Tokenizer

WARM = "specc.bench.evaluation.warm:warm_cell"
COMPILE = "specc.bench.evaluation.warm:compile_cell"
POSITIONS = 4


def warm_cell(inputs: Mapping[str, Any], places: Mapping[str, str]) -> dict[str, Any]:
    """Both decodings and plain decoding along a text, a few tokens each."""
    began = time.monotonic()
    session = opened(inputs, places)
    warm_up(session, inputs["device"])
    with torch.no_grad():
        runner_of(session, POSITIONS).run([[1, 2, 3]], [[1, 2]], POSITIONS)
    return {"seconds": round(time.monotonic() - began, 2)}


def compile_cell(inputs: Mapping[str, Any], places: Mapping[str, str]) -> dict[str, Any]:
    """The module's source only: no device is needed."""
    loaded = loaded_spec(inputs, places)
    stop = () if inputs["ignore_eos"] else loaded.spec.accept.stop_tokens
    if not stop and not inputs["ignore_eos"]:
        stop = Tokenizer.from_folder(Path(places["model"])).stop_tokens
    source = kept_source(with_stop_tokens(loaded, stop), inputs["target"], Path(places["cache"]))
    return {"bytes": len(source)}


def prepare(modules: Sequence[tuple[Mapping[str, Any], Mapping[str, str]]], work: str, processes: int,
            say: Callable[[str], None], deadline: float | None = None) -> list[str]:  # fmt: skip
    """Every module once, in so many processes; what failed (it is seen again when its cell is measured)."""
    cells = [Cell(f"prepare/{number}", work, *module) for number, module in enumerate(modules)]
    with tempfile.TemporaryDirectory() as folder:
        sweep = run_cells(cells, Store(Path(folder)), Processes(processes), deadline, say)
    return [f"{item.cell.name}: {item.answer.failure}" for item in sweep.failed]
