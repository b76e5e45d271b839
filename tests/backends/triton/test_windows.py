"""One token's convolution with its window in place: the op, and where it is found in graphs."""

from __future__ import annotations

import operator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx import GraphModule

from specc.backends.triton.ops.conv import short_conv, short_conv_
from specc.backends.triton.windows import moved_windows
from specc.ir import ops
from specc.ir.build import GraphBuilder, fake
from specc.ir.port import Port

aten = torch.ops.aten


@settings(max_examples=12, deadline=None)
@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 20),
    st.integers(2, 4),
    st.booleans(),
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.integers(0, 2**31),
)
def test_the_window_moves_in_place(
    batch: int, tokens: int, channels: int, taps: int, biased: bool, dtype: torch.dtype, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random).to(dtype)

    window, x = draw(batch, taps - 1, channels), draw(batch, tokens, channels + 3)[..., 1 : channels + 1]
    weight, bias = draw(channels, 1, taps), draw(channels) if biased else None
    live = torch.rand((batch, tokens), generator=random) < 0.7
    live = live.cummin(dim=1).values if tokens > 1 else live
    expected, after = ops.short_conv(window, x, weight, bias, live)
    apart, _ = short_conv(window, x, weight, bias, live)
    moved = window.clone()
    y = short_conv_(moved, x, weight, bias, live)
    torch.testing.assert_close(y.float(), expected.float(), rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)
    assert torch.equal(y, apart)
    assert torch.equal(moved, after)


def graph(*, late_read: bool = False, other_copy: bool = False) -> GraphModule:
    """y, after = short_conv(window, x); copy_(window, after), or something that is nearly so."""
    b = GraphBuilder()
    window = b.placeholder("window", fake((2, 3, 8), torch.float32), Port("slot", "window"))
    other = b.placeholder("other", fake((2, 3, 8), torch.float32), Port("slot", "other"))
    x = b.placeholder("x", fake((2, 1, 8), torch.float32), Port("input", "x"))
    weight = b.placeholder("weight", fake((8, 1, 4), torch.float32), Port("weight", "weight"))
    conv = b.call(ops.short_conv, window, x, weight)
    y, after = b.item(conv, 0), b.item(conv, 1)
    read = b.call(aten.sum.default, window) if late_read else y
    b.call(aten.copy_.default, other if other_copy else window, after)
    return b.output([y, read, other], [Port("result", name) for name in ("y", "read", "other")])


def targets(module: GraphModule) -> set[object]:
    return {node.target for node in module.graph.nodes if node.op == "call_function"}


def test_a_copy_back_is_found() -> None:
    made = moved_windows(graph())
    assert targets(made) == {ops.short_conv_}


@pytest.mark.parametrize("change", ["late_read", "other_copy"])
def test_what_could_be_noticed_is_left(change: str) -> None:
    made = moved_windows(graph(**{change: True}))
    assert ops.short_conv in targets(made)
    assert operator.getitem in targets(made)
