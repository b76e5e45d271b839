"""Tree masks and attention from matmuls equal their ops; the device's operators are called as they want to be."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specc.backends.ascend import cpu
from specc.backends.ascend.ops import attention, npu
from tests.backends.ascend.op_support import DECLARED, agree, assert_close, assert_convertible, strictly

SEEDS = st.integers(0, 1 << 20)


@st.composite
def parent_rows(draw: st.DrawFn, max_nodes: int = 18) -> tuple[torch.Tensor, torch.Tensor]:
    """parent_row [B,N] of trees and forests, and which nodes are valid."""
    batch, nodes = draw(st.integers(1, 3)), draw(st.integers(1, max_nodes))
    deep = draw(st.booleans())
    parents = [[i if deep else draw(st.integers(0, i)) for i in range(nodes)] for _ in range(batch)]
    real = [draw(st.integers(0, nodes)) for _ in range(batch)]
    return torch.tensor(parents), torch.arange(nodes) < torch.tensor(real).unsqueeze(1)


@given(parent_rows())
def test_ancestor_masks_agree(tree: tuple[torch.Tensor, torch.Tensor]) -> None:
    agree("ancestor_mask", tree)


def test_chains_of_many_nodes_are_closed() -> None:
    parent_row, valid = torch.arange(64).unsqueeze(0), torch.ones(1, 64, dtype=torch.bool)
    agree("ancestor_mask", (parent_row, valid))


@st.composite
def masks(draw: st.DrawFn, apart: bool) -> tuple[object, ...]:
    """Operands of attention_mask: a tree's rows or a chain's, behind what is committed."""
    batch, rows, window = draw(st.integers(1, 3)), draw(st.integers(1, 5)), draw(st.sampled_from([0, 0, 1, 3]))
    chain = draw(st.booleans())
    more = rows if chain else rows + draw(st.integers(0, 2))
    capacity = more + draw(st.integers(0, 6))
    length = torch.tensor([draw(st.integers(0, capacity - more)) for _ in range(batch)])
    generator = torch.Generator().manual_seed(draw(SEEDS))
    mask = None if chain else torch.rand(batch, rows, more, generator=generator) > 0.5
    return length, mask, length.unsqueeze(1) + torch.arange(rows), capacity, window, apart


@pytest.mark.parametrize("apart", [False, True])
@given(st.data())
def test_masks_agree(apart: bool, data: st.DataObject) -> None:
    agree("attention_mask", data.draw(masks(apart)))


@st.composite
def attended(draw: st.DrawFn) -> tuple[object, ...]:
    """q, k, v, a mask with rows that see nothing, and maybe more rows beside the cache."""
    batch, rows, shared, group = (draw(st.integers(1, 3)) for _ in range(4))
    size, more, dim = draw(st.integers(1, 6)), draw(st.integers(0, 3)), draw(st.sampled_from([2, 16]))
    generator = torch.Generator().manual_seed(draw(SEEDS))
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))

    def rand(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    masked = torch.rand(batch, 1, rows, size + more, generator=generator) < draw(st.sampled_from([0.0, 0.5, 0.9]))
    parts = [rand(batch, size, shared, dim) for _ in range(2)]
    beside = [rand(batch, more, shared, dim) if more else None for _ in range(2)]
    return rand(batch, rows, shared * group, dim), *parts, masked.to(torch.int8), 0.5, *beside


@given(attended())
def test_attention_agrees(operands: tuple[object, ...]) -> None:
    half = operands[0].dtype == torch.bfloat16  # type: ignore[attr-defined]
    agree("masked_attention", operands, 2e-2 if half else 2e-5)


@pytest.mark.parametrize("batch", [1, 2])
def test_ge_has_every_op(batch: int) -> None:
    parent_row, valid = torch.zeros(batch, 5, dtype=torch.int64), torch.ones(batch, 5, dtype=torch.bool)
    assert_convertible(attention.ancestor_mask, parent_row, valid)
    mask = torch.ones(batch, 5, 5, dtype=torch.bool)
    for block in (mask, None):
        for window in (0, 3):
            for apart in (False, True):
                arguments = (parent_row[:, 0], block, parent_row, 9, window, apart)
                assert_convertible(attention.attention_mask, *arguments)
    q, k = torch.randn(batch, 5, 4, 16), torch.randn(batch, 9, 2, 16)
    for x, y in ((q, k), (q.half(), k.half())):
        assert_convertible(attention.masked_attention, x, y, y, torch.zeros(batch, 1, 5, 9, dtype=torch.int8), 0.5)
        hidden = torch.zeros(batch, 1, 5, 18, dtype=torch.int8)
        assert_convertible(attention.masked_attention, x, y, y, hidden, 0.5, y, y)


def test_the_devices_operators_are_called_as_their_ops_mean() -> None:
    cpu.register()
    generator = torch.Generator().manual_seed(0)

    def half(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).half()

    x, table = half(2, 3, 4, 16), half(2, 3, 1, 8)
    cos, sin = torch.cat((table, table), -1), torch.cat((-table, -table), -1)
    for name, made in (
        ("npu_rms_norm", (x, half(16), 1e-5)),
        ("npu_rotary_mul", (x, cos, sin)),
        ("npu_swiglu", (x,)),
    ):
        assert_close(getattr(npu, name)(*made), DECLARED[name].reference(*made), 4e-3)
    cache = half(2, 9, 4, 16)
    start = torch.tensor([6, 0])
    wanted = DECLARED["npu_scatter_update"].reference(cache, start, x, 1)
    assert_close(npu.npu_scatter_update(cache, start, x, 1), wanted, None)
    mask = strictly(attention.attention_mask, start, None, start.unsqueeze(1) + torch.arange(3), 9, 0)
    operands = (x, cache, cache, mask, start + 3, 4, 4, 0.25, "BSND", 1, 0)
    wanted = DECLARED["npu_fused_infer_attention_score"].reference(*operands)
    assert_close(npu.npu_fused_infer_attention_score(*operands), wanted, 4e-3)
