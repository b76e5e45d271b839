"""The convolution's kernels in the interpreter against the ops."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.backends.triton.ops.conv import conv_commit, next_window, short_conv, tree_conv
from specc.ir import ops


@settings(max_examples=8)
@given(st.data())
def test_convolution_along_paths(data: st.DataObject) -> None:
    batch, nodes, taps = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 6)), data.draw(st.integers(2, 4))
    parents = [[data.draw(st.integers(0, i)) for i in range(nodes)] for _ in range(batch)]
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    window, x = (torch.randn(batch, rows, 40, generator=generator) for rows in (taps - 1, nodes))
    weight, bias = torch.randn(40, 1, taps, generator=generator), torch.randn(40, generator=generator)
    parent_row = torch.tensor(parents)
    torch.testing.assert_close(
        tree_conv(window, x, weight, bias, parent_row),
        ops.tree_conv(window, x, weight, bias, parent_row),
        rtol=2e-6,
        atol=2e-6,
    )


@pytest.mark.parametrize("with_live", [False, True])
@pytest.mark.parametrize("tokens", [1, 5])
def test_short_convolution_and_its_window(with_live: bool, tokens: int) -> None:
    window, x, weight = torch.randn(2, 3, 20), torch.randn(2, tokens, 20), torch.randn(20, 1, 4)
    live = torch.tensor([[True] + [False] * (tokens - 1), [True] * tokens]) if with_live else None
    y, after = short_conv(window, x, weight, None, live)
    expected = ops.short_conv(window, x, weight, None, live)
    torch.testing.assert_close(y, expected[0], rtol=2e-6, atol=2e-6)
    assert torch.equal(after, expected[1])
    next_window(window, x, None, None if live is None else live.sum(dim=1), window)
    assert torch.equal(window, after)


def test_token_has_the_same_bits_alone_in_a_chain_and_in_a_tree() -> None:
    window, x, weight = (
        t.to(torch.bfloat16) for t in (torch.randn(1, 3, 20), torch.randn(1, 4, 20), torch.randn(20, 1, 4))
    )
    y = tree_conv(window, x, weight, None, torch.tensor([[0, 1, 1, 3]]))
    at = window
    for node in (0, 2, 3):
        alone, at = short_conv(at, x[:, node : node + 1], weight)
        assert torch.equal(alone[:, 0], y[:, node])


def test_windows_of_all_layers_in_one_launch() -> None:
    window, rows = torch.randn(2, 2, 3, 20), torch.randn(2, 2, 4, 20)
    path, count = torch.tensor([[0, 2, 3], [1, 0, 0]]), torch.tensor([3, 1])
    after = conv_commit(window, rows, path, count)
    assert after.shape == window.shape
    for n in range(2):
        assert torch.equal(after[n], ops.conv_commit(window[n], rows[n], path, count))
    assert torch.equal(conv_commit(window, rows, path, torch.zeros(2, dtype=torch.int64)), window)
