"""Greedy acceptance as one op over the parts of an argmax: found in the graphs, equal, and left where it differs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx import GraphModule

from specc.backends.triton.greedy import greedy_walks
from specc.backends.triton.ops.vocab import argmax_parts
from specc.driver import lower_spec, run_passes
from specc.ir import ops
from specc.ir.build import GraphBuilder, fake
from specc.ir.dims import BATCH
from specc.ir.edit import is_loop
from specc.ir.interpreter import Interpreter
from specc.program import output_ports
from specc.spec.load import loads
from tests.backends.triton.regions_support import ROWS, compiled, printed, region_calls
from tests.backends.triton.test_vocabulary import SIZES, TREES, changes, inputs, targets

aten = torch.ops.aten


def accept_graph(tree: str, passes: bool, dtype: str = "float32") -> GraphModule:
    """The graph `accept` of a small model whose acceptance is greedy."""
    loaded = loads(f"""specc: 1
name: tiny
target: {{family: llama, config: {SIZES}}}
draft: {{method: draft_model, family: llama, config: {SIZES}, {TREES[tree]}}}
accept: {{method: greedy, stop_tokens: [5]}}
runtime: {{max_batch_size: 4, max_sequence_length: 48, dtype: {dtype}}}
""")
    program = lower_spec(loaded)
    return (run_passes(loaded, program, verify=False).program if passes else program).graphs["accept"]


@pytest.mark.parametrize("passes", [False, True])
@pytest.mark.parametrize("tree", list(TREES))
def test_a_greedy_walk_is_found_and_computes_the_same(tree: str, passes: bool) -> None:
    module = accept_graph(tree, passes)
    made = greedy_walks(module)
    assert targets(made).count(ops.greedy_tree) == 1
    assert not any(is_loop(node) for node in made.graph.nodes)
    assert output_ports(made) == output_ports(module)
    taken = 0
    for seed in range(4):
        values = inputs(module, seed)
        agreeing(module, values)
        found, wanted = Interpreter(made).run(*values), Interpreter(module).run(*values)
        assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
        taken += int(wanted[[port.name for port in output_ports(module)].index("accept_length")].sum())
    assert taken > 4


def agreeing(module: GraphModule, values: list[torch.Tensor]) -> None:
    """The target says the first drafted tokens, here and there."""
    names = [node.name for node in module.graph.nodes if node.op == "placeholder"]
    logits, tokens = values[names.index("logits")], values[names.index("tokens")]
    for node in range(1, tokens.shape[1]):
        above = values[names.index("parent")][:, node] if "parent" in names else torch.full((3,), node - 1)
        logits[torch.arange(3), above, tokens[:, node]] += 4.0


def test_a_walk_that_differs_in_anything_keeps_its_loop() -> None:
    module = accept_graph("tree", True)
    changed = [*changes(module)]
    assert len(changed) >= 4
    for name, made in changed:
        assert ops.greedy_tree not in targets(greedy_walks(made)), name


def test_float64_keeps_its_loop() -> None:
    assert ops.greedy_tree not in targets(greedy_walks(accept_graph("tree", True, "float64")))


@settings(max_examples=12)
@given(
    st.integers(1, 2), st.integers(1, 5), st.integers(1, 90), st.integers(0, 10**6), st.sampled_from([16, 32]),
    st.sampled_from([torch.float32, torch.bfloat16]),
)  # fmt: skip
def test_parts_tell_the_argmax(batch: int, nodes: int, size: int, seed: int, span: int, dtype: torch.dtype) -> None:
    """Ties, infinities, zeros of both signs and NaN: the first of the largest, as torch says."""
    made = torch.Generator().manual_seed(seed)
    x = torch.randint(-2, 3, (batch, nodes, size), generator=made).to(dtype)
    x[torch.rand(x.shape, generator=made) < 0.1] = -0.0
    x[torch.rand(x.shape, generator=made) < 0.02] = float("nan")
    x[torch.rand(x.shape, generator=made) < 0.05] = float("-inf")
    parts = argmax_parts(x, span)
    assert torch.equal(parts, ops.argmax_parts(x, span))
    assert torch.equal(0x7FFFFFFF - (parts.amax(1) & 0xFFFFFFFF), x.argmax(-1))


def walk(nodes: int, parts: int, longest: int, chain: bool) -> GraphModule:
    """A greedy walk and a bit of work on its results, so that it is in a kernel."""
    b = GraphBuilder()
    keys = b.placeholder("parts", fake((BATCH, parts, nodes), torch.int64))
    tokens, parent = (b.placeholder(name, fake((BATCH, nodes), torch.int64)) for name in ("tokens", "parent"))
    valid = b.placeholder("valid", fake((BATCH, nodes), torch.bool))
    made = b.call(ops.greedy_tree, keys, tokens, None if chain else parent, valid, longest)
    path, count, current, bonus = (b.item(made, number) for number in range(4))
    more = [b.call(aten.add.Tensor, item, 1) for item in (count, current, bonus)]
    return b.output([path, *more])


@settings(max_examples=14, deadline=None)
@given(st.sampled_from([2, 5, 16, 19]), st.sampled_from([1, 3]), st.booleans(), st.integers(0, 10**6))
def test_a_kernel_walks_as_the_op_does(nodes: int, parts: int, chain: bool, seed: int) -> None:
    """Whatever is not valid, and however deep; trees of more than 16 nodes are walked another way."""
    made = torch.Generator().manual_seed(seed)
    keys = ops.argmax_parts(torch.randint(0, 3, (ROWS, nodes, 7), generator=made).float(), 3 if parts == 3 else 7)
    tokens = torch.randint(0, 3, (ROWS, nodes), generator=made)
    valid = torch.rand(ROWS, nodes, generator=made) < 0.8
    parent = torch.stack([torch.randint(0, max(node, 1), (ROWS,), generator=made) for node in range(nodes)], 1)
    parent[:, 0] = -1
    module = walk(nodes, parts, nodes, chain)
    wanted, got = (compiled(printed(module, regions=each))(keys, tokens, parent, valid) for each in (False, True))
    assert all(torch.equal(one, other) for one, other in zip(wanted, got, strict=True))
    assert "greedy_walk(" in region_calls(module)[0].generated.source
