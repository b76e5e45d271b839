"""Routed experts against one token at a time."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from specc.ir import ops
from specc.testing.delta_oracles import expert_mixture
from tests.unit.delta_cases import array, close


@st.composite
def mixtures(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int, bool]:
    """Operands of moe, float64."""
    batch, tokens, hidden, inner, experts = (draw(st.integers(1, most)) for most in (3, 5, 6, 4, 7))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 20)))
    shapes = ((batch, tokens, hidden), (experts, hidden), (experts * 2 * inner, hidden), (experts * hidden, inner))
    operands = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    return *operands, draw(st.integers(1, experts)), draw(st.booleans())


@given(mixtures())
def test_each_token_goes_through_its_own_experts(case: tuple) -> None:
    x, router, gate_up, down, chosen, renormalise = case
    experts = router.shape[0]
    gates, downs = array(gate_up).reshape(experts, -1, x.shape[-1]), array(down).reshape(experts, x.shape[-1], -1)
    out = ops.moe(*case)
    for b in range(x.shape[0]):
        for m in range(x.shape[1]):
            wanted = expert_mixture(array(x[b, m]), array(router), gates, downs, chosen, renormalise)
            close(out[b, m], torch.from_numpy(wanted))


@given(mixtures())
def test_a_token_does_not_see_its_neighbours(case: tuple) -> None:
    """Up to the rounding of matmuls of another size; NaN in one token stays there."""
    x = case[0]
    out = ops.moe(*case)
    spoilt = x.clone()
    spoilt[0, 0] = float("nan")
    made = ops.moe(spoilt, *case[1:])
    assert made[0, 0].isnan().all()
    close(made.flatten(0, 1)[1:], out.flatten(0, 1)[1:]) if out.flatten(0, 1).shape[0] > 1 else None


def test_probabilities_run_over_all_experts_in_float32() -> None:
    """Two of three experts: without renormalising, their weights sum to less than 1."""
    x = torch.ones(1, 1, 1, dtype=torch.bfloat16)
    router = torch.tensor([[0.0], [1.0], [2.0]], dtype=torch.bfloat16)
    gate_up = torch.ones(3 * 2, 1, dtype=torch.bfloat16) * 4
    down = torch.ones(3, 1, dtype=torch.bfloat16)
    gate = 4 / (1 + torch.tensor(-4.0).exp()) * 4
    share = torch.softmax(torch.tensor([0.0, 1.0, 2.0]), 0)[1:].sum()
    torch.testing.assert_close(
        ops.moe(x, router, gate_up, down, 2, False).float()[0, 0, 0], gate * share, rtol=1e-2, atol=0
    )
    torch.testing.assert_close(ops.moe(x, router, gate_up, down, 2, True).float()[0, 0, 0], gate, rtol=1e-2, atol=0)
