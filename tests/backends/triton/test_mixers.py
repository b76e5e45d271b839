"""A recurrent layer's projection joins convolution and gates where nothing can tell; the kernel against launches."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx import GraphModule, Node

from specc.backends.triton import mixers
from specc.backends.triton.mixers import joined_mixers
from specc.backends.triton.ops import conv, linear, linear_conv
from specc.backends.triton.ops.linear import LinearConfig
from specc.ir import ops
from specc.ir.build import BodyBuilder, GraphBuilder, fake
from specc.ir.edit import modules
from specc.ir.interpreter import Interpreter

aten = torch.ops.aten
LAYERS, BATCH, NODES, HIDDEN, CHANNELS, HEADS, REST, TAPS = 2, 2, 3, 8, 6, 2, 5, 4
FEATURES = CHANNELS + 2 * HEADS + REST
A, B = CHANNELS, CHANNELS + HEADS
CHANGES: dict[str, str] = {
    "bias": "more than a product",
    "residual": "more than a product",
    "gates": "more than a product",
    "shifted": "not the projection's first features",
    "other a": "is not a part of the projection",
    "every second": "is not a slice of the projection's features",
    "work between": "stands between",
    "late window": "an operand comes after the projection",
    "no projection": "it reads `neg",
}
"""Changes of a layer that each leave it as it is, and what the note says."""


def layers(tree: bool = False, change: str = "", split: bool = False) -> GraphModule:
    """Layers in a loop as `joined_gates` leaves them; `split`: the gates are pieces of a split."""
    nodes, b = NODES if tree else 1, GraphBuilder(("verify",))

    def held(name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Node:
        return b.placeholder(name, fake(shape, dtype))

    rows = FEATURES * (2 if change == "gates" else 1)
    sliced = {
        "window": held("window", LAYERS, BATCH, TAPS - 1, CHANNELS),
        "weight": held("weight", LAYERS, rows, HIDDEN),
        "norm": held("norm", LAYERS, HIDDEN),
        "taps": held("taps", LAYERS, CHANNELS, 1, TAPS),
        "a_log": held("a_log", LAYERS, HEADS),
        "dt": held("dt", LAYERS, HEADS),
        "kept": held("kept", LAYERS, BATCH, NODES, CHANNELS),
        "bias": held("bias", LAYERS, FEATURES),
    }
    x = held("x", BATCH, nodes, HIDDEN)
    shared = {
        "live": held("live", BATCH, nodes, dtype=torch.bool),
        "parent_row": held("parent_row", BATCH, NODES, dtype=torch.int64),
        "beside": held("beside", BATCH, nodes, FEATURES),
    }
    body = BodyBuilder("layer", carried={"x": x}, sliced=sliced, invariant=shared, keys=("verify",))
    return b.output(body.close(b, LAYERS, [_layer(body, tree, change, split)], "loop"))


def _layer(body: BodyBuilder, tree: bool, change: str, split: bool) -> Node:
    projected = body.call(
        ops.fused_linear, body["x"], body["weight"], body["bias"] if change == "bias" else None, body["norm"], 1e-5,
        "silu_mul" if change == "gates" else "none", body["beside"] if change == "residual" else None,
    )  # fmt: skip
    source = body.call(aten.neg.default, projected) if change in ("other a", "no projection") else projected
    if split:
        pieces = body.call(aten.split_with_sizes.default, projected, [CHANNELS, HEADS, HEADS, REST], -1)
        a, raw = body.item(pieces, 1), body.item(pieces, 2)
    else:
        a, raw = (body.call(aten.narrow.default, source, -1, at, HEADS) for at in (A, B))
    if change == "every second":
        a = body.call(aten.slice.Tensor, projected, -1, A, A + 2 * HEADS, 2)
    first = 1 if change == "shifted" else 0
    mixed = body.call(aten.narrow.default, source if change == "no projection" else projected, -1, first, CHANNELS)
    window = body["window"]
    if change == "late window":
        window = body.call(aten.narrow.default, window, 0, 0, BATCH)
    if change == "work between":
        body.call(aten.mul_.Scalar, body["window"], 2.0)
    rest = (a, raw, body["a_log"], body["dt"], 2)
    if tree:
        made = body.call(
            ops.tree_conv_gates_, window, mixed, body["taps"], None, body["parent_row"], *rest, body["kept"]
        )
    else:
        made = body.call(ops.token_conv_gates_, window, mixed, body["taps"], None, body["live"], *rest)
    y, g, beta = (body.item(made, number) for number in range(3))
    total = body.call(aten.sum.dim_IntList, y, [2], True)
    for part in (g, beta, body.call(aten.narrow.default, projected, -1, B + HEADS, REST)):
        total = body.call(aten.add.Tensor, total, body.call(aten.sum.dim_IntList, part, [2], True))
    return body.call(aten.add.Tensor, body["x"], total)


def outcome(module: GraphModule) -> list[torch.Tensor]:
    """Results, and all tensors afterwards."""
    made, held = torch.Generator().manual_seed(0), []
    chosen = {"live": torch.tensor([[True], [False]]), "parent_row": torch.tensor([[0, 1, 1], [0, 1, 2]])}
    for node in module.graph.nodes:
        if node.op == "placeholder":
            value = node.meta["val"]
            known = chosen.get(node.name)
            held.append(torch.randn(value.shape, generator=made) if known is None else known.clone())
    return [*(item.clone() for item in Interpreter(module).run(*held)), *held]


def targets(module: GraphModule) -> set[Any]:
    return {node.target for block in modules(module) for node in block.graph.nodes}


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("tree", [False, True])
def test_one_op_stands_for_projection_convolution_and_gates(tree: bool, split: bool) -> None:
    module = layers(tree, split=split)
    made, notes = joined_mixers(module)
    assert notes == []
    found = targets(made)
    assert (ops.linear_tree_conv_gates_ if tree else ops.linear_token_conv_gates_) in found
    assert not {ops.fused_linear, ops.token_conv_gates_, ops.tree_conv_gates_} & found
    for left, right in zip(outcome(module), outcome(made), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=0)


def test_it_has_the_origins_of_all_that_it_stands_for() -> None:
    made, _ = joined_mixers(layers())
    node = next(n for block in modules(made) for n in block.graph.nodes if n.target is ops.linear_token_conv_gates_)
    assert mixers.ORIGIN in node.meta["passes"]
    assert "verify" in node.meta["keys"]


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("change", list(CHANGES))
def test_what_must_stay_stays_with_a_reason(change: str, tree: bool) -> None:
    made, notes = joined_mixers(layers(tree, change))
    assert ops.fused_linear in targets(made)
    assert len(notes) == 1
    assert CHANGES[change] in notes[0]


def drawn(data: st.DataObject, tree: bool) -> tuple[Any, ...]:
    """(dtype, window, x, weight, norm, taps, bias, live or parents, a_log, dt_bias, scale, a_at, b_at)."""
    batch, nodes, heads = data.draw(st.integers(1, 2)), data.draw(st.integers(2, 6)), data.draw(st.integers(1, 5))
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16]))
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    channels = data.draw(st.sampled_from([20, 64, 70]))
    features, hidden, nodes = channels + 2 * heads + 8, data.draw(st.sampled_from([64, 72])), nodes if tree else 1

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(shape).to(dtype)

    bias = some(channels) if data.draw(st.booleans()) else None
    if tree:
        other = torch.tensor([[data.draw(st.integers(0, i)) for i in range(nodes)] for _ in range(batch)])
    else:
        other = torch.tensor([[data.draw(st.booleans())] for _ in range(batch)])
    a_at, b_at = data.draw(st.permutations((channels, channels + heads)))
    return (
        some(batch, 3, channels), some(batch, nodes, hidden), some(features, hidden) * 0.1, some(hidden), 1e-6,
        some(channels, 1, 4), bias, other, some(heads), some(heads), data.draw(st.sampled_from([1, 2])), a_at, b_at,
    )  # fmt: skip


CONFIGS = (
    LinearConfig(bf=32, bk=32, kw=1, split=1, warps=4, stages=3, early=True),
    LinearConfig(bf=16, bk=16, kw=1, split=1, warps=4, stages=2, late=True),
)


@settings(max_examples=8)
@given(st.data())
def test_the_kernel_has_the_bits_of_the_launches(data: st.DataObject) -> None:
    """For tokens with and without a window that moves on, and for nodes of a tree."""
    tree, config = data.draw(st.booleans()), data.draw(st.sampled_from(CONFIGS))
    window, x, weight, norm, eps, taps, bias, other, a_log, dt_bias, *rest = drawn(data, tree)
    scale, a_at, b_at = rest
    windows, kept = [window.clone() for _ in range(2)], [x.new_zeros(*x.shape[:2], window.shape[2]) for _ in range(2)]
    operands = (x, weight, norm, eps, taps, bias, other, a_log, dt_bias, *rest)
    with (
        patch.object(linear, "linear_config", lambda *_: config),
        patch.object(linear_conv, "linear_config", lambda *_: config),
    ):
        projected = linear.fused_linear(x, weight, None, norm, eps, "none", None)
        mixed, a, b = linear_conv.parts(projected, window, a_log, a_at, b_at)
        with patch.object(linear_conv, "fused_linear", None):  # what goes to the launches fails
            if tree:
                made = linear_conv.linear_tree_conv_gates_(windows[0], *operands, kept[0])
            else:
                made = linear_conv.linear_token_conv_gates_(windows[0], *operands)
    gates = (a, b, a_log, dt_bias, scale)
    if tree:
        wanted = conv.tree_conv_gates_(windows[1], mixed, taps, bias, other, *gates, kept[1])
    else:
        wanted = conv.token_conv_gates_(windows[1], mixed, taps, bias, other, *gates)
    for left, right in zip((*made, windows[0], kept[0]), (projected, *wanted, windows[1], kept[1]), strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize("why", ["rows", "nodes", "split", "pieces", "one step"])
def test_other_divisions_of_the_product_are_two_launches(why: str) -> None:
    config = LinearConfig(bf=16, bk=32, kw=1, split=1, warps=4, stages=2)
    changes: dict[str, Any] = {"split": {"split": 2}, "pieces": {"kw": 2}, "one step": {"bk": 64, "stages": 0}}
    config = LinearConfig(**{name: getattr(config, name) for name in config.__slots__} | changes.get(why, {}))
    batch, nodes = {"rows": (17, 1), "nodes": (2, 9)}.get(why, (1, 1))
    x, weight, window = torch.randn(batch, nodes, 64), torch.randn(20, 64), torch.randn(batch, 3, 12)
    taps, heads = torch.randn(12, 1, 4), torch.randn(2)
    parent_row = torch.zeros(batch, nodes, dtype=torch.int64)
    with patch.object(linear_conv, "linear_config", lambda *_: config), patch.object(linear_conv, "launch_conv", None):
        made = linear_conv.linear_tree_conv_gates_(
            window, x, weight, None, 0.0, taps, None, parent_row, heads, heads, 1, 12, 14, None
        )
        if nodes == 1:
            linear_conv.linear_token_conv_gates_(
                window.clone(), x, weight, None, 0.0, taps, None, None, heads, heads, 1, 12, 14
            )
    wanted = ops.linear_tree_conv_gates_(
        window, x, weight, None, 0.0, taps, None, parent_row, heads, heads, 1, 12, 14, None
    )
    for left, right in zip(made, wanted, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-3, atol=1e-4)
