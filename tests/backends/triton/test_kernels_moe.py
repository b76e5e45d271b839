"""The mixture of experts against the op's reference implementation."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.backends.triton.ops.moe import moe
from specc.ir import ops


def operands(seed: int, tokens: int, experts: int, hidden: int, width: int, dtype: torch.dtype) -> list[torch.Tensor]:
    made = torch.Generator().manual_seed(seed)
    shapes = ((2, tokens, hidden), (experts, hidden), (experts * 2 * width, hidden), (experts * hidden, width))
    return [(torch.randn(shape, generator=made) / shape[-1] ** (len(shape) != 3) ** 0.5).to(dtype) for shape in shapes]


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 999),
    tokens=st.integers(1, 3),
    experts=st.sampled_from([3, 8, 11]),
    chosen=st.integers(1, 3),
    sizes=st.sampled_from([(16, 16), (48, 24), (300, 20)]),
    norm=st.booleans(),
)
def test_the_chosen_experts_answer(
    seed: int, tokens: int, experts: int, chosen: int, sizes: tuple[int, int], norm: bool
) -> None:
    given_ = operands(seed, tokens, experts, *sizes, torch.float32)
    made, expected = moe(*given_, chosen, norm), ops.moe(*(x.double() for x in given_), chosen, norm)
    torch.testing.assert_close(made.double(), expected, rtol=1e-4, atol=1e-5)


def test_bfloat16_and_rows_alone() -> None:
    given_ = operands(1, 3, 8, 64, 32, torch.bfloat16)
    made = moe(*given_, 2, True)
    torch.testing.assert_close(made.float(), ops.moe(*(x.float() for x in given_), 2, True), rtol=3e-2, atol=2e-2)
    for row in range(3):
        assert torch.equal(moe(given_[0][:, row : row + 1], *given_[1:], 2, True), made[:, row : row + 1])


def test_equal_probabilities_go_to_the_lower_number() -> None:
    x, router, gate_up, down = operands(2, 1, 4, 16, 16, torch.float32)
    router[:] = router[0]
    expected = ops.moe(x, router[:1], gate_up[:32], down[:16], 1, True)
    torch.testing.assert_close(moe(x, router, gate_up, down, 1, True), expected, rtol=1e-4, atol=1e-5)
