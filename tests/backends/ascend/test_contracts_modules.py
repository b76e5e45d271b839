"""The graphs of generated modules, traced op by op, break no contract either.

Program graphs hold composite ops as one node, whose operands are proved there; here they are the aten ops that a
device gets. Two kinds of proof do not survive that and are left to the programs: what a mask means after a closure
computed by products, and ranges of integers that were floats on the way.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from specc.backends.ascend.contracts import check_contracts
from specc.backends.ascend.contracts.delta import is_triangle
from tests.backends.ascend.modules import QUICK, pair

PROVED_ON_PROGRAMS = {"SPC513", "SPC526", "SPC560", "SPC561"}
BATCH = 2


def fields(item: Any) -> list[str]:
    """The field that every flattened tensor of a named tuple belongs to."""
    pairs = zip(item._fields, item, strict=True)
    return [name for name, held in pairs for _ in range(1 if isinstance(held, torch.Tensor) else len(held))]


# One of each kind: attention, a drafter's head, a recurrence, both; the programs of all specs are checked elsewhere.
OTHERS = {("eagle-pangu", "bfloat16"), ("gdn-15m-tree", "bfloat16"), ("qwen3-next-hybrid", "bfloat16")}
FIRST = (QUICK[-1], "bfloat16")
CELLS = [FIRST, *(pytest.param(*cell, marks=pytest.mark.slow) for cell in sorted(OTHERS - {FIRST}))]


@pytest.mark.parametrize(("name", "dtype"), CELLS)
def test_graphs_of_a_generated_module_break_no_contract(name: str, dtype: str) -> None:
    both = pair(name, dtype)
    program, module, weights = both.compilation.program, both.ascend.module, both.ascend.weights
    state = module.init_state(BATCH, device="cpu")
    slots = module.views(state)
    tensors = module.flattened(weights, slots)
    names = [""] * len(fields(weights)) + fields(slots)
    seen = set()
    for step, graph, own in module.example_calls(tensors, state):
        traced = make_fx(graph, tracing_mode="fake", _allow_non_fake_inputs=True)(*tensors, *own)
        inputs = [node.name for node in traced.graph.nodes if node.op == "placeholder"]
        slot_of = dict(zip(inputs, names, strict=False))
        ranges: dict[str, Any] = {
            node: program.ranges[f"slot:{slot}"] for node, slot in slot_of.items() if f"slot:{slot}" in program.ranges
        }
        prefill = step.startswith("prefill")
        if prefill:
            tokens, lengths = inputs[len(names) : len(names) + 2]
            ranges |= {tokens: (0, program.attributes["vocab_size"] - 1), lengths: (0, own[0].shape[1])}
        found = check_contracts(traced, ranges=ranges, stage="prefill" if prefill else "decode")
        left = [item.render() for item in found if item.code not in PROVED_ON_PROGRAMS]
        assert left == [], f"graph {step}"
        seen.add(step.split("-")[0])
    assert {"step", "plain", "flush", "prefill"} <= seen


@pytest.mark.slow
def test_products_of_the_delta_rule_are_recognised_and_in_float32() -> None:
    """That nothing was found is worth something only where the N x N matrices are seen for what they are."""
    both = pair("gdn-15m-tree", "bfloat16")
    module, weights = both.ascend.module, both.ascend.weights
    state = module.init_state(BATCH, device="cpu")
    tensors = module.flattened(weights, module.views(state))
    graph, own = next((graph, own) for step, graph, own in module.example_calls(tensors, state) if step == "step")
    traced = make_fx(graph, tracing_mode="fake", _allow_non_fake_inputs=True)(*tensors, *own)
    triangles = [
        factor.meta["val"].dtype
        for node in traced.graph.nodes
        if node.target is torch.ops.aten.bmm.default
        for factor in node.args
        if is_triangle(factor)
    ]
    assert triangles
    assert set(triangles) == {torch.float32}
