"""GE ops of a layer in the graph of a whole step: few, in place, and every Transpose and Cast for a known reason."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from specc.bench.ascend import layer_lines
from specc.bench.ascend_counts import ATTENTION, DELTA, EXPERTS, LayerCount, StepCount, step_count
from specc.bench.ascend_reasons import NO_OP, UNKNOWN, reason
from specc.spec import load
from tests.cells import ALL

SPECS = Path(__file__).resolve().parents[3] / "specs"


MOST = 140
"""GE ops of a gated delta layer, as torchair emits them; experts are counted apart."""
DTYPES = ("float16", "bfloat16", "float32")
GATED = ("gdn-15m-tree", "gdn-1b3-specla", "gdn-15m-eagle", "qwen3-next-hybrid")


@pytest.mark.slow
def test_an_attention_layer_moves_and_casts_nothing() -> None:
    found = step_count(load(SPECS / "smollm2-prompt-lookup-tree.yaml"))
    (layer,) = found.layers
    assert layer.movers == []
    assert layer.ops["FusedInferAttentionScore"] == 1
    assert layer.ops["Scatter"] == 2
    assert layer.total <= 20
    assert (found.copies, found.dirty) == (0, 0)


CELLS = (
    ("gdn-15m-tree", "float16", 4),
    ("gdn-1b3-specla", "bfloat16", 1),
    ("gdn-15m-eagle", "float32", 4),
    ("qwen3-next-hybrid", "float16", 1),
)
"""Every type, one sequence and several, every spec."""


@cache
def counted(name: str, dtype: str, batch: int) -> StepCount:
    """The counts of a spec's step."""
    return step_count(load(SPECS / f"{name}.yaml"), dtype, batch)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype", "batch"), [(n, d, b) for n in GATED for d in DTYPES for b in (1, 4)] if ALL else CELLS
)
def test_a_delta_layer_stays_below_its_bar(name: str, dtype: str, batch: int) -> None:
    found = counted(name, dtype, batch)
    layer = found.layers[0]
    assert layer.kind == DELTA
    assert layer.total <= MOST, "\n".join(layer_lines(layer))
    assert "Identity" not in layer.ops
    assert "TensorMove" not in layer.ops
    assert NO_OP not in {reason(kind, line, made_for) for kind, line, made_for, _ in layer.movers}
    assert (found.copies, found.dirty) == (0, 0)


@pytest.mark.slow
def test_every_transpose_and_cast_of_a_hybrid_has_a_reason() -> None:
    found = counted("qwen3-next-hybrid", "float16", 1)
    assert [layer.kind for layer in found.layers] == [DELTA, ATTENTION, EXPERTS]
    unknown = [
        (kind, line)
        for layer in found.layers
        for kind, line, made_for, _ in layer.movers
        if reason(kind, line, made_for) == UNKNOWN
    ]
    assert unknown == []
    assert (found.copies, found.dirty) == (0, 0)


def test_lines_without_a_reason_say_so() -> None:
    layer = LayerCount("gated delta", {"Cast": 2.0}, [("Cast", "x = y.half()", "aten._to_copy.default", 2)])
    assert layer_lines(layer)[-1].strip() == UNKNOWN
