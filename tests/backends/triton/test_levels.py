"""Levels of a drawn draft: one launch between two of them, and the same results."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch.fx import GraphModule, Node

from specc.backends.triton.backend import prepared
from specc.backends.triton.drawing import written_draws
from specc.backends.triton.levels import drawn_levels
from specc.backends.triton.regions.schedule import plan_level
from specc.ir import ops
from specc.ir.build import GraphBuilder, fake
from specc.ir.dims import BATCH
from specc.ir.edit import is_loop
from specc.ir.interpreter import Interpreter
from tests.backends.triton.test_drawing import draft_graph

aten = torch.ops.aten
TABLE = torch.arange(60, dtype=torch.float32).view(20, 3)


def targets(module: GraphModule) -> list[Any]:
    return [node.target for node in module.graph.nodes]


def launched(module: GraphModule) -> list[list[Node]]:
    """What stands between two levels: regions and nodes outside of them that launch something, from draw to loop."""
    found: list[list[Node]] = []
    open_level = False
    for unit in plan_level(module).order:
        nodes = [unit] if isinstance(unit, Node) else list(unit.nodes)
        if isinstance(unit, Node) and unit.target in (ops.draw_children, ops.draw_embedded):
            found.append([])
            open_level = True
        elif isinstance(unit, Node) and is_loop(unit):
            open_level = False
        elif open_level and not (isinstance(unit, Node) and launches_nothing(unit)):
            found[-1] += nodes
    return found[:-1]


def launches_nothing(node: Node) -> bool:
    free = (operator.getitem, ops.int_table, ops.full_rows, ops.batch_index, aten.flatten.using_ints)
    return node.op != "call_function" or node.target in (*free, aten.unsqueeze.default, aten.zeros_like.default)


@pytest.mark.parametrize("passes", [False, True])
def test_between_two_levels_there_is_nothing_else(passes: bool) -> None:
    module = written_draws(draft_graph("tree", passes))
    assert all(len(nodes) > 1 for nodes in launched(module))
    made = drawn_levels(module)
    assert launched(made) == [[], []]
    assert targets(made).count(ops.draw_embedded) == 2
    assert targets(made).count(ops.draw_children) == 1  # of the last level nothing is embedded


def test_what_no_draw_decides_stands_in_front_of_all_levels() -> None:
    """Rotations and masks of all levels, in the kernel of the first positions."""
    made = prepared(draft_graph("tree", True))
    regions = [[node.target for node in unit.nodes] for unit in plan_level(made).order if not isinstance(unit, Node)]
    assert [found.count(ops.rope_tables) for found in regions][:3] == [2, 1, 0]
    assert [found.count(aten.ne.Scalar) for found in regions][:3] == [2, 0, 0]
    assert not [found for found in regions[2:] if ops.rope_tables in found or aten.ne.Scalar in found]


def test_a_row_of_each_sequence_is_no_launch_of_torch() -> None:
    """The root's hidden state: torch would list the batch first."""
    b = GraphBuilder(("draft",))
    x = b.placeholder("x", fake((BATCH, 5, 8), torch.float32))
    column = b.placeholder("at", fake((BATCH, 1), torch.int64))
    module = b.output([b.call(aten.index.Tensor, x, [b.call(ops.batch_index, column), column])])
    assert [[node.target for node in region.nodes] for region in plan_level(module).regions] == [[aten.index.Tensor]]


def test_graphs_that_draw_nothing_stay() -> None:
    module = draft_graph("tree", True)
    assert drawn_levels(module) is module


def two_levels(places: list[list[int]], wide: int = 3, dtype: torch.dtype = torch.float32) -> GraphModule:
    """A level of two nodes with three children each, some of which are embedded, and sums for the end."""
    b = GraphBuilder(("draft",))
    logits = b.placeholder("logits", fake((2, 2, 20), dtype))
    table = b.placeholder("w_table", fake((20, wide), torch.float32))
    rng, at = (b.placeholder(name, fake(shape, torch.int64)) for name, shape in (("rng", (2,)), ("at", (2, 2))))
    drawn = b.call(ops.draw_children, logits, rng, at, at, 3, 0.8)
    early = b.call(aten.add.Tensor, at, 1)
    index = b.call(aten.flatten.using_ints, b.item(drawn, 0), 1, 2)
    score = b.call(aten.clamp_max.default, b.item(drawn, 1), 0.0)
    for values in places:
        index = b.call(aten.index_select.default, index, 1, b.call(ops.int_table, index, values, [len(values)]))
    embedded = b.call(aten.embedding.default, table, index)
    return b.output([embedded, score, early, index, b.item(drawn, 2)])


def run(module: GraphModule, wide: int = 3) -> Any:
    made = torch.Generator().manual_seed(3)
    logits, table = torch.randn(2, 2, 20, generator=made), torch.randn(20, wide, generator=made)
    return Interpreter(module).run(logits, table, torch.tensor([5, 6]), torch.tensor([[1, 2], [3, 4]]))


@pytest.mark.parametrize("places", [[[0, 1, 2]], [[5, 0, 3, 4], [2, 0]], [[4, 1], [1, 0], [0]]])
def test_embeddings_of_drawn_tokens_are_part_of_the_draw(places: list[list[int]]) -> None:
    module = two_levels(places)
    made = drawn_levels(module)
    assert ops.draw_embedded in targets(made)
    assert aten.embedding.default not in targets(made)
    for one, other in zip(run(made), run(module), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("places", "wide"), [([[0, 0]], 3), ([[1, 2], [1, 1]], 3), ([[0]], 4096), ([], 3)])
def test_embeddings_that_no_draw_can_hold_stay(places: list[list[int]], wide: int) -> None:
    """A token twice, more elements than a program should move, all tokens without a choice of places."""
    module = two_levels(places, wide)
    made = drawn_levels(module)
    assert ops.draw_embedded not in targets(made)
    for one, other in zip(run(made, wide), run(module, wide), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", ["best", "shifted", "given"])
def test_tokens_that_are_not_drawn_are_embedded_as_before(kind: str) -> None:
    b = GraphBuilder(("draft",))
    logits = b.placeholder("logits", fake((2, 2, 20), torch.float32))
    table = b.placeholder("w_table", fake((20, 3), torch.float32))
    rng, at = (b.placeholder(name, fake(shape, torch.int64)) for name, shape in (("rng", (2,)), ("at", (2, 2))))
    drawn = b.item(b.call(ops.draw_children, logits, rng, at, at, 3, 0.8), 0)
    best = b.item(b.call(ops.stable_topk, logits, 3), 1)
    token = {"best": best, "shifted": b.call(aten.neg.default, drawn), "given": b.call(aten.unsqueeze.default, at, 2)}
    flat = b.call(aten.flatten.using_ints, token[kind], 1, 2)
    picked = b.call(aten.index_select.default, flat, 1, b.call(ops.int_table, flat, [0], [1]))
    module = b.output([b.call(aten.embedding.default, table, picked), drawn])
    assert ops.draw_embedded not in targets(drawn_levels(module))


def test_what_reads_memory_that_is_written_keeps_its_place() -> None:
    b = GraphBuilder(("draft",))
    logits = b.placeholder("logits", fake((2, 2, 20), torch.float32))
    rng, at, slot = (
        b.placeholder(name, fake(shape, torch.int64)) for name, shape in (("rng", (2,)), ("at", (2, 2)), ("slot", (2,)))
    )
    drawn = b.call(ops.draw_children, logits, rng, at, at, 3, 0.8)
    before = b.call(aten.add.Tensor, slot, 1)
    b.call(aten.copy_.default, slot, rng)
    after = b.call(aten.add.Tensor, slot, 2)
    module = b.output([b.item(drawn, 0), before, after])
    given = (torch.randn(2, 2, 20), torch.tensor([5, 6]), torch.tensor([[1, 2], [3, 4]]))
    made = Interpreter(drawn_levels(module)).run(*given, torch.tensor([10, 20]))
    assert made[1].tolist() == [11, 21]
    assert made[2].tolist() == [7, 8]
