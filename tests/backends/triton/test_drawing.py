"""Drafts drawn from a second model's law: kernels against the ops' references, and graphs that they are found in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.fx import GraphModule

from specc.backends.triton.drawing import written_draws
from specc.backends.triton.ops import drawing
from specc.driver import lower_spec, run_passes
from specc.ir import ops
from specc.ir.build import GraphBuilder, fake, output_values
from specc.ir.clone import clone
from specc.ir.edit import modules
from specc.ir.interpreter import Interpreter
from specc.lower.drafts.children import drawn
from specc.spec.load import loads

aten = torch.ops.aten
SEEDS = st.integers(0, 10**6)
VOCABULARY = 17
SIZES = (
    "{num_hidden_layers: 1, hidden_size: 16, num_attention_heads: 2, num_key_value_heads: 1, head_dim: 8, "
    f"intermediate_size: 24, vocab_size: {VOCABULARY}, max_position_embeddings: 512}}"
)
TREES = {
    "tree": "tree: static, choices: [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0]]",
    "level": "tree: static, choices: [[0], [1]]",
    "chain": "tree: chain, num_speculative_tokens: 4",
}


def level(seed: int, size: int, dtype: torch.dtype, rows: int = 2) -> tuple[torch.Tensor, ...]:
    """Logits of some nodes and the counters of their draws."""
    made = torch.Generator().manual_seed(seed)
    logits = (torch.randn(2, rows, size, generator=made) * 3).to(dtype)
    rng, position = (torch.randint(0, 10**6, shape, generator=made) for shape in ((2,), (2, rows)))
    draw = torch.randint(0, 99, (1 if seed % 2 else 2, rows), generator=made)
    return logits, rng, position, draw


@settings(max_examples=20, deadline=None)
@given(
    seed=SEEDS,
    size=st.sampled_from([5, 300, 3000]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    count=st.integers(1, 5),
    temperature=st.sampled_from([0.3, 0.8, 1.7]),
)
@example(seed=1, size=70000, dtype=torch.bfloat16, count=3, temperature=0.8)
def test_children_are_those_of_the_reference(
    seed: int, size: int, dtype: torch.dtype, count: int, temperature: float
) -> None:
    case = level(seed, size, dtype)
    made, expected = (module.draw_children(*case, count, temperature) for module in (drawing, ops))
    assert torch.equal(made[0], expected[0])
    exact = (case[0].double() / temperature).log_softmax(-1)
    torch.testing.assert_close(made[1].double(), exact.gather(-1, expected[0]), rtol=0, atol=4e-6)
    torch.testing.assert_close(made[2], expected[2], rtol=2e-6, atol=0)


@settings(max_examples=15, deadline=None)
@given(
    seed=SEEDS,
    size=st.sampled_from([40, 3000]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    rows=st.integers(1, 3),
    count=st.integers(1, 6),
    width=st.sampled_from([1, 24]),
    data=st.data(),
)
def test_children_with_their_embeddings(
    seed: int, size: int, dtype: torch.dtype, rows: int, count: int, width: int, data: st.DataObject
) -> None:
    """In any order, of up to all tokens: more than a launch has bits for go through a table of their own."""
    case = level(seed, size, dtype, rows)
    table = torch.randn(size, width, generator=torch.Generator().manual_seed(seed)).to(dtype)
    places = data.draw(st.lists(st.integers(0, rows * count - 1), min_size=1, max_size=18, unique=seed % 3 > 0))
    made, expected = (module.draw_embedded(*case, count, 0.8, table, places) for module in (drawing, ops))
    assert torch.equal(made[0], expected[0])
    torch.testing.assert_close(made[1:3], expected[1:3], rtol=2e-6, atol=4e-6)
    assert torch.equal(made[3], expected[3])


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:divide by zero encountered:RuntimeWarning")
@pytest.mark.parametrize("size", [6, 2500])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_laws_that_are_no_numbers_and_tokens_that_are_impossible(value: float, size: int) -> None:
    """A NaN or an infinity leaves no log-probability to draw by; impossible tokens come last, and say so."""
    logits, *counters = level(3, size, torch.float32)
    logits[0, 0, 2] = value
    logits[0, 1] = float("-inf")
    logits[1, 0, 1:] = float("-inf")
    made, expected = (module.draw_children(logits, *counters, 3, 0.8) for module in (drawing, ops))
    assert torch.equal(made[0], expected[0])
    torch.testing.assert_close(made[1], expected[1], rtol=1e-5, atol=1e-6, equal_nan=True)
    assert made[1][0, 0].isfinite().all() == (value == float("-inf"))
    assert made[1][1, 0].tolist() == [0.0, float("-inf"), float("-inf")]


@settings(max_examples=15, deadline=None)
@given(
    seed=SEEDS,
    size=st.sampled_from([5, 300, 3000]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    widths=st.lists(st.integers(1, 3), min_size=1, max_size=8),
)
def test_laws_of_nodes(seed: int, size: int, dtype: torch.dtype, widths: list[int]) -> None:
    """Whatever the number of levels; a node without children has no law."""
    levels = [level(seed + number, size, dtype, rows) for number, rows in enumerate(widths)]
    sums = [ops.draw_children(*each, 1, 0.8)[2] for each in levels]
    row = torch.randint(0, sum(widths) + 1, (2, 6), generator=torch.Generator().manual_seed(seed))
    row[0, 0] = sum(widths)
    made, expected = (module.drawn_laws([each[0] for each in levels], sums, row, 0.8) for module in (drawing, ops))
    torch.testing.assert_close(made, expected, rtol=4e-6, atol=0)
    assert not made[0, 0].any()


def draft_graph(tree: str, passes: bool) -> GraphModule:
    """The graph `draft` of a small model whose drafts are drawn."""
    loaded = loads(f"""specc: 1
name: tiny
target: {{family: llama, config: {SIZES}}}
draft: {{method: draft_model, family: llama, config: {SIZES}, {TREES[tree]}}}
accept: {{method: rejection, rule: true_q, stop_tokens: [5]}}
sampling: {{temperature: 0.8, seed: 7}}
runtime: {{max_batch_size: 4, max_sequence_length: 48, dtype: float32}}
""")
    program = lower_spec(loaded)
    return (run_passes(loaded, program, verify=False).program if passes else program).graphs["draft"]


def targets(module: GraphModule) -> list[Any]:
    return [node.target for block in modules(module) for node in block.graph.nodes]


@pytest.mark.parametrize("passes", [False, True])
@pytest.mark.parametrize("tree", TREES)
def test_every_level_of_a_drawn_tree_is_found(tree: str, passes: bool) -> None:
    made = written_draws(draft_graph(tree, passes))
    found = targets(made)
    assert found.count(ops.draw_children) == {"tree": 3, "level": 1, "chain": 2}[tree]
    assert not {ops.stable_topk, ops.counter_uniform_rows, aten.log_softmax.int} & set(found)
    assert found.count(ops.drawn_laws) == (0 if tree == "chain" else 1)
    assert found.count(ops.sampling_probs) == (2 if tree == "chain" else 0)


def one_level(dtype: torch.dtype, temperature: float = 0.8) -> GraphModule:
    """Two children drawn from each of three nodes, and the laws of four nodes."""
    b = GraphBuilder(("draft",))
    logits = b.placeholder("logits", fake((2, 3, 11), dtype))
    rng, position, row = (
        b.placeholder(name, fake(shape, torch.int64))
        for name, shape in (("rng", (2,)), ("at", (2, 3)), ("row", (2, 4)))
    )
    zero = b.call(ops.full_rows, rng, [-1, 3], 0, torch.int64)
    draw = b.call(aten.add.Tensor, zero, b.call(ops.int_table, zero, [7, 9, 4], [3]))
    token, log_prob, law = drawn(b, logits, temperature, 2, (rng, position, draw))
    padded = b.call(aten.constant_pad_nd.default, law, [0, 0, 0, 1], 0.0)
    return b.output([token, log_prob, b.call(aten.index.Tensor, padded, [b.call(ops.batch_index, row), row])])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_what_is_written_computes_the_same(dtype: torch.dtype) -> None:
    """Products in float64 have no kernel, and stay."""
    module = one_level(dtype)
    made = written_draws(module)
    assert (ops.draw_children in targets(made)) == (ops.drawn_laws in targets(made)) == (dtype != torch.float64)
    for seed in range(20):
        draws = torch.Generator().manual_seed(seed)
        logits, rng = (
            (torch.randn(2, 3, 11, generator=draws) * 2).to(dtype),
            torch.randint(10**6, (2,), generator=draws),
        )
        position, row = torch.randint(99, (2, 3), generator=draws), torch.tensor([[0, 1, 2, 3], [2, 2, 3, 0]])
        found, expected = (Interpreter(each).run(logits, rng, position, row) for each in (made, module))
        assert torch.equal(found[0], expected[0])
        for one, other in zip(found[1:], expected[1:], strict=True):
            torch.testing.assert_close(one, other, rtol=4e-6, atol=4e-6)


def changes(module: GraphModule) -> Iterator[tuple[str, GraphModule]]:
    """The graph with one thing changed in its draws: an op, a constant, the order of operands, a further reader."""
    turned = {aten.neg.default: aten.abs.default, aten.log.default: aten.exp.default, aten.add.Tensor: aten.sub.Tensor}
    for number, original in enumerate(module.graph.nodes):
        for kind in ("target", "constant"):
            made = clone(module)
            node = list(made.graph.nodes)[number]
            scalars = [place for place, item in enumerate(node.args) if type(item) in (int, float)]
            numbers = "val" in node.meta and getattr(node.meta["val"], "is_floating_point", bool)()
            if kind == "target" and node.target in turned and numbers:
                node.target = turned[node.target]
            elif kind == "constant" and scalars and node.target in (aten.log_softmax.int, aten.div.Scalar):
                node.update_arg(scalars[-1], -node.args[scalars[-1]] - 1)
            else:
                continue
            yield f"{kind} of {original.name}", made


def test_draws_that_differ_in_anything_stay() -> None:
    changed = list(changes(one_level(torch.float32)))
    assert len(changed) > 6
    for name, made in changed:
        assert ops.draw_children not in targets(written_draws(made)), name


def test_laws_that_differ_in_anything_are_not_read_from_levels() -> None:
    for place, value in ((1, [0, 0, 1, 0]), (2, 1.0)):
        module = one_level(torch.float32)
        padded = output_values(module)[2].args[0]
        padded.update_arg(place, value)
        found = targets(written_draws(module))
        assert (ops.draw_children in found, ops.drawn_laws in found) == (True, False)


def test_scores_that_are_read_too_keep_the_draws() -> None:
    module = one_level(torch.float32)
    topk = next(node for node in module.graph.nodes if node.target is ops.stable_topk)
    b = GraphBuilder(("draft",), module=module)
    output = next(node for node in module.graph.nodes if node.op == "output")
    with module.graph.inserting_before(output):
        scores = b.item(topk, 0)
    output.args = ((*output.args[0], scores),)
    assert ops.draw_children not in targets(written_draws(module))
