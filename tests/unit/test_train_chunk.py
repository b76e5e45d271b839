"""The chunked gated delta rule of the training model against its definition, values and gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specc.train.chunk import (
    UnitLowerInverse,
    chunk_gated_delta_rule,
    l2_norm,
    recurrent_gated_delta_rule,
    unit_lower_inverse,
)


def draw(
    seed: int, length: int, *, heads: int = 2, groups: int = 1, beta: float = 1.0, decay: float = 2.0
) -> tuple[Tensor, ...]:
    """q, k, v, g, beta, state in float64; K 8, V 6, batch 2."""
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random, dtype=torch.float64)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=random, dtype=torch.float64)

    values = heads * groups
    q, k = l2_norm(normal(2, length, heads, 8)), l2_norm(normal(2, length, heads, 8))
    g, betas = -decay * uniform(2, length, values), beta * uniform(2, length, values)
    return q, k, normal(2, length, values, 6), g, betas, normal(2, values, 6, 8)


@given(
    seed=st.integers(0, 1 << 16),
    length=st.integers(1, 40),
    chunk=st.sampled_from([1, 4, 16, 64]),
    groups=st.sampled_from([1, 3]),
    beta=st.sampled_from([1.0, 2.0]),
    decay=st.sampled_from([0.0, 0.1, 20.0]),
)
def test_chunked_equals_recurrent(seed: int, length: int, chunk: int, groups: int, beta: float, decay: float) -> None:
    inputs = draw(seed, length, groups=groups, beta=beta, decay=decay)
    o, state = chunk_gated_delta_rule(*inputs, chunk=chunk)
    expected, last = recurrent_gated_delta_rule(*inputs)
    torch.testing.assert_close(o, expected, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(state, last, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("beta", [0.999, 1.999])
def test_repeated_keys_lose_no_digits(beta: float) -> None:
    """Identical keys and beta near its limit: where a product of powers of A would explode."""
    q, k, v, g, _, state = draw(3, 128)
    k = k[:, :1].expand_as(k)
    inputs = (q, k, v, g * 0, torch.full_like(g, beta), state)
    exact, _ = recurrent_gated_delta_rule(*inputs)
    single, _ = chunk_gated_delta_rule(*(x.float() for x in inputs))
    assert single.dtype == torch.float32
    assert float((single.double() - exact).norm() / exact.norm()) < 1e-4


def test_gradients_of_the_rule() -> None:
    inputs = [x.requires_grad_() for x in draw(5, 11, groups=2, beta=2.0)]
    assert torch.autograd.gradcheck(lambda *x: chunk_gated_delta_rule(*x, chunk=4), inputs, fast_mode=True)


def test_gradients_equal_those_of_the_definition() -> None:
    first, second = (tuple(x.requires_grad_() for x in draw(6, 70)) for _ in range(2))
    o, state = chunk_gated_delta_rule(*first)
    expected, last = recurrent_gated_delta_rule(*second)
    weights = torch.randn(o.shape, generator=torch.Generator().manual_seed(1), dtype=o.dtype)
    ((o * weights).sum() + state.square().sum()).backward()
    ((expected * weights).sum() + last.square().sum()).backward()
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-8, atol=1e-9)


@given(seed=st.integers(0, 1 << 16), size=st.sampled_from([1, 2, 8, 64]))
def test_inverse_equals_a_triangular_solve(seed: int, size: int) -> None:
    random = torch.Generator().manual_seed(seed)
    a = torch.randn(3, size, size, generator=random, dtype=torch.float64).tril(-1) / size**0.5
    identity = torch.eye(size, dtype=torch.float64)
    solved = torch.linalg.solve_triangular(identity + a, identity.expand_as(a), upper=False, unitriangular=True)
    torch.testing.assert_close(unit_lower_inverse(a), solved, rtol=1e-10, atol=1e-10)


def test_gradient_of_the_inverse() -> None:
    a = torch.randn(2, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64).tril(-1)
    # Only the entries below the diagonal are inputs.
    below = torch.tril_indices(8, 8, -1)

    def inverse(entries: Tensor) -> Tensor:
        full = torch.zeros(2, 8, 8, dtype=torch.float64).index_put((torch.arange(2)[:, None], *below), entries)
        return UnitLowerInverse.apply(full)

    assert torch.autograd.gradcheck(inverse, a[:, below[0], below[1]].requires_grad_())
