"""Every shipped spec, in a small geometry: float64 reference = eager NPU operators = GE graph by the real torchair.

Trees and prompts are drawn (specc/check/ascend/walk.py), types and batch sizes go through all their values, and the
bounds are derived from the roundings of a layer (specc/check/ascend/bounds.py). What is asserted beside: one graph per
step whatever the lengths and trees, and no copy of a whole cache.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specc.backends.ascend.harness import counts
from specc.bench.ascend_rungs import BATCHES, DTYPES, GRAPH, Place, places, thinned
from specc.check.ascend.half import Half, reduced_half
from specc.check.ascend.ladder import walked
from specc.check.ascend.steps import Executed, Steps, eagerly
from specc.check.ascend.walk import LONGEST, Trio, Walk
from specc.spec import load
from tests.cells import ALL

SPECS = Path(__file__).resolve().parents[3] / "specs"
NAMES = sorted(path.stem for path in SPECS.glob("*.yaml"))
FAULTY = "smollm2-prompt-lookup-tree"
EVERY = ((GRAPH,), DTYPES, BATCHES)
CELLS = places(NAMES, *EVERY) if ALL else thinned(NAMES, *EVERY)
"""Every spec with every type and batch; by default one of those for each, in turn."""


def trio_of(name: str, dtype: str, batch: int, *, graph: bool = True) -> Trio:
    half = Half(reduced_half(load(SPECS / f"{name}.yaml"), dtype))
    return Trio(half, Steps(half, batch, eagerly), Steps(half, batch, Executed) if graph else None)


def compared(trio: Trio, examples: int) -> None:
    """Walks on the trio, and what must hold of its graphs afterwards."""
    assert walked(trio, examples, 0, lambda what, done, total: None) is None
    # Two prompts of other lengths and other trees, through the same graphs.
    vocabulary, batch = trio.half.exact.vocabulary, trio.eager.batch
    for size, seed in ((3, 1), (LONGEST - 1, 2)):
        prompts = tuple(tuple((row + 7 * place) % vocabulary for place in range(size)) for row in range(batch))
        trio.run(Walk(prompts, ((seed, 99), (seed + 8, 99)), seed))
    assert trio.graph is not None
    for step, made in trio.graph.executed().items():
        assert made.lowered is not None
        assert made.lowered.recompiles == 0, step
        assert made.runs > 1, step
        assert counts.copies(made.lowered.graph) == [], step
        assert all(update.clean for update in counts.updates(made.lowered.graph)), step
    assert trio.seen.ties <= 1
    assert trio.seen.steps > batch


@pytest.mark.slow
@pytest.mark.parametrize("place", CELLS, ids=lambda place: f"{place.spec}, {place.dtype}, {place.batch}")
def test_every_shipped_spec_agrees_in_every_type(place: Place) -> None:
    compared(trio_of(place.spec, place.dtype, place.batch), 3)


def test_a_thinned_product_has_every_spec_type_and_batch() -> None:
    found = thinned(NAMES, *EVERY)
    assert [place.spec for place in found] == NAMES
    assert {(place.dtype, place.batch) for place in found} == {(dtype, batch) for dtype in DTYPES for batch in BATCHES}
    assert set(found) < set(places(NAMES, *EVERY))


FAULTS = {
    "rows one place off": ("state.length.unsqueeze(1)", "(state.length + 1).unsqueeze(1)"),
    "an activation left out": ("torch.ops.npu.npu_swiglu(", "(lambda x, dim: x[..., : x.shape[-1] // 2])("),
    "masks of the opposite meaning": ("atten_mask=atten_mask", "atten_mask=1 - atten_mask"),
    "padding is accepted": ("drafted_valid[:, token : token + 1].squeeze(1)", "is_child"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_bounds_notice_a_planted_fault(fault: str) -> None:
    trio = trio_of(FAULTY, "bfloat16", 1, graph=False)
    old, new = FAULTS[fault]
    assert old in trio.half.source
    broken = Half(trio.half.loaded)
    broken.__dict__["source"] = trio.half.source.replace(old, new)
    broken.__dict__["program"] = trio.half.program
    worse = replace(trio, half=broken, eager=Steps(broken, 1, eagerly))
    found = walked(worse, 4, 0, lambda what, done, total: None)
    assert found is not None
    assert ("acceptance: " if fault == "padding is accepted" else "from float64") in found
