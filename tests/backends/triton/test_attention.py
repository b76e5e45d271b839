"""Attention kernels in the interpreter against the ops' references in float64; poison wherever nothing may look."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.backends.triton.ops import attention as own
from specc.backends.triton.ops.attention_configs import AttentionConfig, attention_config
from specc.backends.triton.ops.attention_paged import causal_attention_paged, tree_attention_paged
from specc.ir import ops

Tensor = torch.Tensor
BOUNDS = {torch.float32: 1e-6, torch.bfloat16: 4e-3, torch.float16: 5e-4}
"""||o - float64|| / ||float64||: one rounding of the weights and one of the output."""
NAN = float("nan")


@dataclass(frozen=True, slots=True)
class Case:
    """Operands of one call; cache rows behind the new ones are finite here and poisoned for the kernels."""

    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    length: Tensor
    k_new: Tensor
    v_new: Tensor
    mask: Tensor
    positions: Tensor
    offset: int
    window: int
    config: AttentionConfig

    @property
    def scale(self) -> float:
        return float(self.q.shape[-1] ** -0.5)

    def cached(self, rows: int, fill: float | None = None) -> tuple[Tensor, Tensor]:
        """The caches with so many of the new rows behind the committed ones; `fill` for all rows behind them."""
        caches = (self.k_cache.clone(), self.v_cache.clone())
        for cache, new in zip(caches, (self.k_new, self.v_new), strict=True):
            for b, first in enumerate(self.length.tolist()):
                kept = min(rows, cache.shape[1] - first)
                cache[b, first : first + kept] = new[b, :kept]
                if fill is not None:
                    cache[b, first + kept :] = fill
        return caches

    @property
    def chain_positions(self) -> Tensor:
        """int64 [B,M]."""
        return self.length.unsqueeze(1) + self.offset + torch.arange(self.q.shape[1])


@contextmanager
def configured(config: AttentionConfig) -> Iterator[None]:
    """The ops take this configuration."""
    with patch.object(own, "attention_config", lambda *_: config):
        yield


@st.composite
def cases(draw: st.DrawFn, dtype: torch.dtype | None = None) -> Case:
    """Trees and chains behind ragged prefixes; tiles so small that there are several of each kind."""
    kind = dtype or draw(st.sampled_from(list(BOUNDS)))
    made = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    batch, tokens, offset = draw(st.integers(1, 2)), draw(st.integers(1, 7)), draw(st.integers(0, 2))
    shared, group = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    dim = draw(st.sampled_from([8, 16, 24]))
    config = AttentionConfig(
        rows=16,
        bn=draw(st.sampled_from([16, 32])),
        warps=4,
        stages=2,
        programs=draw(st.sampled_from([1, 4, 8])),
        least=draw(st.integers(1, 2)),
        bt=draw(st.sampled_from([16, 32])),
        tma=draw(st.booleans()),
        apart=draw(st.booleans()),
    )
    rows = tokens + offset
    longest = draw(st.integers(0, 60))
    length = torch.tensor([longest, *(draw(st.integers(0, longest)) for _ in range(batch - 1))])
    capacity = longest + rows + draw(st.integers(0, 20))

    def rand(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=made).to(kind)

    parents = torch.tensor([[draw(st.integers(0, i)) for i in range(tokens)] for _ in range(batch)])
    valid = torch.arange(tokens) < torch.tensor([[draw(st.integers(1, tokens))] for _ in range(batch)])
    mask = ops.ancestor_mask(torch.where(valid, parents, 0), valid)
    positions = length.unsqueeze(1) + mask.sum(-1) - 1
    if offset:
        # Nodes of earlier levels, which all of these descend from.
        mask = torch.cat((torch.ones(batch, tokens, offset, dtype=torch.bool), mask), dim=-1)
    cache, new = (batch, capacity, shared, dim), (batch, rows, shared, dim)
    return Case(
        rand(batch, tokens, shared * group, dim), rand(*cache), rand(*cache), length, rand(*new), rand(*new),
        mask, positions, offset, draw(st.sampled_from([0, 0, 1, 20])), config,
    )  # fmt: skip


def check(case: Case, found: Tensor, expected: Tensor) -> None:
    """Within the bound of the dtype; NaN is not."""
    assert found.dtype == case.q.dtype
    assert found.is_contiguous()
    assert float((found.double() - expected).norm() / expected.norm()) <= BOUNDS[case.q.dtype]


def wide(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.double() for x in tensors)


@settings(max_examples=7, deadline=None)
@given(cases())
def test_a_tree_sees_what_the_reference_sees(case: Case) -> None:
    rest = (case.mask, case.positions, case.scale, case.window)
    rows = case.k_new.shape[1]
    with configured(case.config):
        cached = own.tree_attention_cached(case.q, *case.cached(rows, NAN), case.length, *rest)
        fresh = own.tree_attention(case.q, *case.cached(0, NAN), case.length, case.k_new, case.v_new, *rest)
    expected = ops.tree_attention_cached(*wide(case.q, *case.cached(rows)), case.length, *rest, False)
    check(case, cached, expected)
    check(case, fresh, expected)


@settings(max_examples=7, deadline=None)
@given(cases())
def test_a_chain_sees_what_the_reference_sees(case: Case) -> None:
    rest = (case.chain_positions, case.offset, case.scale, case.window)
    rows = case.k_new.shape[1]
    with configured(case.config):
        cached = own.causal_attention_cached(case.q, *case.cached(rows, NAN), case.length, *rest)
        fresh = own.causal_attention(case.q, *case.cached(0, NAN), case.length, case.k_new, case.v_new, *rest)
    expected = ops.causal_attention_cached(*wide(case.q, *case.cached(rows)), case.length, *rest, False)
    check(case, cached, expected)
    check(case, fresh, expected)


@pytest.mark.parametrize("dim", [8, 16])
def test_chains_behind_earlier_levels_where_new_columns_are_apart(dim: int) -> None:
    """Tokens see the rows of two earlier levels and of each other; a sequence is empty."""
    made = torch.Generator().manual_seed(dim)

    def rand(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=made)

    length, mask = torch.tensor([37, 0]), torch.ones(2, 5, 7, dtype=torch.bool)
    cache, new = (2, 48, 2, dim), (2, 7, 2, dim)
    config = AttentionConfig(rows=16, bn=16, warps=4, stages=2, programs=1, apart=True)
    case = Case(
        rand(2, 5, 6, dim), rand(*cache), rand(*cache), length, rand(*new), rand(*new), mask, length, 2, 0, config
    )
    rest = (case.chain_positions, case.offset, case.scale, case.window)
    with configured(config):
        cached = own.causal_attention_cached(case.q, *case.cached(7, NAN), length, *rest)
        fresh = own.causal_attention(case.q, *case.cached(0, NAN), length, case.k_new, case.v_new, *rest)
    expected = ops.causal_attention_cached(*wide(case.q, *case.cached(7)), length, *rest, False)
    check(case, cached, expected)
    check(case, fresh, expected)


@pytest.mark.parametrize("dim", [8, 16])
def test_a_merge_of_several_rows_gives_the_bits_of_single_ones(dim: int) -> None:
    """15 packed rows, so that the last program has fewer; more parts than sequences have columns for."""
    made = torch.Generator().manual_seed(dim)
    q, k, v = (torch.randn(2, rows, heads, dim, generator=made) for rows, heads in ((5, 6), (80, 2), (80, 2)))
    length, mask = torch.tensor([70, 3]), torch.ones(2, 5, 5, dtype=torch.bool).tril()
    rest = (k, v, length, mask, length.unsqueeze(1) + mask.sum(-1) - 1, 0.25, 0)
    with configured(AttentionConfig(rows=16, bn=16, warps=4, stages=2, programs=64)):
        single = own.tree_attention_cached(q, *rest)
        with patch.object(own, "MERGED_FROM", 1):
            several = own.tree_attention_cached(q, *rest)
    assert torch.equal(several, single)
    expected = ops.tree_attention_cached(*wide(q, k, v), length, *rest[3:], False)
    torch.testing.assert_close(several.double(), expected, rtol=1e-5, atol=1e-5)


@settings(max_examples=3, deadline=None)
@given(cases(), st.sampled_from([16, 32, 64]), st.integers(0, 100))
def test_pages_give_the_bits_of_contiguous_rows(case: Case, page: int, seed: int) -> None:
    """Pages in any order, entries behind the last row out of range, pages of nobody poisoned."""
    batch, capacity = case.k_cache.shape[:2]
    rows, blocks = case.k_new.shape[1], -(-capacity // page)
    order = torch.randperm(batch * blocks + 1, generator=torch.Generator().manual_seed(seed)).to(torch.int32)
    table = order[: batch * blocks].view(batch, blocks).clone()
    k_pool, v_pool = (
        torch.full((batch * blocks + 1, page, *case.k_cache.shape[2:]), NAN, dtype=case.q.dtype) for _ in range(2)
    )
    caches = case.cached(rows, NAN)
    for pool, cache in zip((k_pool, v_pool), caches, strict=True):
        padded = torch.nn.functional.pad(cache, (0, 0, 0, 0, 0, blocks * page - capacity), value=NAN)
        pool[table.flatten().long()] = padded.view(batch * blocks, page, *cache.shape[2:])
    for b, first in enumerate(case.length.tolist()):
        table[b, -(-(first + rows) // page) :] = 1 << 30
    rest = (case.mask, case.positions, case.scale, case.window)
    chain = (case.chain_positions, case.offset, case.scale, case.window)
    with configured(case.config):
        paged = tree_attention_paged(case.q, k_pool, v_pool, table, case.length, *rest)
        assert torch.equal(paged, own.tree_attention_cached(case.q, *caches, case.length, *rest))
        paged = causal_attention_paged(case.q, k_pool, v_pool, table, case.length, *chain)
        assert torch.equal(paged, own.causal_attention_cached(case.q, *caches, case.length, *chain))


@settings(max_examples=3, deadline=None)
@given(cases(torch.float32))
def test_a_row_does_not_depend_on_the_other_sequences(case: Case) -> None:
    rest = (case.scale, case.window)
    caches = case.cached(case.k_new.shape[1], NAN)
    with configured(case.config):
        whole = own.tree_attention_cached(case.q, *caches, case.length, case.mask, case.positions, *rest)
        for b in range(len(case.length)):
            one = slice(b, b + 1)
            alone = own.tree_attention_cached(
                case.q[one],
                caches[0][one],
                caches[1][one],
                case.length[one],
                case.mask[one],
                case.positions[one],
                *rest,
            )
            torch.testing.assert_close(whole[one], alone, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("dtype", list(BOUNDS))
def test_configurations_of_the_table_are_right(dtype: torch.dtype) -> None:
    """Strided queries and caches of a stack of layers, grouped heads whose number is no power of two."""
    made = torch.Generator().manual_seed(0)

    def rand(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=made).to(dtype)

    q, stack = rand(1, 9, 6, 128)[:, 1:7, :, :64], rand(2, 1, 160, 2, 64)
    length, mask = torch.tensor([140]), torch.ones(1, 6, 6, dtype=torch.bool).tril()
    expected = ops.tree_attention_cached(
        *wide(q, stack[0], stack[1]), length, mask, length + mask.sum(-1), 0.1, 0, False
    )
    found = own.tree_attention_cached(q, stack[0], stack[1], length, mask, length + mask.sum(-1), 0.1, 0)
    assert float((found.double() - expected).norm() / expected.norm()) <= BOUNDS[dtype]


def test_new_rows_beyond_the_capacity_repeat_the_last_row() -> None:
    """As the reference: a finished sequence whose cache is full has to end cleanly (I25)."""
    made = torch.Generator().manual_seed(0)
    k, v = (torch.randn(2, 32, 1, 16, generator=made) for _ in range(2))
    q, length = torch.randn(2, 3, 2, 16, generator=made), torch.tensor([32, 31])
    positions = length.unsqueeze(1) + torch.arange(3)
    config = AttentionConfig(rows=16, bn=16, warps=4, stages=1, programs=8)
    with configured(config):
        found = own.causal_attention_cached(q, k, v, length, positions, 0, 0.25, 0)
    expected = ops.causal_attention_cached(*wide(q, k, v), length, positions, 0, 0.25, 0, False)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dim", [8, 64, 96, 128, 256, 512])
@pytest.mark.parametrize("packed", [1, 16, 17, 64, 256, 4096])
@pytest.mark.parametrize("wide_rows", [False, True])
def test_every_geometry_has_a_configuration(dim: int, packed: int, wide_rows: bool) -> None:
    for groups in (1, 8, 64, 10_000):
        for capacity in (512, 1 << 16):
            config = attention_config(dim, packed, groups, wide_rows, capacity)
            assert config.rows & (config.rows - 1) == 0
            assert 1 <= own.parts_of(config, groups, 4096) <= max(1, config.programs // groups)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 40), st.integers(1, 3), st.integers(0, 1000))
def test_ancestors_are_those_of_the_reference(nodes: int, batch: int, seed: int) -> None:
    made = torch.Generator().manual_seed(seed)
    parents = torch.stack(
        [(torch.rand(nodes, generator=made) * torch.arange(1, nodes + 1)).long() for _ in range(batch)]
    )
    valid = torch.rand(batch, nodes, generator=made) < 0.8
    assert torch.equal(own.ancestor_mask(parents, valid), ops.ancestor_mask(parents, valid))


@pytest.mark.parametrize("dtype", list(BOUNDS))
@pytest.mark.parametrize("scaling", [[], [32.0, 1.0, 4.0, 8192.0]])
@pytest.mark.parametrize("dim", [12, 64])
def test_rotary_embeddings_are_those_of_the_reference(dtype: torch.dtype, scaling: list[float], dim: int) -> None:
    """Tables to the last bit or the one before; rotation to the bit where torch rounds too."""
    made = torch.Generator().manual_seed(0)
    positions = torch.randint(0, 100_000, (2, 5), generator=made)
    tables = ops.rope_tables(positions, dim, 1e5, scaling, dtype)
    for found, expected in zip(own.rope_tables(positions, dim, 1e5, scaling, dtype), tables, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=torch.finfo(dtype).eps)
    x = torch.randn(2, 5, 2, 3, dim, generator=made).to(dtype)[:, :, 1]
    found, expected = own.rope(x, *tables), ops.rope(x, *tables)
    if dtype == torch.float32:
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    else:
        assert torch.equal(found, expected)
