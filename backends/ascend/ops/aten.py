"""What stands for aten ops that GE has no form of, or whose result it leaves open."""

from __future__ import annotations

import torch

EXACT = 2**24
"""Whole numbers below this are exact in float32, which is what reductions run in."""
LINEAR_FROM = 20.0


def argmax(x: torch.Tensor, dim: int = -1, keepdim: bool = False) -> torch.Tensor:
    """int64: the first index of the maximum along `dim`, which has fewer than EXACT elements.

    GE's ArgMax leaves open which of several maxima it names. Whole numbers in x lie within EXACT. Where there is no
    maximum (NaN), the last index. Of float64, which GE reduces to no maximum, it is GE's: noise of 53 bits has no ties.
    """
    if x.dtype == torch.float64:
        found = x.argmax(dim)
        return found.unsqueeze(dim) if keepdim else found
    size = x.shape[dim]
    keys = x if x.is_floating_point() else x.to(torch.float32)
    best = keys.max(dim, keepdim=True).values
    # The first place has the largest number when they are counted downwards.
    down = torch.arange(size, 0, -1, dtype=torch.float32, device=x.device)
    down = down.reshape([size, *[1] * (x.dim() - 1 - dim % x.dim())])
    place = torch.where(keys == best, down, torch.ones_like(down))
    return size - place.max(dim, keepdim=keepdim).values.to(torch.int64)


def amax(x: torch.Tensor, dim: list[int], keepdim: bool = False) -> torch.Tensor:
    """The maximum along one dim; whole numbers lie within EXACT."""
    if x.is_floating_point():
        return x.max(dim[0], keepdim=keepdim).values
    return x.to(torch.float32).max(dim[0], keepdim=keepdim).values.to(x.dtype)


def clamp_max(x: torch.Tensor, most: float) -> torch.Tensor:
    """min(x, most)."""
    return x.clamp(max=most)


def cumprod(x: torch.Tensor, dim: int) -> torch.Tensor:
    """The running product of zeros and ones: 1 until the first 0."""
    return ((1 - x).cumsum(dim) == 0).to(x.dtype)


def roll(x: torch.Tensor, shifts: list[int], dims: list[int]) -> torch.Tensor:
    """x moved by shifts[0] along dims[0]; what falls off the end comes in at the front."""
    size = x.shape[dims[0]]
    front = shifts[0] % size
    if front == 0:
        return x.clone()
    return torch.cat((x.narrow(dims[0], size - front, front), x.narrow(dims[0], 0, size - front)), dim=dims[0])


def select_scatter(x: torch.Tensor, part: torch.Tensor, dim: int, index: int) -> torch.Tensor:
    """x with `part` at one index of `dim`: pieces put together, where GE's scatter has an index for every element."""
    place = index % x.shape[dim]
    after = x.shape[dim] - place - 1
    pieces = [x.narrow(dim, 0, place), part.unsqueeze(dim), x.narrow(dim, place + 1, after)]
    return torch.cat([piece for piece in pieces if piece.shape[dim] > 0], dim=dim)


def softplus(x: torch.Tensor) -> torch.Tensor:
    """log(1 + e^x), x itself above 20; rounded once to x's dtype."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return torch.where(wide > LINEAR_FROM, wide, wide.clamp(max=LINEAR_FROM).exp().log1p()).to(x.dtype)


def less(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """x < y for two element types, both taken as the wider: GE compares one type only, and torchair casts nothing."""
    wide = torch.promote_types(x.dtype, y.dtype)
    return x.to(wide) < y.to(wide)


def xlogy(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """x log(y), and 0 where x is 0."""
    return torch.where(x == 0.0, torch.zeros_like(x), x * y.log())


def logaddexp(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """log(e^x + e^y)."""
    apart = torch.where(x == y, torch.zeros_like(x), (x - y).abs())
    return torch.maximum(x, y) + apart.neg().exp().log1p()


def first_of_best(x: torch.Tensor, least: torch.Tensor, count: torch.Tensor | int) -> torch.Tensor:
    """bool: the `count` best along the last dim of x, of equal ones those of lower index.

    `least` [...,1]: the value of the last one that belongs to them; `count` an int or a tensor [...,1].
    """
    above, level = x > least, x == least
    room = count - above.to(torch.float32).sum(-1, keepdim=True)
    return above | (level & (level.to(torch.float32).cumsum(-1) <= room))
