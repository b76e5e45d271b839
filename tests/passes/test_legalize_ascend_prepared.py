"""legalize-ascend leaves to the loader what every step would make of a weight alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx import GraphModule, Node

from specc import driver
from specc.backends.printing.runtime.prepared import prepared, stored_shape
from specc.check.ascend.half import reduced_half
from specc.check.weights import logical_weights, program_weights
from specc.ir.clone import clone
from specc.ir.edit import modules
from specc.ir.parser import parse_program
from specc.ir.printer import print_program
from specc.passes.legalize_ascend.common import Plan
from specc.passes.legalize_ascend.prepared import prepare
from specc.program import DecodeProgram
from specc.spec import load

SPECS = Path(__file__).resolve().parents[2] / "specs"
aten = torch.ops.aten


@cache
def programs(name: str, dtype: str = "float16") -> tuple[Any, DecodeProgram, DecodeProgram]:
    """A small spec, its program before all passes, and the one that the module is printed from."""
    loaded = reduced_half(load(SPECS / f"{name}.yaml"), dtype)
    naive = driver.lower_spec(loaded, "ascend")
    return loaded, naive, driver.run_passes(loaded, naive, target="ascend", verify=False).program


def nodes(module: GraphModule) -> list[Node]:
    return [node for body in modules(module) for node in body.graph.nodes]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_delta_layer_reads_prepared_constants(dtype: str) -> None:
    loaded, naive, final = programs("gdn-15m-tree", dtype)
    forms = {name: weight.form for name, weight in final.weights.items() if weight.form}
    wanted = {"a_log": "negative_exp", "conv": "taps_first"} | ({"dt_bias": "wide"} if dtype != "float32" else {})
    assert forms == wanted
    assert all(final.weights[name].dtype == torch.float32 for name in wanted)
    assert {name: weight.sources for name, weight in final.weights.items() if weight.form} == {
        name: naive.weights[name].sources for name in wanted
    }, "a checkpoint's names stay"
    for module in final.graphs.values():
        assert not [node for node in nodes(module) if node.target is aten.neg.default]
    logical = logical_weights(loaded.spec, 1)
    made = program_weights(final.weights, naive, logical)
    for layer, rate in enumerate(made["a_log"]):
        assert torch.equal(rate, -logical["a_log"][layer].float().exp())
        assert torch.equal(made["conv"][layer].permute(2, 1, 0), logical["conv"][layer].float())


def test_the_text_of_a_program_keeps_forms() -> None:
    final = programs("gdn-15m-tree")[2]
    text = print_program(final)
    assert 'form="taps_first"' in text
    assert parse_program(text).weights == final.weights


def test_a_weight_that_graphs_read_in_two_ways_stays_as_it_is() -> None:
    naive = programs("gdn-15m-tree")[1]
    for other in (False, True):
        graphs = {name: clone(module) for name, module in naive.graphs.items()}
        for node in nodes(graphs["verify"]) if other else ():
            if node.target is aten.neg.default and node.args[0].target is aten.exp.default:  # type: ignore[union-attr]
                node.target = aten.abs.default
        plan = Plan(naive, frozenset(), 0)
        made = prepare(replace(naive, graphs=graphs), plan)
        assert made.weights["a_log"].form == ("" if other else "negative_exp")
        noted = [note for note in plan.notes if "`a_log`" in note.message]
        assert [note.fired for note in noted] == [not other]


@pytest.mark.parametrize(
    ("form", "meaning"),
    [
        ("", lambda x: x),
        ("wide", lambda x: x),
        ("negative_exp", lambda x: -x.exp()),
        ("plus_one", lambda x: 1.0 + x),
        ("taps_first", lambda x: torch.stack([x[:, :, tap].t() for tap in range(x.shape[2])])),
    ],
)
def test_forms(form: str, meaning: Callable[[torch.Tensor], torch.Tensor]) -> None:
    stored = torch.randn(5, 1, 4, generator=torch.Generator().manual_seed(0))
    made = prepared(form, stored)
    assert torch.equal(made, meaning(stored))
    assert made.is_contiguous()
    assert stored_shape(form, tuple(made.shape)) == tuple(stored.shape)
