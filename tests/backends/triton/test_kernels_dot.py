"""The one way to multiply matrices, and what makes it necessary."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from specc.backends.triton.kernels.dot import bfloat16, dot_exact, dot_pieces


@triton.jit
def product(a, b, out, MODE: tl.constexpr):
    """out [16,16] = a b, bare or by a function of `dot`."""
    i, j = tl.arange(0, 16)[:, None], tl.arange(0, 16)[None, :]
    left, right = tl.load(a + i * 16 + j), tl.load(b + i * 16 + j)
    nothing = tl.zeros([16, 16], tl.float32)
    if MODE == 0:
        result = tl.dot(left, right, nothing)
    elif MODE == 1:
        result = dot_exact(left, right, nothing)
    else:
        result = dot_pieces(left, right, nothing, MODE)
    tl.store(out + i * 16 + j, result)


def multiplied(a: torch.Tensor, b: torch.Tensor, mode: int) -> tuple[float, torch.Tensor]:
    """(error relative to float64, the product)."""
    out = torch.full((16, 16), float("nan"))
    product[(1,)](a, b, out, mode)
    exact = a.double() @ b.double()
    return float((out - exact).norm() / exact.norm()), out


def rand(dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(16, 16).to(dtype)


def test_interpreter_multiplies_bfloat16_as_integers() -> None:
    """Why nothing else may call tl.dot: when this fails, the interpreter has been mended and `dot_exact` may go."""
    torch.manual_seed(0)
    assert multiplied(rand(), rand(), 0)[0] > 1e3


def test_helper_multiplies_bfloat16() -> None:
    torch.manual_seed(0)
    assert multiplied(rand(), rand(), 1)[0] < 1e-6


@pytest.mark.parametrize(("pieces", "least", "most"), [(2, 3e-8, 4e-6), (3, 0.0, 2e-7)])
def test_pieces_of_float32(pieces: int, least: float, most: float) -> None:
    torch.manual_seed(0)
    assert least <= multiplied(rand(torch.float32), rand(), pieces)[0] <= most


@triton.jit
def rounding(x, out, N: tl.constexpr):
    """out = x rounded to bfloat16."""
    i = tl.arange(0, N)
    tl.store(out + i, bfloat16(tl.load(x + i)))


def test_rounding_to_bfloat16_is_to_the_nearest() -> None:
    torch.manual_seed(0)
    x = torch.cat((torch.randn(1021) * torch.logspace(-30, 30, 1021), torch.tensor([0.0, 1.00390625, 1.01171875])))
    out = torch.empty(1024, dtype=torch.bfloat16)
    rounding[(1,)](x, out, 1024)
    assert torch.equal(out, x.to(torch.bfloat16))
