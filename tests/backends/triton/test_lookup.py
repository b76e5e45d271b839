"""Prompt lookup's tree as one op: found in the graphs, equal to what lowering makes, with kernels of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx import GraphModule

from specc.backends.triton.lookup import pattern_of, written_lookups
from specc.backends.triton.ops.draft import lookup_tree
from specc.driver import lower_spec, run_passes
from specc.ir import ops
from specc.ir.clone import clone
from specc.ir.edit import modules
from specc.ir.interpreter import Interpreter
from specc.lower.config import DraftConfig
from specc.program import output_ports
from specc.spec.load import loads

aten = torch.ops.aten
CAPACITY = 40


def draft_graph(draft: str, passes: bool) -> GraphModule:
    """The graph `draft` of a small model."""
    loaded = loads(f"""specc: 1
name: tiny
target:
  family: llama
  config: {{num_hidden_layers: 1, hidden_size: 16, num_attention_heads: 2, num_key_value_heads: 1, head_dim: 8,
            intermediate_size: 24, vocab_size: 17, max_position_embeddings: 512}}
draft: {{method: prompt_lookup, {draft}}}
accept: {{method: greedy}}
runtime: {{max_batch_size: 4, max_sequence_length: 48, dtype: float32}}
""")
    program = lower_spec(loaded)
    return (run_passes(loaded, program, verify=False).program if passes else program).graphs["draft"]


def inputs(module: GraphModule, seed: int) -> list[torch.Tensor]:
    """Texts of few words, in which suffixes come back; one row has finished."""
    made, held = torch.Generator().manual_seed(seed), list[torch.Tensor]()
    for node in module.graph.nodes:
        if node.op == "placeholder":
            value = node.meta["val"]
            shape = (3, *value.shape[1:])
            if value.dtype == torch.bool:
                held.append(torch.tensor([False, False, True]))
            elif value.dim() == 2:
                held.append(torch.randint(0, 3, shape, generator=made))
            else:
                held.append(torch.randint(0, 40, shape, generator=made))
    return held


def targets(module: GraphModule) -> list[Any]:
    return [node.target for block in modules(module) for node in block.graph.nodes]


TREES = (
    "tree: dynamic, num_speculative_tokens: 15, num_steps: 6, top_k: 3, ngram: {min: 1, max: 4}",
    "tree: dynamic, num_speculative_tokens: 7, num_steps: 4, top_k: 2, ngram: {min: 2, max: 3}",
)


@pytest.mark.parametrize("passes", [False, True])
@pytest.mark.parametrize("draft", TREES)
def test_a_tree_is_found_and_is_the_same(draft: str, passes: bool) -> None:
    module = draft_graph(draft, passes)
    made = written_lookups(module)
    assert targets(made).count(ops.lookup_tree) == 1
    assert ops.pack_tree not in targets(made)
    assert output_ports(made) == output_ports(module)
    drafted = 0
    for seed in range(4):
        values = inputs(module, seed)
        found, wanted = Interpreter(made).run(*values), Interpreter(module).run(*values)
        assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
        drafted += int(wanted[-1].sum())
    assert drafted > 30


def test_a_graph_that_differs_in_anything_keeps_its_ops() -> None:
    module = draft_graph(TREES[1], True)
    turned = {aten.le.Tensor: aten.lt.Tensor, aten.ge.Scalar: aten.gt.Scalar, aten.eq.Tensor: aten.ne.Tensor}
    count = 0
    for number, node in enumerate(module.graph.nodes):
        if node.target in turned and node.meta["val"].dim() > 1:
            made = clone(module)
            changed = list(made.graph.nodes)[number]
            changed.target = turned[changed.target]
            fed = any(item.target is ops.pack_tree and changed in _above(item) for item in made.graph.nodes)
            count += fed
            assert (ops.lookup_tree in targets(written_lookups(made))) == (not fed), node.name
    assert count >= 5


def _above(node: Any) -> set[Any]:
    found: set[Any] = set()
    stack = list(node.all_input_nodes)
    while stack:
        item = stack.pop()
        if item not in found:
            found.add(item)
            stack += item.all_input_nodes
    return found


def test_chains_have_no_tree() -> None:
    chain = "tree: chain, num_speculative_tokens: 4, ngram: {min: 1, max: 3}"
    assert ops.lookup_tree not in targets(written_lookups(draft_graph(chain, True)))


@st.composite
def drafters(draw: st.DrawFn) -> tuple[int, DraftConfig]:
    """(nodes, drafter)."""
    nodes, least = draw(st.integers(3, 20)), draw(st.integers(1, 2))
    return nodes, DraftConfig(
        method="prompt_lookup", tree="dynamic", num_speculative_tokens=nodes - 1, num_steps=draw(st.integers(2, 6)),
        top_k=draw(st.integers(1, 4)), ngram_min=least, ngram_max=least + draw(st.integers(0, 2)),
    )  # fmt: skip


@settings(max_examples=12)
@given(drafters(), st.integers(0, 10**6), st.integers(1, 4), st.integers(0, CAPACITY - 1))
def test_the_op_and_its_kernel_make_what_lowering_makes(
    drafter: tuple[int, DraftConfig], seed: int, words: int, last: int
) -> None:
    """Whatever stands behind the text, and for texts as long as there is room."""
    nodes, config = drafter
    module = pattern_of(nodes, config, CAPACITY)
    history = torch.randint(0, words, (2, CAPACITY), generator=torch.Generator().manual_seed(seed))
    length = torch.tensor([last, CAPACITY - 1])
    root = history.gather(1, length.unsqueeze(1)).squeeze(1)
    values = {"history": history, "length": length, "root_token": root}
    names = [str(node.name) for node in module.graph.nodes if node.op == "placeholder"]
    wanted = Interpreter(module).run(*(values[name] for name in names))
    numbers = (nodes, config.num_steps, config.top_k, config.ngram_min, config.ngram_max)
    for made in (ops.lookup_tree(history, length, root, *numbers), lookup_tree(history, length, root, *numbers)):
        for one, other in zip(made, wanted, strict=True):
            assert torch.equal(one, other)
