"""layer-major on drafting: a token's final output feeds a later token, so the loop stays, with that reason."""

from __future__ import annotations

import operator
from pathlib import Path

import pytest
import torch
from torch.fx import GraphModule, Node

from specc.ir import ops
from specc.ir.build import BodyBuilder, GraphBuilder, fake
from specc.ir.clone import clone
from specc.ir.dims import BATCH
from specc.ir.edit import modules
from specc.ir.port import Port
from specc.lower.assemble import lower
from specc.manager import PassContext
from specc.passes.layer_major import LayerMajor, layer_major, layer_major_faults
from specc.program import INDEX_SAFE, TREE_MASKED, DecodeProgram
from specc.spec import load
from tests.passes.tree_programs import (
    TREES,
    Small,
    staged,
)

aten = torch.ops.aten
SMALL = TREES[0]
FINAL = "the final output of a"


def calls(module: GraphModule, target: object) -> list[Node]:
    """Calls of an op in a module and its loop bodies."""
    return [node for item in modules(module) for node in item.graph.nodes if node.target is target]


def masked(small: Small = SMALL) -> GraphModule:
    """A fresh copy of verify as layer-major gets it."""
    return clone(staged(small)["insert-tree-masks"].program.graphs["verify"])


# Drafting: a token's final output feeds a later token.


def naive_draft(axis: str, layers: int = 2, steps: int = 3) -> GraphModule:
    """Greedy drafting token by token: embed -> layers -> head -> argmax -> the next token."""
    b = GraphBuilder(("draft",))
    start = b.placeholder("start", fake((BATCH, 1), torch.int64), Port("slot", "root_token"))
    embedding = b.placeholder("embedding", fake((11, 8), torch.float64), Port("weight", "embed_tokens"))
    weight = b.placeholder("weight", tuple(fake((8, 8), torch.float64) for _ in range(layers)), Port("weight", "w"))
    body = BodyBuilder(
        axis, carried={"token": start}, sliced={}, invariant={"embedding": embedding, "weight": weight}, keys=b.keys
    )
    x = body.call(aten.embedding.default, body["embedding"], body["token"])
    inner = BodyBuilder("layer", carried={"x": x}, sliced={"weight": body["weight"]}, invariant={}, keys=b.keys)
    y = inner.call(aten.tanh.default, inner.call(aten.linear.default, inner["x"], inner["weight"]))
    (hidden,) = inner.close(body, layers, [y], "layers")
    logits = body.call(aten.linear.default, hidden, body["embedding"])
    token = body.call(aten.argmax.default, logits, -1, name="next_token")
    out = body.close(b, steps, [token, token], "drafted")
    return b.output([out[1]], [Port("result", "tokens")])


@pytest.mark.parametrize("axis", ["token", "step"])
def test_drafting_is_refused_because_a_final_output_feeds_a_later_token(axis: str) -> None:
    module = naive_draft(axis, layers=5)
    made, notes = layer_major(module, "draft")
    assert made is module
    assert [(note.fired, note.keys) for note in notes] == [(False, ("draft",))]
    assert notes[0].message == (
        f"the final output of a {axis} feeds a later {axis}: `next_token`, made after the last layer, comes back as "
        f"`token` before the first; distance (1, -5) along ({axis}s, layers)"
    )


def _drafting(graph: str, module: GraphModule) -> DecodeProgram:
    return DecodeProgram("drafting", {}, {}, {graph: module}, frozenset({INDEX_SAFE, TREE_MASKED}))


@pytest.mark.parametrize("axis", ["token", "step"])
def test_the_predicate_allows_refused_loops_in_draft_alone(axis: str) -> None:
    assert layer_major_faults(_drafting("draft", naive_draft(axis))) == []
    (fault,) = layer_major_faults(_drafting("verify", naive_draft(axis)))
    assert FINAL in fault


def test_the_predicate_asks_for_the_interchange_where_it_is_legal() -> None:
    for name in ("verify", "draft"):
        (fault,) = layer_major_faults(_drafting(name, masked()))
        assert "its dependences allow the interchange" in fault


def test_the_pass_keeps_a_refused_draft_and_establishes_its_property() -> None:
    result = LayerMajor().run(_drafting("draft", naive_draft("step")), PassContext())
    assert not result.changed
    assert FINAL in result.notes[0].message


@pytest.mark.slow
def test_the_dynamic_draft_of_a_shipped_spec_is_refused() -> None:
    text = Path(__file__).parents[2] / "specs" / "smollm2-dynamic-tree.yaml"
    module = lower(load(text).spec).graphs["draft"]
    made, notes = layer_major(module, "draft")
    assert made is module
    assert [note.fired for note in notes] == [False]
    assert notes[0].message.startswith(FINAL)


def test_in_step_sampling_through_a_table_is_refused_too() -> None:
    """Each token writes what it picked into a table and the next one embeds the row before its own."""
    b = GraphBuilder(("draft",))
    like = b.placeholder("like", fake((BATCH, 3), torch.int64))
    embedding = b.placeholder("embedding", fake((11, 8), torch.float64))
    weight = b.placeholder("weight", tuple(fake((8, 8), torch.float64) for _ in range(2)))
    table = b.call(ops.full_rows, like, [-1, 4], 0, torch.int64)
    batch = b.call(ops.batch_index, like)
    invariant = {"embedding": embedding, "weight": weight, "batch": batch}
    body = BodyBuilder("token", carried={"picked": table}, sliced={"like": like}, invariant=invariant)
    number = body.call(aten.full_like.default, body["like"], body.index)
    before = body.call(aten.index.Tensor, body["picked"], [body["batch"], number])
    x = body.call(aten.embedding.default, body["embedding"], before)
    inner = BodyBuilder("layer", carried={"x": x}, sliced={"weight": body["weight"]}, invariant={})
    (hidden,) = inner.close(body, 2, [inner.call(aten.linear.default, inner["x"], inner["weight"])], "layers")
    logits = body.call(aten.linear.default, hidden, body["embedding"])
    token = body.call(aten.argmax.default, logits, -1, name="picked_now")
    one = body.call(aten.squeeze.dim, token, 1)
    place = body.call(operator.add, body.index, 1)
    written = body.call(aten.select_scatter.default, body["picked"], one, 1, place)
    out = body.close(b, 3, [written, token], "tokens")
    _, notes = layer_major(b.output([out[1]]), "verify")
    assert FINAL in notes[0].message
    assert "`picked_now`" in notes[0].message
    assert "(1, -2)" in notes[0].message
