"""A layer's attention in one launch: the bits of the ops that it stands for, in the interpreter."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from specc.backends.triton.ops import attention as own
from specc.backends.triton.ops.attention_configs import AttentionConfig, step_config
from specc.backends.triton.ops.attention_step import rope_attention_, rotate_first
from specc.backends.triton.ops.cache import append_rows_
from specc.ir import ops

Tensor = torch.Tensor
TYPES = (torch.float32, torch.bfloat16, torch.float16)
BOUNDS = {torch.float32: 1e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}
"""||o - float64|| / ||float64||: as for attention, and one rounding of rotated rows more."""
ONE = AttentionConfig(rows=16, bn=16, warps=4, stages=2, programs=8, bt=16, tma=False, step=True)


@dataclass(frozen=True, slots=True, repr=False)
class Case:
    """Operands of `rope_attention_`: q, k, v are views of one projection."""

    q: Tensor
    k: Tensor
    v: Tensor
    cos: Tensor
    sin: Tensor
    k_cache: Tensor
    v_cache: Tensor
    length: Tensor
    count: Tensor | None
    mask: Tensor | None
    config: AttentionConfig

    @property
    def scale(self) -> float:
        return float(self.q.shape[-1] ** -0.5)

    def caches(self) -> tuple[Tensor, Tensor]:
        return self.k_cache.clone(), self.v_cache.clone()

    def run(self, config: AttentionConfig) -> tuple[Tensor, Tensor, Tensor]:
        """(out, caches) of the op with a configuration."""
        k_cache, v_cache = self.caches()
        out = rope_attention_(
            self.q, self.k, self.v, self.cos, self.sin, k_cache, v_cache, self.length, self.count, self.mask,
            self.scale, config=config,
        )  # fmt: skip
        return out, k_cache, v_cache

    def one_by_one(self) -> tuple[Tensor, Tensor, Tensor]:
        """The same by the ops that it stands for."""
        k_cache, v_cache = self.caches()
        append_rows_(k_cache, own.rope(self.k, self.cos, self.sin), self.length, self.count)
        append_rows_(v_cache, self.v, self.length, self.count)
        turned = own.rope(self.q, self.cos, self.sin)
        out = own.attend(
            turned, k_cache, v_cache, self.length, self.q.shape[1], self.scale, 0, mask=self.mask, config=self.config
        )
        return out, k_cache, v_cache


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Trees and chains behind ragged prefixes, up to the capacity's end; several tiles and parts, some without rows."""
    kind = draw(st.sampled_from(TYPES))
    made = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    batch, tokens = draw(st.integers(1, 2)), draw(st.sampled_from([1, 1, 2, 5, 8]))
    shared, group, dim = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.sampled_from([8, 16, 24]))
    config = AttentionConfig(
        rows=16,
        bn=draw(st.sampled_from([16, 32])),
        warps=4,
        stages=2,
        programs=draw(st.sampled_from([1, 4, 8, 16])),
        least=draw(st.integers(1, 2)),
        bt=16,
        tma=draw(st.booleans()),
        step=True,
    )
    longest = draw(st.integers(0, 70))
    length = torch.tensor([longest, *(draw(st.integers(0, longest)) for _ in range(batch - 1))])
    capacity = longest + tokens + draw(st.integers(0, 20))

    def rand(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=made).to(kind)

    projected = rand(batch, tokens, (group + 2) * shared * dim)
    q, k, v = projected.split([group * shared * dim, shared * dim, shared * dim], dim=-1)
    angle = torch.rand(batch, tokens, dim // 2, generator=made) * 6
    parents = torch.tensor([[draw(st.integers(0, i)) for i in range(tokens)] for _ in range(batch)])
    mask = ops.ancestor_mask(parents, torch.ones(batch, tokens, dtype=torch.bool))
    cut = torch.tensor([draw(st.integers(0, tokens)) for _ in range(batch)])
    q, k, v = (x.unflatten(-1, (-1, dim)) for x in (q, k, v))
    return Case(
        q, k, v, angle.cos().to(kind), angle.sin().to(kind), rand(batch, capacity, shared, dim),
        rand(batch, capacity, shared, dim), length, draw(st.sampled_from([None, cut])),
        draw(st.sampled_from([None, mask])), config,
    )  # fmt: skip


@settings(max_examples=16, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(cases())
def test_one_launch_gives_the_bits_of_the_ops_that_it_stands_for(case: Case) -> None:
    """Results and caches."""
    for found, expected in zip(case.run(case.config), case.one_by_one(), strict=True):
        assert torch.equal(found, expected)


@settings(max_examples=6, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(cases())
def test_a_launch_in_front_gives_the_same_bits(case: Case) -> None:
    for found, expected in zip(case.run(replace(case.config, step=False)), case.one_by_one(), strict=True):
        assert torch.equal(found, expected)


@settings(max_examples=8, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(cases())
def test_it_is_what_the_reference_says(case: Case) -> None:
    """In float64; rows behind the new ones are poisoned for the kernel."""
    wide = [x.double() for x in (case.q, case.k, case.v, case.cos, case.sin, *case.caches())]
    expected = ops.rope_attention_(*wide, case.length, case.count, case.mask, case.scale, False)
    kept = case.q.shape[1] * torch.ones_like(case.length) if case.count is None else case.count
    seen = torch.arange(case.q.shape[1]) < kept.unsqueeze(1)
    if case.count is None:
        for cache in (case.k_cache, case.v_cache):
            for b, first in enumerate(case.length.tolist()):
                cache[b, first:] = float("nan")
    found = case.run(case.config)[0].double()
    if seen.any():
        gap = (found - expected)[seen].norm() / expected[seen].norm()
        assert float(gap) <= BOUNDS[case.q.dtype]


def test_a_full_cache_ends_as_it_does_with_single_ops() -> None:
    """Rows beyond the capacity are dropped by none of the ops: nothing is kept, the last row is repeated (I25)."""
    made = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, heads, 16, generator=made) for heads in (2, 1, 1))
    k_cache, v_cache = (torch.randn(2, 32, 1, 16, generator=made) for _ in range(2))
    turn = torch.ones(2, 3, 8)
    for lengths, kept in (([32, 31], [0, 1]), ([29, 30], [3, 2])):
        case = Case(q, k, v, turn, turn * 0.5, k_cache, v_cache, torch.tensor(lengths), torch.tensor(kept), None, ONE)
        for found, expected in zip(case.run(ONE), case.one_by_one(), strict=True):
            assert torch.equal(found, expected)


@pytest.mark.parametrize("lengths", [[0, 13], [31, 15], [37, 30]])
def test_of_many_tiles_the_one_that_sees_all_new_rows_writes_them(lengths: list[int]) -> None:
    """Three tiles of a chain and parts that end between the new rows."""
    made = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(2, 12, heads, 16, generator=made) for heads in (3, 1, 1))
    k_cache, v_cache = (torch.randn(2, 50, 1, 16, generator=made) for _ in range(2))
    turn = torch.rand(2, 12, 8, generator=made)
    case = Case(q, k, v, turn.cos(), turn.sin(), k_cache, v_cache, torch.tensor(lengths), None, None,
                replace(ONE, programs=32))  # fmt: skip
    for found, expected in zip(case.run(case.config), case.one_by_one(), strict=True):
        assert torch.equal(found, expected)


def test_a_cache_that_would_have_to_be_copied_is_refused() -> None:
    cache = torch.zeros(1, 32, 16, 2).transpose(2, 3)
    q, turn = torch.zeros(1, 1, 2, 16), torch.zeros(1, 1, 8)
    with pytest.raises(ValueError, match="contiguous"):
        rope_attention_(q, q, q, turn, turn, cache, cache, torch.tensor([0]), None, None, 1.0)


def test_rotating_in_front_writes_what_is_kept() -> None:
    made = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, 3, heads, 16, generator=made).bfloat16() for heads in (6, 2, 2))
    cos, sin = (torch.randn(2, 3, 8, generator=made).bfloat16() for _ in range(2))
    mine, wanted = ([torch.zeros(2, 9, 2, 16, dtype=torch.bfloat16) for _ in range(2)] for _ in range(2))
    length, count = torch.tensor([4, 2]), torch.tensor([3, 1])
    assert torch.equal(rotate_first(q, k, v, cos, sin, mine[0], mine[1], length, count), own.rope(q, cos, sin))
    for cache, rows in zip(wanted, (own.rope(k, cos, sin), v), strict=True):
        append_rows_(cache, rows, length, count)
    assert all(torch.equal(a, b) for a, b in zip(mine, wanted, strict=True))


@pytest.mark.parametrize("dim", [16, 64, 96, 128, 256])
@pytest.mark.parametrize("packed", [1, 16, 64, 256])
def test_every_geometry_has_a_configuration(dim: int, packed: int) -> None:
    for groups in (1, 8, 264):
        for wide in (False, True):
            for capacity in (512, 1 << 16):
                config = step_config(dim, packed, groups, wide, capacity)
                assert not (wide and config.step)
                assert config.bn % config.bt == 0
