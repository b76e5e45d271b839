"""A recurrent layer as one op: its kernels against the ops one by one, and where it is found in graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx import GraphModule
from torch.fx import Interpreter as FxInterpreter

from specc.backends.triton.ops import delta_step
from specc.backends.triton.ops.conv import short_conv_
from specc.backends.triton.ops.delta_launch import Gate, launch_walk, outputs_of, rows_of
from specc.backends.triton.recurrent import recurrent_layers
from specc.ir import ops
from specc.ir.interpreter import Interpreter
from tests.backends.triton.recurrent_graphs import Layer, graph

FUSED: dict[object, Any] = {
    ops.delta_step_: delta_step.delta_step_,
    ops.delta_tree_step_: delta_step.delta_tree_step_,
}
STEP_CHANGES = ("window read", "convolution read", "beta everywhere", "no softplus", "outputs read", "factors read")
TREE_CHANGES = ("convolution read", "by steps", "state written", "no softplus", "outputs read", "factors read")


class Kernels(FxInterpreter):
    """Runs fused layers by their kernels."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target not in FUSED:
            return super().call_function(target, args, kwargs)
        ran.append(target)
        return FUSED[target](*args, **kwargs)


ran: list[object] = []


def targets(module: GraphModule) -> set[object]:
    return {node.target for node in module.graph.nodes if node.op == "call_function"}


def outcome(module: GraphModule, tensors: dict[str, torch.Tensor], run: Any = Interpreter) -> Any:
    """(the results, all tensors afterwards); the given ones are left alone."""
    held = [tensor.clone() for tensor in tensors.values()]
    return run(module).run(*held), dict(zip(tensors, held, strict=True))


def close(found: torch.Tensor, expected: torch.Tensor, exact: torch.Tensor) -> None:
    """As near to the exact value as the reference is, but for a few roundings of float32."""
    scale = exact.double().norm() + 1e-6
    bound = 2 * (expected.double() - exact).norm() / scale + 2e-6
    assert (found.double() - exact).norm() / scale <= bound


layers = st.builds(
    Layer,
    heads=st.integers(1, 2),
    share=st.integers(1, 2),
    keys=st.sampled_from([4, 16, 20]),
    values=st.sampled_from([6, 16]),
    nodes=st.sampled_from([1, 1, 3, 5]),
    grouped=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)


@settings(max_examples=6, deadline=None)
@given(layers, st.integers(0, 100))
def test_a_layer_is_found_and_its_kernels_equal_its_ops(layer: Layer, seed: int) -> None:
    module, tensors = graph(layer), layer.tensors(seed)
    made, notes = recurrent_layers(module)
    assert notes == []
    assert targets(made) & set(FUSED) == {ops.delta_step_ if layer.nodes == 1 else ops.delta_tree_step_}
    assert not targets(made) & {ops.delta_rule_, ops.delta_rule_verify_pending_, ops.short_conv_, ops.tree_conv}
    results, after = outcome(module, tensors)
    exact, wide = outcome(module, {name: x.double() if x.is_floating_point() else x for name, x in tensors.items()})
    for run in (Interpreter, Kernels):
        again, held = outcome(made, tensors, run)
        for left, right, real in zip(again, results, exact, strict=True):
            close(left, right, real)
        for name in tensors:
            if tensors[name].is_floating_point():
                close(held[name], after[name], wide[name])
            else:
                assert torch.equal(held[name], after[name])
    assert ran[-1] in targets(made)


@pytest.mark.parametrize("change", STEP_CHANGES)
def test_a_token_that_somebody_else_looks_into_is_left(change: str) -> None:
    left(Layer(change=change))


@pytest.mark.parametrize("change", TREE_CHANGES)
def test_a_tree_that_somebody_else_looks_into_is_left(change: str) -> None:
    left(Layer(nodes=3, change=change))


def left(layer: Layer) -> None:
    """The layer keeps its ops, with a reason, and its results."""
    module, tensors = graph(layer), layer.tensors(1)
    made, notes = recurrent_layers(module)
    assert len(notes) == 1
    assert not targets(made) & set(FUSED)
    for mine, theirs in zip(outcome(made, tensors), outcome(module, tensors), strict=True):
        pairs = zip(mine, theirs, strict=True) if isinstance(mine, tuple) else ((mine[k], theirs[k]) for k in mine)
        assert all(torch.equal(a, b) for a, b in pairs)


def test_a_state_that_is_read_behind_the_norm_sees_the_new_one() -> None:
    """Reading is only refused between the parts that move together."""
    _, notes = recurrent_layers(graph(Layer(change="state read")))
    assert len(notes) == 1
    assert "touches" in notes[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_token_has_the_bits_of_the_kernels_that_go_one_by_one(dtype: torch.dtype) -> None:
    layer = Layer(heads=2, share=2, keys=16, values=16, dtype=dtype)
    made, _ = recurrent_layers(graph(layer))
    tensors = layer.tensors(3) | {"live": torch.ones(2, 1, dtype=torch.bool)}
    results, after = outcome(made, tensors, Kernels)
    mixed_width, heads = sum(layer.sizes), layer.value_heads
    rows = torch.nn.functional.linear(tensors["x"], tensors["proj"])
    window, state = tensors["window"].clone(), tensors["state"].clone()
    y = short_conv_(window, rows[..., :mixed_width], tensors["conv"], None, None)
    q, k, v = y.split(list(layer.sizes), dim=-1)
    a, b = rows[..., mixed_width : mixed_width + heads], rows[..., mixed_width + heads : mixed_width + 2 * heads]
    walked = rows_of(q.unflatten(-1, (-1, 16)), k.unflatten(-1, (-1, 16)), v.unflatten(-1, (-1, 16)), a, b)
    o, u = outputs_of(state, walked)
    gate = Gate(tensors["a_log"], tensors["dt_bias"], torch.empty(2, 1, heads))
    launch_walk(state, walked, o, u, after=state, gate=gate)
    assert torch.equal(after["state"], state)
    assert torch.equal(after["window"], window)
    passed = rows[..., mixed_width + 2 * heads :].unflatten(-1, (-1, 16))
    want = ops.gated_norm(o, tensors["o_norm"], passed, 1e-6)
    torch.testing.assert_close(results[0], want, rtol=2e-6 if dtype == torch.float32 else 0.0, atol=1e-6)
