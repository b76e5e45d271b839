"""Appending, committing and compacting rows: Triton's host functions against the ops' reference implementations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.backends.triton.ops import cache as triton_ops
from specc.backends.triton.ops.delta import delta_rule_commit_layers_
from specc.ir import ops
from specc.ir.op import info

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)


def reference(name: str) -> Callable[..., Any]:
    declared = info(getattr(ops, name))
    assert declared is not None
    return declared.reference


def filled(draw: st.DrawFn, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Distinct values where the dtype has enough of them."""
    made = torch.arange(torch.Size(shape).numel()).roll(draw(st.integers(0, 7))).reshape(shape) % 251
    return made.to(dtype)


@st.composite
def moves(draw: st.DrawFn) -> dict[str, Any]:
    """Root paths (strictly ascending, path[j] >= j) of B sequences in caches of L layers, and rows to append."""
    layers, batch, nodes = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 7))
    longest = draw(st.integers(1, nodes))
    capacity = nodes + draw(st.integers(0, 5))
    inner = draw(st.sampled_from([(), (3,), (2, 16), (3, 12)]))
    dtype = draw(st.sampled_from(DTYPES))
    counts = [draw(st.integers(0, longest)) for _ in range(batch)]
    path = torch.zeros(batch, longest, dtype=torch.int64)
    for row, count in enumerate(counts):
        path[row, :count] = torch.tensor(sorted(draw(st.permutations(range(nodes)))[:count]), dtype=torch.int64)
    return {
        "caches": [filled(draw, (layers, batch, capacity, *inner), dtype) for _ in range(draw(st.integers(1, 4)))],
        "rows": filled(draw, (layers, batch, nodes, *inner), dtype),
        "path": path,
        "start": torch.tensor([draw(st.integers(0, capacity - nodes)) for _ in range(batch)]),
        "count": torch.tensor(counts),
    }


@settings(max_examples=25, deadline=None)
@given(case=moves(), fast=st.booleans())
def test_a_path_is_compacted_in_every_layer(case: dict[str, Any], fast: bool) -> None:
    expected = [cache.clone() for cache in case["caches"]]
    arguments = (case["path"], case["start"], case["count"], fast)
    reference("commit_path_layers_")(expected, *arguments)
    one = case["caches"][0].clone()
    triton_ops.commit_path_layers_(case["caches"], *arguments)
    for layer in one.unbind(0):
        triton_ops.commit_path_(layer, *arguments)
    assert all(torch.equal(a, b) for a, b in zip([*case["caches"], one], [*expected, expected[0]], strict=True))


@settings(max_examples=25, deadline=None)
@given(case=moves(), by_path=st.booleans(), counted=st.booleans())
def test_rows_are_appended_in_every_layer(case: dict[str, Any], by_path: bool, counted: bool) -> None:
    caches, rows = case["caches"], [case["rows"].roll(turn, 2) for turn in range(len(case["caches"]))]
    path, count = (case["path"] if by_path else None), (case["count"] if counted else None)
    expected = [cache.clone() for cache in caches]
    reference("append_path_layers_")(expected, rows, path, case["start"], count)
    one = caches[0][0].clone()
    triton_ops.append_path_layers_(caches, rows, path, case["start"], count)
    assert all(torch.equal(a, b) for a, b in zip(caches, expected, strict=True))
    if not by_path:
        triton_ops.append_rows_(one, rows[0][0], case["start"], count)
        assert torch.equal(one, expected[0][0])


@settings(max_examples=25, deadline=None)
@given(case=moves())
def test_a_new_cache_holds_the_old_rows_and_the_new_ones(case: dict[str, Any]) -> None:
    cache, rows, path, start, count = case["caches"][0][0], case["rows"][0], case["path"], case["start"], case["count"]
    before = cache.clone()
    made = triton_ops.append_rows(cache, rows, start, count)
    assert torch.equal(made, reference("append_rows")(cache, rows, start, count))
    made = triton_ops.commit_path(cache, rows, path, start, count, True)
    assert torch.equal(made, reference("commit_path")(cache, rows, path, start, count, True))
    assert torch.equal(cache, before)


@pytest.mark.parametrize("rows", [1, 5, 40])
def test_rows_that_do_not_lie_together(rows: int) -> None:
    """V heads are a part of a wider projection's rows; a prompt has more rows than one program moves."""
    wide = torch.randn(2, rows, 50)
    cache, start = torch.zeros(2, 64, 3, 4), torch.tensor([3, 20])
    expected = cache.clone()
    reference("append_rows_")(expected, wide[..., 20:32].unflatten(-1, (3, 4)), start)
    triton_ops.append_rows_(cache, wide[..., 20:32].unflatten(-1, (3, 4)), start)
    assert torch.equal(cache, expected)


def test_a_row_without_count_is_not_read() -> None:
    """A finished sequence's indices may be anything; its rows stay."""
    cache = torch.randn(2, 6, 4)
    before = cache.clone()
    wild = torch.full((2, 3), 10**9)
    wild[1] = torch.tensor([0, 2, 3])
    triton_ops.commit_path_(cache, wild, torch.tensor([10**9, 1]), torch.tensor([0, 3]), True)
    assert torch.equal(cache[0], before[0])
    assert torch.equal(cache[1, 1:4], before[1, [1, 3, 4]])


@settings(max_examples=15, deadline=None)
@given(case=moves(), taps=st.integers(2, 5))
def test_windows_of_every_layer_follow_the_path(case: dict[str, Any], taps: int) -> None:
    rows = [part.flatten(3) if part.dim() > 3 else part.unsqueeze(3) for part in (case["rows"], case["rows"].flip(2))]
    windows = [part[:, :, :1].repeat(1, 1, taps - 1, 1) + turn for turn, part in enumerate(rows)]
    rows, windows = [x.float() for x in rows], [x.float() for x in windows]
    expected = [window.clone() for window in windows]
    reference("conv_commit_layers_")(expected, rows, case["path"], case["count"])
    triton_ops.conv_commit_layers_(windows, rows, case["path"], case["count"])
    assert all(torch.equal(a, b) for a, b in zip(windows, expected, strict=True))


@pytest.mark.parametrize("form", ["steps", "rank_n"])
def test_states_of_every_layer_take_their_factors(form: str) -> None:
    made = torch.Generator().manual_seed(0)
    state, k, u = (
        torch.randn(*shape, generator=made) for shape in ((3, 2, 2, 16, 16), (3, 2, 4, 1, 16), (3, 2, 4, 2, 16))
    )
    g = -torch.rand(3, 2, 4, 2, generator=made)
    path, count = torch.tensor([[0, 1, 3], [0, 2, 0]]), torch.tensor([3, 0])
    expected = state.clone()
    reference("delta_rule_commit_layers_")(expected, k, u, g, path, count, form)
    before = state.clone()
    delta_rule_commit_layers_(state, k, u, g, path, count, form)
    torch.testing.assert_close(state, expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(state[:, 1], before[:, 1])
