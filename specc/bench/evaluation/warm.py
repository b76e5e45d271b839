"""Cells that only prepare: a module compiled and run for a few steps, so that sources and kernels lie on disk.

They run in many processes at once, before anything is timed; their answers are not kept with the results. The weights
are zeros of the right layout: kernels do not depend on values, and a head need not be trained yet.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from specc.bench.evaluation.along import AlongRunner
from specc.bench.evaluation.cells import Cell
from specc.bench.evaluation.modules import kept_source, loaded_spec
from specc.bench.evaluation.pool import Processes, run_cells
from specc.bench.evaluation.store import Store
from specc.bench.evaluation.turns import WARM_UP_TOKENS, warm_up_prompts
from specc.bench.soak_plain import WHOLE
from specc.runtime.module import import_source
from specc.runtime.session import with_stop_tokens
from specc.runtime.tokenizer import Tokenizer

WARM = "specc.bench.evaluation.warm:warm_cell"
COMPILE = "specc.bench.evaluation.warm:compile_cell"
POSITIONS = 4
Inputs = Mapping[str, Any]
Places = Mapping[str, str]


def source_of(inputs: Inputs, places: Places) -> str:
    """The module's source, from the cache or into it; it has the stop tokens that its session would give it."""
    loaded = loaded_spec(inputs, places)
    stop: Sequence[int] = ()
    if not inputs["ignore_eos"]:
        stop = loaded.spec.accept.stop_tokens or Tokenizer.from_folder(Path(places["model"])).stop_tokens
    return kept_source(with_stop_tokens(loaded, stop), inputs["target"], Path(places["cache"]))


def blank_weights(module: Any, device: torch.device) -> Any:
    """`Weights` of zeros, laid out as the module's loader does it."""

    def one(layout: Any) -> torch.Tensor:
        made = torch.zeros(layout.shape, dtype=layout.dtype, device=device)
        by_columns = getattr(module, "MATRICES_BY_COLUMNS", False) and layout.experts == 0
        return module.stored_by_columns(made) if by_columns else made

    return module.Weights(
        *(
            one(layout) if layout.layers is None else tuple(one(layout) for _ in range(layout.layers))
            for layout in module.WEIGHTS
        )
    )


def warm_cell(inputs: Inputs, places: Places) -> dict[str, Any]:
    """Both decodings and plain decoding along a text, a few tokens each; modules for many rows plainly with them."""
    began = time.monotonic()
    module: Any = import_source(source_of(inputs, places), "specc_generated_warm")
    device = torch.device(inputs["device"])
    weights = blank_weights(module, device)
    decoder = module.Decoder(weights, device)
    for prompt in warm_up_prompts(module, inputs["device"]):
        for speculative in (True, False):
            decoder.generate([prompt], WARM_UP_TOKENS, speculative=speculative)
    with torch.no_grad():
        for rows in (1, WHOLE) if module.MAX_BATCH_SIZE >= WHOLE else (1,):
            runner = AlongRunner(module, weights, rows, POSITIONS, device)
            runner.run([[1, 2, 3]] * rows, [[1, 2]] * rows, POSITIONS)
    decoder.close()
    return {"seconds": round(time.monotonic() - began, 2)}


def compile_cell(inputs: Inputs, places: Places) -> dict[str, Any]:
    """The module's source only: no device is needed."""
    return {"bytes": len(source_of(inputs, places))}


def prepare(modules: Sequence[tuple[Inputs, Places]], work: str, processes: int, say: Callable[[str], None],
            deadline: float | None = None) -> list[str]:  # fmt: skip
    """Every module once, in so many processes; what failed (it is seen again when its cell is measured)."""
    cells = [Cell(f"prepare/{number}", work, *module) for number, module in enumerate(modules)]
    with tempfile.TemporaryDirectory() as folder:
        sweep = run_cells(cells, Store(Path(folder)), Processes(processes), deadline, say)
    return [f"{item.cell.name}: {item.answer.failure}" for item in sweep.failed]
