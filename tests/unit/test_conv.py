"""Short convolutions along chains and trees, and the window after a commit."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from specc.ir import ops
from specc.testing.delta_oracles import conv_silu, path_inputs, path_to
from tests.unit.delta_cases import array, close

DTYPES = st.sampled_from([torch.float32, torch.float64, torch.bfloat16])


@dataclass(frozen=True, slots=True)
class Conv:
    """window [B,W-1,C], x [B,N,C], weight [C,1,W], bias [C] or None, parent_row [B,N]."""

    window: torch.Tensor
    x: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    parent_row: torch.Tensor

    def to(self, dtype: torch.dtype) -> Conv:
        bias = None if self.bias is None else self.bias.to(dtype)
        return Conv(self.window.to(dtype), self.x.to(dtype), self.weight.to(dtype), bias, self.parent_row)


@st.composite
def convs(draw: st.DrawFn) -> Conv:
    batch, nodes = draw(st.integers(1, 3)), draw(st.integers(1, 9))
    taps, channels = draw(st.integers(1, 5)), draw(st.sampled_from([1, 3, 5, 16, 21]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 20)))

    def rand(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    parent_row = torch.tensor([[draw(st.integers(0, node)) for node in range(nodes)] for _ in range(batch)])
    bias = rand(channels) if draw(st.booleans()) else None
    return Conv(
        rand(batch, taps - 1, channels), rand(batch, nodes, channels), rand(channels, 1, taps), bias, parent_row
    )


@given(convs())
def test_every_node_sees_its_own_path_then_the_window(case: Conv) -> None:
    """I16 for the convolution: no input of a sibling, whatever its number."""
    y = ops.tree_conv(case.window, case.x, case.weight, case.bias, case.parent_row)
    taps, bias = case.weight.shape[2], None if case.bias is None else array(case.bias)
    for b in range(case.x.shape[0]):
        for node in range(case.x.shape[1]):
            inputs = path_inputs(array(case.window[b]), array(case.x[b]), node, case.parent_row[b].tolist(), taps)
            close(y[b, node], torch.from_numpy(conv_silu(inputs, array(case.weight), bias)))


@given(convs(), DTYPES)
def test_a_tree_has_the_bits_of_plain_decoding_along_each_path(case: Conv, dtype: torch.dtype) -> None:
    """One token per step, alone in the batch, the window handed on."""
    case = case.to(dtype)
    y = ops.tree_conv(case.window, case.x, case.weight, case.bias, case.parent_row)
    for b in range(case.x.shape[0]):
        for node in range(case.x.shape[1]):
            window = case.window[b : b + 1]
            for i in path_to(node, case.parent_row[b].tolist()):
                out, window = ops.short_conv(window, case.x[b : b + 1, i : i + 1], case.weight, case.bias)
            assert torch.equal(y[b, node], out[0, 0])


@given(convs(), DTYPES, st.data())
def test_a_chain_may_be_cut_anywhere(case: Conv, dtype: torch.dtype, data: st.DataObject) -> None:
    case = case.to(dtype)
    cut = data.draw(st.integers(0, case.x.shape[1]))
    y, after = ops.short_conv(case.window, case.x, case.weight, case.bias)
    first, window = ops.short_conv(case.window, case.x[:, :cut], case.weight, case.bias)
    second, window = ops.short_conv(window, case.x[:, cut:], case.weight, case.bias)
    assert torch.equal(torch.cat((first, second), dim=1), y)
    assert torch.equal(window, after)


@given(convs())
def test_a_chain_is_torchs_convolution(case: Conv) -> None:
    """Depthwise cross-correlation over window and inputs, then SiLU."""
    rows = torch.cat((case.window, case.x), dim=1).transpose(1, 2)
    wanted = F.silu(F.conv1d(rows, case.weight, case.bias, groups=rows.shape[1])).transpose(1, 2)
    y, after = ops.short_conv(case.window, case.x, case.weight, case.bias)
    close(y, wanted)
    assert torch.equal(after, rows.transpose(1, 2)[:, case.x.shape[1] :])


@given(convs(), st.data())
def test_the_window_after_ragged_rows_is_that_of_the_live_ones(case: Conv, data: st.DataObject) -> None:
    nodes = case.x.shape[1]
    count = [data.draw(st.integers(0, nodes)) for _ in range(case.x.shape[0])]
    live = torch.arange(nodes) < torch.tensor(count).unsqueeze(1)
    y, after = ops.short_conv(case.window, case.x, case.weight, case.bias, live)
    for b, kept in enumerate(count):
        out, window = ops.short_conv(case.window[b : b + 1], case.x[b : b + 1, :kept], case.weight, case.bias)
        assert torch.equal(after[b], window[0])
        assert torch.equal(y[b, :kept], out[0])


@given(convs(), st.data())
def test_a_commit_moves_the_window_along_the_accepted_path(case: Conv, data: st.DataObject) -> None:
    """I27: as decoding the path; count 0 keeps the window; rejected rows may hold anything."""
    batch, nodes = case.x.shape[:2]
    paths = [path_to(data.draw(st.integers(0, nodes - 1)), case.parent_row[b].tolist()) for b in range(batch)]
    count = [data.draw(st.integers(0, len(path))) for path in paths]
    rows = torch.full_like(case.x, float("nan"))
    for b, path in enumerate(paths):
        rows[b, path[: count[b]]] = case.x[b, path[: count[b]]]
    padded = torch.tensor([path + [0] * (nodes - len(path)) for path in paths])
    after = ops.conv_commit(case.window, rows, padded, torch.tensor(count))
    for b, path in enumerate(paths):
        part = case.x[b : b + 1, path[: count[b]]]
        assert torch.equal(after[b], ops.short_conv(case.window[b : b + 1], part, case.weight)[1][0])


def test_extreme_inputs_stay_what_silu_makes_of_them() -> None:
    """exp overflows for large negative inputs; the quotient is then the limit, -0."""
    x = torch.tensor([-1e4, -200.0, -1.0, 0.0, 1.0, 200.0, 1e4]).reshape(1, 7, 1)
    y, _ = ops.short_conv(torch.zeros(1, 0, 1), x, torch.ones(1, 1, 1))
    torch.testing.assert_close(y, F.silu(x), rtol=1e-6, atol=0)
