"""Work over a vocabulary is recognised in the graphs, computes the same there, and stays where a graph differs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx import GraphModule, Node

from specc.backends.triton.vocabulary import vocabulary_kernels
from specc.driver import lower_spec, run_passes
from specc.ir import ops
from specc.ir.build import GraphBuilder, fake
from specc.ir.clone import clone
from specc.ir.edit import bodies, is_loop, modules
from specc.ir.interpreter import Interpreter
from specc.program import input_ports, output_ports
from specc.spec.load import loads

aten = torch.ops.aten
VOCABULARY, BATCH = 17, 3
SIZES = (
    "{num_hidden_layers: 1, hidden_size: 16, num_attention_heads: 2, num_key_value_heads: 1, head_dim: 8, "
    f"intermediate_size: 24, vocab_size: {VOCABULARY}, max_position_embeddings: 512}}"
)
TREES = {
    "tree": "tree: static, choices: [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0]]",
    "chain": "tree: chain, num_speculative_tokens: 4",
}


def accept_graph(rule: str, tree: str, sampling: str, passes: bool) -> GraphModule:
    """The graph `accept` of a small model with drawn drafts (true_q) or ranked ones."""
    loaded = loads(f"""specc: 1
name: tiny
target: {{family: llama, config: {SIZES}}}
draft: {{method: draft_model, family: llama, config: {SIZES}, {TREES[tree]}}}
accept: {{method: rejection, rule: {rule}, stop_tokens: [5]}}
sampling: {{{sampling}, seed: 7}}
runtime: {{max_batch_size: 4, max_sequence_length: 48, dtype: float32}}
""")
    program = lower_spec(loaded)
    return (run_passes(loaded, program, verify=False).program if passes else program).graphs["accept"]


def inputs(module: GraphModule, seed: int) -> list[torch.Tensor]:
    """Drafts of which some are accepted; one row has finished."""
    made = torch.Generator().manual_seed(seed)
    ports = input_ports(module)
    nodes = ports["input:tokens"].meta["val"].shape[1]
    logits = torch.randn(BATCH, nodes, VOCABULARY, generator=made) * 2
    values = {
        "input:tokens": torch.stack([torch.randperm(VOCABULARY, generator=made)[:nodes] for _ in range(BATCH)]),
        "input:parent": torch.tensor(
            [[-1, *(int(torch.randint(0, i, (1,), generator=made)) for i in range(1, nodes))]] * BATCH
        ),
        "input:valid": torch.rand(BATCH, nodes, generator=made) < 0.9,
        "input:logits": logits,
        "input:q_probs": (logits + torch.randn(logits.shape, generator=made)).softmax(-1),
        "slot:rng": torch.randint(0, 10**6, (BATCH,), generator=made),
        "slot:length": torch.randint(1, 40, (BATCH,), generator=made),
        "slot:remaining": torch.full((BATCH,), 30),
        "slot:finished": torch.tensor([False, False, True]),
    }
    return [values[name] for name in ports]


def targets(module: GraphModule) -> list[Any]:
    return [node.target for block in modules(module) for node in block.graph.nodes]


CASES = [
    (rule, tree, sampling)
    for rule in ("true_q", "target_only")
    for tree in TREES
    for sampling in ("temperature: 0.8", "temperature: 1.3, top_k: 5", "temperature: 0.8, top_k: 9, top_p: 0.9")
]


@pytest.mark.parametrize("passes", [False, True])
@pytest.mark.parametrize(("rule", "tree", "sampling"), CASES)
def test_a_rejection_walk_is_found_and_computes_the_same(rule: str, tree: str, sampling: str, passes: bool) -> None:
    module = accept_graph(rule, tree, sampling, passes)
    made = vocabulary_kernels(module)
    assert targets(made).count(ops.reject_tree) == 1
    assert not any(is_loop(node) for node in made.graph.nodes)
    assert (ops.sampling_probs in targets(made)) == ("top_p" in sampling)
    assert output_ports(made) == output_ports(module)
    emitted = 0
    for seed in range(3):
        values = inputs(module, seed)
        found, expected = Interpreter(made).run(*values), Interpreter(module).run(*values)
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
        emitted += int(sum(item.sum() for item in expected if item.dtype == torch.int64))
    assert emitted > 0


def changes(module: GraphModule) -> Iterator[tuple[str, GraphModule]]:
    """The graph with one thing changed in its walk: a comparison, a constant, the order of two operands."""
    turned = {aten.lt.Tensor: aten.le.Tensor, aten.gt.Scalar: aten.ge.Scalar, aten.sub.Tensor: aten.add.Tensor}
    count = sum(1 for _, body in bodies(module) for _ in body.graph.nodes)
    for number in range(count):
        for kind in ("target", "constant", "swap"):
            made = clone(module)
            node = [item for _, body in bodies(made) for item in body.graph.nodes][number]
            arguments = list(node.args)
            places = [place for place, item in enumerate(arguments) if type(item) in (int, float)]
            tensors = [place for place, item in enumerate(arguments) if isinstance(item, Node)]
            if kind == "target" and node.target in turned:
                node.target = turned[node.target]
            elif kind == "constant" and places and node.op == "call_function":
                arguments[places[-1]] += 1
            elif kind == "swap" and node.target in (aten.lt.Tensor, aten.where.self, aten.sub.Tensor):
                one, other = tensors[-2:]
                arguments[one], arguments[other] = arguments[other], arguments[one]
            else:
                continue
            node.args = tuple(arguments)
            yield f"{kind} of {node.name}", made


@pytest.mark.parametrize("rule", ["true_q", "target_only"])
def test_a_walk_that_differs_in_anything_keeps_its_loop(rule: str) -> None:
    module = accept_graph(rule, "tree", "temperature: 0.8", True)
    changed = list(changes(module))
    assert len(changed) > 15
    for name, made in changed:
        assert ops.reject_tree not in targets(vocabulary_kernels(made)), name


@settings(max_examples=20, deadline=None)
@given(
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    bound=st.sampled_from([0.0, -1.0]),
    dim=st.sampled_from([-1, 2, 1]),
    scaled=st.booleans(),
)
def test_the_best_log_probabilities_are_found(dtype: torch.dtype, bound: float, dim: int, scaled: bool) -> None:
    b = GraphBuilder(("draft",))
    logits = b.placeholder("logits", fake((2, 3, 11), dtype))
    wide = logits if dtype == torch.float32 else b.call(aten._to_copy.default, logits, dtype=torch.float32)
    wide = b.call(aten.div.Scalar, wide, 0.7) if scaled else wide
    law = b.call(aten.log_softmax.int, wide, dim)
    found = b.call(ops.stable_topk, b.call(aten.clamp_max.default, law, bound), 4)
    module = b.output([b.item(found, 0), b.item(found, 1)])
    made = vocabulary_kernels(module)
    assert (ops.topk_log_probs in targets(made)) == (bound == 0.0 and dim != 1)
    x = (torch.randn(2, 3, 11, generator=torch.Generator().manual_seed(dim)) * 4).to(dtype)
    for one, other in zip(Interpreter(made).run(x), Interpreter(module).run(x), strict=True):
        assert torch.equal(one, other)
