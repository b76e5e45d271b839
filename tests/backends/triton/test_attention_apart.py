"""Attention with the new columns in a part of their own, in the interpreter: against float64, and what it leaves."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from specc.backends.triton.ops.attention_configs import AttentionConfig, step_config
from specc.ir import ops
from tests.backends.triton.test_attention_step import BOUNDS, TYPES, Case

Tensor = torch.Tensor
APART = AttentionConfig(rows=16, bn=16, warps=4, stages=1, programs=0, step=True, apart=True)


def case_of(kind: torch.dtype, lengths: list[int], tokens: int, heads: tuple[int, int, int], room: int, *,
            tree: bool = False, count: list[int] | None = None, config: AttentionConfig = APART,
            seed: int = 0) -> Case:  # fmt: skip
    """(shared, group, dim) heads; `room` rows behind the longest sequence's new ones."""
    made = torch.Generator().manual_seed(seed)
    batch, (shared, group, dim) = len(lengths), heads

    def rand(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=made).to(kind)

    projected = rand(batch, tokens, (group + 2) * shared * dim)
    rows = projected.split([group * shared * dim, shared * dim, shared * dim], dim=-1)
    q, k, v = (x.unflatten(-1, (-1, dim)) for x in rows)
    angle = torch.rand(batch, tokens, dim // 2, generator=made) * 6
    parents = torch.tensor([[int(torch.randint(0, i + 1, (1,), generator=made)) for i in range(tokens)]] * batch)
    mask = ops.ancestor_mask(parents, torch.ones(batch, tokens, dtype=torch.bool)) if tree else None
    kept = None if count is None else torch.tensor(count)
    caches = [rand(batch, max(lengths) + tokens + room, shared, dim) for _ in range(2)]
    return Case(
        q, k, v, angle.cos().to(kind), angle.sin().to(kind), *caches, torch.tensor(lengths), kept, mask, config
    )  # fmt: skip


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Trees and chains behind ragged prefixes; several tiles of rows, several parts, some without rows."""
    longest, tokens = draw(st.integers(0, 60)), draw(st.sampled_from([1, 1, 2, 5, 9, 20]))
    lengths = [longest, *(draw(st.integers(0, longest)) for _ in range(draw(st.integers(0, 1))))]
    heads = draw(st.integers(1, 2)), draw(st.integers(1, 4)), draw(st.sampled_from([8, 16, 24]))
    config = replace(APART, bn=draw(st.sampled_from([16, 32])))
    return case_of(
        draw(st.sampled_from(TYPES)), lengths, tokens, heads, draw(st.integers(0, 20)), tree=draw(st.booleans()),
        count=draw(st.sampled_from([None, [tokens] * len(lengths)])), config=config, seed=draw(st.integers(0, 1000)),
    )  # fmt: skip


def poisoned(*shape: int, **options: object) -> Tensor:
    """`torch.empty` full of NaN."""
    return torch.full(shape if len(shape) > 1 else (shape[0],), float("nan"), **options)  # type: ignore[call-overload]


@settings(max_examples=10, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(cases())
def test_it_is_what_the_reference_says(case: Case) -> None:
    """In float64; rows behind the committed ones are poisoned, and what parts that see nothing would leave."""
    wide = [x.double() for x in (case.q, case.k, case.v, case.cos, case.sin, *case.caches())]
    expected = ops.rope_attention_(*wide, case.length, case.count, case.mask, case.scale, False)
    for cache in (case.k_cache, case.v_cache):
        for b, first in enumerate(case.length.tolist()):
            cache[b, first:] = float("nan")
    with patch.object(torch, "empty", poisoned):
        found = case.run(case.config)[0].double()
    assert float((found - expected).norm() / expected.norm()) <= BOUNDS[case.q.dtype]


@settings(max_examples=5, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(cases())
def test_the_caches_are_those_of_single_ops(case: Case) -> None:
    for found, expected in zip(case.run(case.config)[1:], case.one_by_one()[1:], strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.parametrize("count", [[0, 1], [1, 0]])
def test_only_what_is_kept_is_written(tokens: int, count: list[int]) -> None:
    """Of a full cache nothing: what does not fit is dropped, as by the op that appends."""
    case = case_of(torch.bfloat16, [33, 7], tokens, (2, 3, 16), 3, count=count)
    for found, expected in zip(case.run(APART)[1:], case.one_by_one()[1:], strict=True):
        assert torch.equal(found, expected)
    full = replace(case, length=torch.tensor([case.k_cache.shape[1], 7]), count=torch.tensor([tokens, 1]))
    for found, kept in zip(full.run(APART)[1:], full.caches(), strict=True):
        assert torch.equal(found[0], kept[0])


@pytest.mark.parametrize("tokens", [1, 5, 18])
def test_a_rows_bits_depend_on_no_other_row_nor_on_their_number(tokens: int) -> None:
    """A chain's first rows among more, one token among them; a sequence alone and beside another one."""
    many = case_of(torch.bfloat16, [37, 20], 35, (2, 3, 16), 0)
    few = replace(
        many, q=many.q[:1, :tokens], k=many.k[:1, :tokens], v=many.v[:1, :tokens], cos=many.cos[:1, :tokens],
        sin=many.sin[:1, :tokens], k_cache=many.k_cache[:1], v_cache=many.v_cache[:1], length=many.length[:1],
    )  # fmt: skip
    assert torch.equal(few.run(APART)[0], many.run(APART)[0][:1, :tokens])


def test_few_rows_of_long_caches_and_many_rows_take_the_other_kernel() -> None:
    assert step_config(64, 3, 3, False, 2048).apart
    assert not step_config(64, 3, 3, False, 1 << 20).apart
    assert not step_config(64, 3, 24, False, 2048).apart
    assert not step_config(64, 3, 3, True, 2048).apart
