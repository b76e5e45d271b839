"""A projection that joins attention's parts itself has the bits of a launch for it, in the interpreter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import Phase, settings
from hypothesis import given as examples
from hypothesis import strategies as st

from specc.backends.triton.ops import attention, attention_step
from specc.backends.triton.ops.attention_configs import AttentionConfig
from specc.backends.triton.ops.attention_step import rope_attention_linear_
from specc.backends.triton.ops.linear import LinearConfig, fused_linear
from specc.backends.triton.ops.linear_once import pieces
from specc.ir import ops

Tensor = torch.Tensor
FEATURES = 20
BOUNDS = {torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}
"""||y - float64|| / ||float64||: roundings of rotated rows, of attention and of the product."""
ATTENTION = AttentionConfig(rows=16, bn=16, warps=4, stages=2, programs=64, bt=16, tma=False, step=True)
ONCE = LinearConfig(bf=16, bk=512, kw=4, split=1, warps=4, stages=0)


Case = tuple[list[Any], AttentionConfig]


def operands(kind: torch.dtype, shared: int, group: int, dim: int, length: int, seed: int) -> list[Any]:
    """Of `rope_attention_linear_` for one token behind `length` rows; with even seeds a bias and a residual."""
    made = torch.Generator().manual_seed(seed)

    def rand(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=made).to(kind)

    heads, capacity = group * shared, length + 1 + seed % 20
    projected = rand(1, 1, (heads + 2 * shared) * dim).split([heads * dim, shared * dim, shared * dim], dim=-1)
    angle = torch.rand(1, 1, dim // 2, generator=made) * 6
    held: list[Any] = [x.unflatten(-1, (-1, dim)) for x in projected]
    held += [angle.cos().to(kind), angle.sin().to(kind), rand(1, capacity, shared, dim), rand(1, capacity, shared, dim)]
    held += [torch.tensor([length]), rand(FEATURES, heads * dim)]
    return held + ([None, None] if seed % 2 else [rand(FEATURES), rand(1, 1, FEATURES)])


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any prefix, in one part or many."""
    kind, seed = draw(st.sampled_from(list(BOUNDS))), draw(st.integers(0, 1000))
    shared, group, dim = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.sampled_from([8, 16, 24, 64]))
    config = replace(ATTENTION, programs=draw(st.sampled_from([64, 1])), least=draw(st.integers(1, 2)))
    return operands(kind, shared, group, dim, draw(st.sampled_from([70, 0, 16, 110])), seed), config


def run(given: list[Any], config: AttentionConfig, joined: int, at_once: int = 8) -> list[Tensor]:
    """(y, caches) with projections of up to `joined` tokens that join."""
    q, k, v, cos, sin, k_cache, v_cache, length, weight, bias, residual = given
    caches = [x.clone() for x in (k_cache, v_cache)]
    with patch.object(attention_step, "JOINED_ROWS", joined), patch.object(attention_step, "AT_ONCE", at_once):
        y = rope_attention_linear_(
            q, k, v, cos, sin, caches[0], caches[1], length, None, None, 0.3, True, weight, bias, residual, config, ONCE
        )
    return [y, *caches]


@pytest.mark.parametrize(
    ("kind", "shape", "length", "least", "at_once"),
    [
        (torch.bfloat16, (2, 3, 16), 110, 1, 4),
        (torch.bfloat16, (3, 3, 64), 70, 1, 2),
        (torch.float32, (1, 2, 24), 110, 2, 1),
        (torch.float16, (2, 1, 8), 150, 1, 8),
        (torch.bfloat16, (1, 3, 16), 0, 1, 2),
    ],
    ids=str,
)
def test_both_ways_give_the_same_bits(
    kind: torch.dtype, shape: tuple[int, int, int], length: int, least: int, at_once: int
) -> None:
    """More parts than are read at a time, and fewer; some have nothing to see."""
    case = operands(kind, *shape, length, seed=length // 70), replace(ATTENTION, least=least)
    with patch("specc.backends.triton.ops.linear.linear_config", lambda *_: ONCE):
        for one, other in zip(run(*case, joined=1, at_once=at_once), run(*case, joined=0), strict=True):
            assert torch.equal(one, other)


def poisoned(*shape: int, **options: Any) -> Tensor:
    """`torch.empty` full of NaN."""
    return torch.full(shape, float("nan"), **options)


@settings(max_examples=6, deadline=None, phases=(Phase.explicit, Phase.generate))
@examples(cases())
def test_it_is_what_the_reference_says(case: Case) -> None:
    """In float64; rows behind the new one are poisoned, and so is what parts that see nothing would leave."""
    given, config = case
    wide = [x.double() if x is not None and x.is_floating_point() else x for x in given]
    expected = ops.rope_attention_linear_(*wide[:8], None, None, 0.3, False, *wide[8:])
    length = given[7]
    for cache in given[5:7]:
        cache[0, int(length) + 1 :] = float("nan")
    with patch.object(torch, "empty", poisoned):
        found = run(given, config, joined=1)[0]
    assert float((found.double() - expected).norm() / expected.norm()) <= BOUNDS[given[0].dtype]


@examples(st.integers(1, 5000), st.sampled_from([1, 2, 4, 8]))
def test_two_pieces_hold_all_columns_and_less_than_one_would(hidden: int, kw: int) -> None:
    piece, rest = pieces(hidden, kw)
    whole = max(16 * kw, 1 << (hidden - 1).bit_length())
    assert piece >= 16
    assert piece & (piece - 1) == rest & (rest - 1) == 0
    assert rest == 0 or rest >= 16
    assert hidden <= (piece + rest) * kw <= whole
    assert rest == 0 or (piece + rest) * kw < whole


def test_smollm2s_layers_are_cut_without_anything_left_over() -> None:
    assert pieces(576, 4) == (128, 16)
    assert pieces(1536, 8) == (128, 64)
    assert pieces(2048, 8) == (256, 0)


@pytest.mark.parametrize(("apart", "once", "early"), [(True, True, True), (False, True, False), (True, False, False)])
def test_a_projection_of_several_tokens_starts_early_behind_short_contexts(
    apart: bool, once: bool, early: bool
) -> None:
    """And has the bits of the two ops; a projection that streams its weight does not start early."""
    q, k, v, cos, sin, k_cache, v_cache, length, weight, bias, residual = operands(torch.bfloat16, 2, 3, 16, 70, 2)
    rows = [x.repeat(1, 3, *[1] * (x.dim() - 2)) + torch.arange(3).view(1, 3, *[1] * (x.dim() - 2)) / 4
            for x in (q, k, v, cos, sin)]  # fmt: skip
    q, k, v, cos, sin = (x.to(torch.bfloat16) for x in rows)
    k_cache, v_cache = (torch.nn.functional.pad(x, (0, 0, 0, 0, 0, 9)) for x in (k_cache, v_cache))
    residual = residual.repeat(1, 3, 1)
    mask = torch.tensor([[[1, 0, 0], [1, 1, 0], [1, 0, 1]]], dtype=torch.bool)
    config = replace(ATTENTION, apart=apart)
    linear = ONCE if once else replace(ONCE, stages=2)
    led: list[bool] = []

    def merged(*given: Any) -> None:
        led.append(given[-1])
        merge(*given)

    merge = attention.merge_parts
    with (
        patch.object(attention, "merge_parts", merged),
        patch.object(attention_step, "linear_config", lambda *_: linear),
    ):
        y = rope_attention_linear_(
            q, k, v, cos, sin, k_cache.clone(), v_cache.clone(), length, None, mask, 0.3, True, weight, bias, residual,
            config,
        )  # fmt: skip
    assert led == [early]
    o = attention_step.rope_attention_(q, k, v, cos, sin, k_cache, v_cache, length, None, mask, 0.3, True, config)
    assert torch.equal(y, fused_linear(o.flatten(-2), weight, bias, None, 0.0, "none", residual))
