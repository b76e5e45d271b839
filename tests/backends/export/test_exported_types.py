"""Exported steps in float32, float16 and bfloat16, one row and four: near float64 within the derived bound.

The same cells as `specc bench ascend --rungs` runs; by default a few of them, all with HYPOTHESIS_PROFILE=ci.
"""

from __future__ import annotations

import pytest

from specc.bench.ascend_rungs import BATCHES, DTYPES, WITNESSES, Place, fresh, places, thinned
from specc.bench.ascend_table import cell_of, markdown, shown
from specc.spec import load
from tests.backends.export.exports import NAMES, SPECS
from tests.cells import ALL, spread

RUNTIMES = tuple(WITNESSES)
FEW = {runtime: thinned(NAMES, [runtime], DTYPES, BATCHES) for runtime in RUNTIMES}
CELLS = (
    places(NAMES, RUNTIMES, DTYPES, BATCHES)
    if ALL
    else [*spread(FEW[RUNTIMES[0]][:7], 4), Place("smollm2-plain", RUNTIMES[1], "float16", 1)]
)
NO_KERNELS = {("ONNX Runtime", "bfloat16"): "NOT_IMPLEMENTED"}
"""onnxruntime's CPU provider has no bfloat16 kernels for most operators: such a model can be written, not run there."""
IN_PYTORCH = {("IREE", "accept"): "signal 8"}
"""IREE's compiler ends with SIGFPE while it names the parts of some acceptances of one row (AnnotateDispatches)."""


@pytest.mark.slow
@pytest.mark.parametrize("place", CELLS, ids=lambda place: f"{place.rung}, {place.spec}, {place.dtype}, {place.batch}")
def test_exported_steps_are_within_the_bound(place: Place) -> None:
    (cell,) = fresh(load(SPECS / f"{place.spec}.yaml", []), place, {})
    reason = NO_KERNELS.get((place.rung, place.dtype))
    assert cell.outcome == ("within" if reason is None else "refused"), cell.why
    if reason is not None:
        assert reason in cell.why
    for left in filter(None, cell.why.split("; ") if reason is None else ()):
        step, _, said = left.partition(" in PyTorch: ")
        assert IN_PYTORCH[place.rung, step] in said
    assert cell_of(cell.as_json()) == cell
    assert shown(cell) in markdown([cell])
