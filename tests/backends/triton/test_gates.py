"""Gates join the convolution's launch where nothing can tell, else they stay with a reason; kernels against the ops."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx import GraphModule, Node

from specc.backends.triton import gates
from specc.backends.triton.gates import joined_gates
from specc.backends.triton.ops import conv
from specc.ir import ops
from specc.ir.build import BodyBuilder, GraphBuilder, fake
from specc.ir.edit import modules
from specc.ir.interpreter import Interpreter

aten = torch.ops.aten
LAYERS, BATCH, NODES, HEADS, VALUE_HEADS, KEYS, VALUES, TAPS = 2, 2, 3, 1, 2, 4, 3, 4
CHANNELS = 2 * HEADS * KEYS + VALUE_HEADS * VALUES
COLUMNS = CHANNELS + 2 * VALUE_HEADS
CHANGES: dict[str, str] = {
    "tokens": "more than one token",
    "other rows": "other rows count",
    "all rows": "other rows count",
    "two masks": "count different rows",
    "scaled beta": "scaled by something else",
    "scaled shift": "threshold of its own",
    "no softplus": "the log decay is",
    "no rule": "no delta rule reads it",
    "types": "no kernel takes these types",
    "window read": "touches what they read or write",
    "inputs written": "touches what they read or write",
    "late": "before all operands are there",
}
"""Changes of a token's layer that each leave it as it is, and what the note says."""


def rows(b: Any, x: Node, kind: str, change: str, mask: Node | None) -> tuple[Node, Node]:
    """(g, beta) of the projection x [B,M,columns]."""
    a, raw = (b.call(aten.narrow.default, x, -1, CHANNELS + at, VALUE_HEADS) for at in (0, VALUE_HEADS))
    if change == "types":
        a = b.call(aten._to_copy.default, a, dtype=torch.float16)
        a = b.call(aten._to_copy.default, a, dtype=torch.float32)
    shifted = b.call(aten.add.Tensor, a, b["dt"], **({"alpha": 2} if change == "scaled shift" else {}))
    soft = b.call(aten.relu.default if change == "no softplus" else aten.softplus.default, shifted)
    g = b.call(aten.mul.Tensor, soft, b.call(aten.neg.default, b.call(aten.exp.default, b["A"])))
    beta = b.call(aten.sigmoid.default, raw)
    if kind == "twice" or change == "scaled beta":
        beta = b.call(aten.mul.Tensor, beta, 2.0 if kind == "twice" else 3.0)
    if mask is None:
        return g, beta
    other = b.call(aten.logical_not.default, mask) if change == "two masks" else mask
    g, beta = (
        b.call(aten.where.self, which, item, b.call(aten.zeros_like.default, item))
        for which, item in ((mask, g), (other, beta))
    )
    return g, beta


def layers(kind: str = "token", change: str = "") -> GraphModule:
    """Layers in a loop, as buffers' planning leaves them: a token's ("token"; "twice": beta up to 2) or a tree's."""
    tree, nodes = kind == "tree", NODES if kind == "tree" or change == "tokens" else 1
    b, real = GraphBuilder(("verify",)), torch.float32

    def held(name: str, *shape: int, dtype: torch.dtype = real) -> Node:
        return b.placeholder(name, fake(shape, dtype))

    sliced = {
        "window": held("window", LAYERS, BATCH, TAPS - 1, CHANNELS),
        "state": held("state", LAYERS, BATCH, VALUE_HEADS, VALUES, KEYS),
        "weight": held("weight", LAYERS, CHANNELS, 1, TAPS),
        "A": held("A", LAYERS, VALUE_HEADS),
        "dt": held("dt", LAYERS, VALUE_HEADS),
        "kept": held("kept", LAYERS, BATCH, NODES, CHANNELS),
        "g_kept": held("g_kept", LAYERS, BATCH, NODES, VALUE_HEADS),
    }
    x = held("x", BATCH, nodes, COLUMNS)
    live = held("live", BATCH, nodes, dtype=torch.bool)
    other = held("other", BATCH, nodes, dtype=torch.bool)
    shared = {"live": live, "counted": b.call(aten.unsqueeze.default, other if change == "other rows" else live, -1)}
    shared["parent_row"] = held("parent_row", BATCH, NODES, dtype=torch.int64)
    shared["mask"] = held("mask", BATCH, NODES, NODES, dtype=torch.bool)
    body = BodyBuilder("layer", carried={"x": x}, sliced=sliced, invariant=shared, keys=("verify",))
    made = body.call(aten.neg.default, body["x"])
    results = _tree(body, made) if tree else _token(body, made, kind, change)
    return b.output(body.close(b, LAYERS, [results], "loop"))


def _heads(body: BodyBuilder, y: Node) -> list[Node]:
    made, at = [], 0
    for heads, size in ((HEADS, KEYS), (HEADS, KEYS), (VALUE_HEADS, VALUES)):
        part = body.call(aten.narrow.default, y, -1, at, heads * size)
        made.append(body.call(aten.unflatten.int, part, -1, [heads, size]))
        at += heads * size
    return made


def _after(body: BodyBuilder, o: Node, made: Node) -> Node:
    """Something of the layer's results for the next one."""
    total = body.call(aten.sum.dim_IntList, o, [2, 3])
    return body.call(aten.add.Tensor, made, body.call(aten.unsqueeze.default, total, -1))


def _token(body: BodyBuilder, made: Node, kind: str, change: str) -> Node:
    mask = None if change == "all rows" else body["counted"]
    first = None if change == "late" else rows(body, made, kind, change, mask)
    mixed = body.call(aten.narrow.default, made, -1, 0, CHANNELS)
    y = body.call(ops.short_conv_, body["window"], mixed, body["weight"], None, body["live"])
    if change == "window read":
        made = body.call(aten.add.Tensor, made, body.call(aten.sum.default, body["window"]))
    elif change == "inputs written":
        body.call(aten.mul_.Scalar, body["window"], 2.0)
    heads = _heads(body, y)
    if change == "work between":
        made = body.call(aten.neg.default, made)
    elif change == "state written":
        body.call(aten.mul_.Scalar, body["state"], 2.0)
    g, beta = first or rows(body, made, kind, change, mask)
    if change == "no rule":
        return _after(body, heads[2], made)
    result = body.call(ops.delta_rule_, body["state"], *heads, g, beta)
    return _after(body, body.item(result, 0), made)


def _tree(body: BodyBuilder, made: Node) -> Node:
    mixed = body.call(aten.narrow.default, made, -1, 0, CHANNELS)
    g, beta = rows(body, made, "tree", "", None)
    body.call(aten.copy_.default, body["g_kept"], g)
    body.call(aten.copy_.default, body["kept"], mixed)
    y = body.call(ops.tree_conv, body["window"], mixed, body["weight"], None, body["parent_row"])
    operands = (*_heads(body, y), g, beta, body["parent_row"], body["mask"])
    result = body.call(ops.delta_rule_verify, body["state"], *operands, "tree")
    return _after(body, body.item(result, 0), made)


def outcome(module: GraphModule) -> list[torch.Tensor]:
    """Results, and all tensors afterwards."""
    made, held = torch.Generator().manual_seed(0), []
    parent_row = torch.tensor([[0, 1, 1], [0, 1, 2]])
    chosen = {
        "live": torch.tensor([[True], [False]]),
        "parent_row": parent_row,
        "mask": ops.ancestor_mask(parent_row, torch.ones(BATCH, NODES, dtype=torch.bool)),
    }
    for node in module.graph.nodes:
        if node.op == "placeholder":
            value = node.meta["val"]
            if value.dtype.is_floating_point:
                held.append(torch.randn(value.shape, generator=made, dtype=value.dtype))
            else:
                held.append(chosen.get(node.name, torch.ones(value.shape, dtype=value.dtype)).clone())
    return [*(item.clone() for item in Interpreter(module).run(*held)), *held]


def targets(module: GraphModule) -> set[Any]:
    return {node.target for block in modules(module) for node in block.graph.nodes}


@pytest.mark.parametrize("kind", ["token", "twice", "tree"])
def test_one_op_stands_for_the_convolution_and_the_gates(kind: str) -> None:
    module = layers(kind)
    made, notes = joined_gates(module)
    assert notes == []
    assert {ops.token_conv_gates_, ops.tree_conv_gates_} & targets(made) == {
        ops.tree_conv_gates_ if kind == "tree" else ops.token_conv_gates_
    }
    assert not {ops.short_conv_, ops.tree_conv, aten.softplus.default, aten.sigmoid.default} & targets(made)
    for left, right in zip(outcome(module), outcome(made), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=0)


@pytest.mark.parametrize("change", ["", "work between", "state written"])
def test_a_tokens_rule_right_behind_its_convolution_may_read_the_state_early(change: str) -> None:
    made, notes = joined_gates(layers("token", change))
    assert notes == []
    rule = next(n for block in modules(made) for n in block.graph.nodes if n.target is ops.delta_rule_)
    assert rule.args[6:] == ((True,) if not change else ())


def test_it_has_the_origins_of_all_that_it_stands_for() -> None:
    made, _ = joined_gates(layers())
    node = next(n for block in modules(made) for n in block.graph.nodes if n.target is ops.token_conv_gates_)
    assert gates.ORIGIN in node.meta["passes"]
    assert "verify" in node.meta["keys"]


@pytest.mark.parametrize("change", list(CHANGES))
def test_what_must_stay_stays_with_a_reason(change: str) -> None:
    made, notes = joined_gates(layers("token", change))
    assert ops.token_conv_gates_ not in targets(made)
    assert len(notes) == 1
    assert CHANGES[change] in notes[0]


@settings(max_examples=6)
@given(st.data())
def test_kernels_make_what_the_ops_make(data: st.DataObject) -> None:
    """And a token has the same bits alone and among others; rows that are not live get zeros and keep their window."""
    batch, nodes, heads = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 6)), data.draw(st.integers(1, 5))
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16]))
    scale, seed = data.draw(st.sampled_from([1, 2])), data.draw(st.integers(0, 1000))
    parent_row = torch.tensor([[data.draw(st.integers(0, i)) for i in range(nodes)] for _ in range(batch)])
    torch.manual_seed(seed)
    x, window = torch.randn(batch, nodes, 20 + 2 * heads).to(dtype), torch.randn(batch, 3, 20).to(dtype)
    weight, a_log, dt_bias = torch.randn(20, 1, 4).to(dtype), torch.randn(heads).to(dtype), torch.randn(heads).to(dtype)
    a, b, inputs = x[..., 20 : 20 + heads], x[..., 20 + heads :], x[..., :20]
    kept = torch.zeros(batch, nodes, 20, dtype=dtype)
    made = conv.tree_conv_gates_(window, inputs, weight, None, parent_row, a, b, a_log, dt_bias, scale, kept)
    wanted = ops.tree_conv_gates_(window, inputs, weight, None, parent_row, a, b, a_log, dt_bias, scale, None)
    for left, right in zip(made, wanted, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-5 if dtype == torch.float32 else 8e-3, atol=2e-6)
    assert torch.equal(kept, inputs)
    assert torch.equal(made[0], conv.tree_conv(window, inputs, weight, None, parent_row))
    live = torch.tensor([[data.draw(st.booleans())] for _ in range(batch)])
    moved, plain = window.clone(), window.clone()
    first, raw_a, raw_b = (part[:, :1] for part in (inputs, a, b))
    y, g, beta = conv.token_conv_gates_(moved, first, weight, None, live, raw_a, raw_b, a_log, dt_bias, scale)
    assert torch.equal(y, conv.short_conv_(plain, first, weight, None, live))
    assert torch.equal(moved, plain)
    for token, node in ((g, made[1]), (beta, made[2])):
        assert torch.equal(token, torch.where(live.unsqueeze(-1), node[:, :1], torch.zeros_like(token)))
