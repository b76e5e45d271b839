"""A token's attention and its projection become one op where nothing can tell; else they stay, with a reason."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.fx import GraphModule, Node

from specc.backends.triton import projections
from specc.backends.triton.ops.linear import LinearConfig
from specc.backends.triton.projections import attention_projections
from specc.ir import ops
from specc.ir.build import BodyBuilder, GraphBuilder, fake
from specc.ir.edit import modules
from specc.ir.interpreter import Interpreter

aten = torch.ops.aten
BATCH, HEADS, SHARED, DIM, CAPACITY, FEATURES = 2, 4, 2, 8, 12, 6
ONCE = LinearConfig(bf=16, bk=64, kw=4, split=1, warps=4, stages=0)
STREAMED = LinearConfig(bf=16, bk=64, kw=4, split=1, warps=4, stages=2)
CHANGES: dict[str, str] = {
    "65 tokens": "many tokens",
    "read twice": "is read elsewhere",
    "flat read twice": "is read elsewhere",
    "half of the heads": "side by side",
    "other op": "no projection behind it",
    "norm": "more than a projection",
    "gated": "more than a projection",
    "wide": "takes several steps",
    "cache written": "touches what it reads or writes",
    "cache read": "touches what it reads or writes",
    "length written": "touches what it reads or writes",
}
"""Changes of the graph that each leave it as it is, and what the note says."""


def graph(
    change: str = "", tree: bool = False, residual: bool = True, tokens: int = 1, pages: bool = False
) -> GraphModule:
    """The attention of some tokens and its projection, with one change; results: y and what else is read."""
    b = GraphBuilder(("decode",))
    kind, tokens = torch.float32, 65 if change == "65 tokens" else tokens

    def held(name: str, *shape: int, dtype: torch.dtype = kind) -> Node:
        return b.placeholder(name, fake(shape, dtype))

    q, k, v = (held(name, BATCH, tokens, n, DIM) for name, n in (("q", HEADS), ("k", SHARED), ("v", SHARED)))
    cos, sin = (held(name, BATCH, tokens, DIM // 2) for name in ("cos", "sin"))
    caches = [held(name, *((5, 6) if pages else (BATCH, CAPACITY)), SHARED, DIM) for name in ("K", "V")]
    table = [held("table", BATCH, 2, dtype=torch.int32)] if pages else []
    length = held("length", BATCH, dtype=torch.int64)
    mask = held("mask", BATCH, tokens, tokens, dtype=torch.bool) if tree else None
    width = HEADS * DIM // (2 if change == "half of the heads" else 1)
    weight, norm = held("weight", FEATURES, width), held("norm", width)
    beside = held("beside", BATCH, tokens, FEATURES // (2 if change == "gated" else 1))
    results: list[Node] = []
    op = ops.rope_attention_paged_ if pages else ops.rope_attention_
    o = b.call(op, q, k, v, cos, sin, *caches, *table, length, None, mask, 0.3, False)
    if change == "read twice":
        results.append(b.call(aten.neg.default, o))
    heads = b.call(aten.slice.Tensor, o, 2, 0, HEADS // 2) if change == "half of the heads" else o
    flat = b.call(aten.flatten.using_ints, heads, -2, -1)
    if change == "flat read twice":
        results.append(b.call(aten.neg.default, flat))
    elif change == "cache written":
        b.call(aten.mul_.Scalar, caches[0], 2.0)
    elif change == "cache read":
        results.append(b.call(aten.add.Tensor, caches[1], 0.0))
    elif change == "length written":
        b.call(aten.mul_.Scalar, length, 0)
    if change == "other op":
        y = b.call(aten.neg.default, flat)
    else:
        scale, act = norm if change == "norm" else None, "silu_mul" if change == "gated" else "none"
        y = b.call(ops.fused_linear, flat, weight, None, scale, 0.0, act, beside if residual else None)
    return b.output([y, *results])


def outcome(module: GraphModule, seed: int = 0) -> list[torch.Tensor]:
    """Results, and all tensors afterwards."""
    made = torch.Generator().manual_seed(seed)
    held: list[Any] = []
    for node in module.graph.nodes:
        if node.op == "placeholder":
            value = node.meta["val"]
            if value.dtype == torch.int64:
                held.append(torch.tensor([4, 2]))
            elif value.dtype == torch.int32:
                held.append(torch.tensor([[3, 1], [2, 4]], dtype=torch.int32))
            elif value.dtype == torch.bool:
                held.append(torch.ones(value.shape, dtype=torch.bool).tril())
            else:
                held.append(torch.randn(value.shape, generator=made, dtype=value.dtype))
    return [*(item.clone() for item in Interpreter(module).run(*held)), *held]


def rewritten(module: GraphModule, config: LinearConfig = ONCE) -> tuple[GraphModule, list[str]]:
    with patch.object(projections, "linear_config", lambda *_: config):
        return attention_projections(module)


def targets(module: GraphModule) -> list[Any]:
    return [node.target for node in module.graph.nodes if str(node.target).startswith("specc.")]


@pytest.mark.parametrize("tree", [True, False])
@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("pages", [True, False])
def test_one_op_stands_for_both(tree: bool, residual: bool, tokens: int, pages: bool) -> None:
    module = graph(tree=tree, residual=residual, tokens=tokens, pages=pages)
    made, notes = rewritten(module)
    assert notes == []
    assert targets(made) == [ops.rope_attention_paged_linear_ if pages else ops.rope_attention_linear_]
    for left, right in zip(outcome(module), outcome(made), strict=True):
        assert torch.equal(left, right)


def test_it_has_the_origins_of_both() -> None:
    made, _ = rewritten(graph())
    node = next(item for item in made.graph.nodes if item.target is ops.rope_attention_linear_)
    assert projections.ORIGIN in node.meta["passes"]
    assert "decode" in node.meta["keys"]


@pytest.mark.parametrize("change", list(CHANGES))
def test_what_must_stay_stays_with_a_reason(change: str) -> None:
    made, notes = rewritten(graph(change), STREAMED if change == "wide" else ONCE)
    assert ops.rope_attention_linear_ not in targets(made)
    assert len(notes) == 1
    assert CHANGES[change] in notes[0]


@pytest.mark.parametrize("change", ["cache written", "cache read", "length written"])
def test_a_check_that_is_left_out_is_noticed(change: str) -> None:
    """The reasons are no pretexts: without them the graph would do something else."""
    module = graph(change)
    with patch.object(projections, "_nothing_between", lambda *_: None):
        made, _ = rewritten(module)
    assert ops.rope_attention_linear_ in targets(made)
    assert not all(torch.equal(a, b) for a, b in zip(outcome(module), outcome(made), strict=True))


def layers() -> GraphModule:
    """Two layers in a loop, each of which makes its rows from what the last one has left."""
    b = GraphBuilder(("decode",))
    held = {name: b.placeholder(name, fake((2, BATCH, CAPACITY, SHARED, DIM), torch.float32)) for name in ("K", "V")}
    held["W"] = b.placeholder("W", fake((2, SHARED * DIM, SHARED * DIM), torch.float32))
    x = b.placeholder("x", fake((BATCH, 1, SHARED * DIM), torch.float32))
    shared = {name: b.placeholder(name, fake((BATCH, 1, DIM // 2), torch.float32)) for name in ("cos", "sin")}
    shared["length"] = b.placeholder("length", fake((BATCH,), torch.int64))
    body = BodyBuilder("layer", carried={"x": x}, sliced=held, invariant=shared, keys=("decode",))
    row = body.call(aten.unflatten.int, body["x"], -1, [SHARED, DIM])
    given = (row, row, row, body["cos"], body["sin"], body["K"], body["V"], body["length"], None, None, 0.3, False)
    flat = body.call(aten.flatten.using_ints, body.call(ops.rope_attention_, *given), -2, -1)
    y = body.call(ops.fused_linear, flat, body["W"], None, None, 0.0, "none", body["x"])
    return b.output(body.close(b, 2, [y], "loop"))


def test_it_is_found_in_the_body_of_a_loop() -> None:
    module = layers()
    made, notes = rewritten(module)
    assert notes == []
    found = [node for block in modules(made) for node in block.graph.nodes]
    assert sum(node.target is ops.rope_attention_linear_ for node in found) == 1
    assert not any(node.target is ops.rope_attention_ for node in found)
    for left, right in zip(outcome(module), outcome(made), strict=True):
        assert torch.equal(left, right)
