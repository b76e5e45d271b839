"""GE ops of a layer in the graph of a whole step: few, in place, and every Transpose and Cast for a known reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from specc.bench.ascend import layer_lines
from specc.bench.ascend_counts import LayerCount, step_count
from specc.bench.ascend_reasons import NO_OP, UNKNOWN, reason
from specc.spec import load

SPECS = Path(__file__).resolve().parents[3] / "specs"


def no_ops(layer: LayerCount) -> int:
    return sum(count for kind, line, made_for, count in layer.movers if reason(kind, line, made_for) == NO_OP)


def test_an_attention_layer_moves_and_casts_nothing() -> None:
    found = step_count(load(SPECS / "smollm2-prompt-lookup-tree.yaml"))
    (layer,) = found.layers
    assert layer.movers == []
    assert layer.ops["FusedInferAttentionScore"] == 1
    assert layer.ops["Scatter"] == 2
    assert layer.total <= 26
    assert (found.copies, found.dirty) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "most"), [("gdn-15m-tree", 140), ("gdn-1b3-specla", 140)])
def test_a_delta_layer_stays_below_its_bar(name: str, most: int) -> None:
    """The bar does not count casts of a type to itself, which torchair makes of every product and GE takes away."""
    found = step_count(load(SPECS / f"{name}.yaml"))
    (layer,) = found.layers
    assert layer.total - no_ops(layer) <= most, "\n".join(layer_lines(layer))
    assert (found.copies, found.dirty) == (0, 0)


@pytest.mark.slow
def test_every_transpose_and_cast_of_a_hybrid_has_a_reason() -> None:
    found = step_count(load(SPECS / "qwen3-next-hybrid.yaml"))
    assert [layer.kind for layer in found.layers] == ["gated delta", "attention"]
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
