"""How far results in float16 or bfloat16 may be from float64: derived from the rounding of every stored result.

Operands and weights are the same numbers on both sides (the float64 program gets the rounded weights), so what differs
is the rounding of intermediate results. Every matrix product, norm, rotation, activation and sum is rounded once to the
type of the program when it is stored, with a relative error of at most u = eps / 2 of each element; accumulation inside
an op is in float32 and adds less than u / 100. S such roundings in a row are independent, so they add up to about
u sqrt(S) of the result (Higham and Mary, SIAM J. Sci. Comput. 41(5), 2019). The largest of some hundred elements is
about three standard deviations out, and a norm or a softmax may magnify what came in: AMPLIFIED covers both.

An attention layer stores at most 12 results on its longest path: norm, q/k/v product, their norm and rotation,
attention, output product, sum; norm, gate/up product, activation, down product, sum. A recurrent layer stores 15: norm,
product, convolution, activation, unit vectors, rule, norm, gate, output product, sum, and its MLP's five.

Recurrent layers norm the output of every head whatever its size, so that an output much smaller than the terms that
cancelled in it has their rounding: RECURRENT times more.

For two layers of attention the bound is 1.2e-2 in float16 and 9.4e-2 in bfloat16; the largest errors seen over the
shipped specs are 3.1e-3 and 2.6e-2. For two recurrent layers 3.5e-2 and 2.8e-1, seen 6.3e-3 and 5.0e-2; for a hybrid of
three layers 4.2e-2 and 3.4e-1, seen 2.0e-2 and 1.4e-1. A mask of the opposite meaning, rows one place off or an
activation left out are beyond the bound, which a test shows.
"""

from __future__ import annotations

import math

import torch

from specc.models.geometry import Geometry

ROUNDINGS = 16
"""Results stored one after the other in one layer, at most."""
ENDS = 4
"""Roundings outside of layers: embedding, last norm, head, and the rows kept in the cache."""
AMPLIFIED = 4.0
RECURRENT = 3.0


def unit_roundoff(dtype: torch.dtype) -> float:
    """u: the largest relative error of rounding to this type."""
    return torch.finfo(dtype).eps / 2


def half_bound(geometry: Geometry, dtype: torch.dtype) -> float:
    """The bound on max|a - b| / max|b| of logits and cached rows after the whole stack."""
    roundings = ROUNDINGS * geometry.num_hidden_layers + ENDS
    slack = AMPLIFIED * (RECURRENT if geometry.recurrent else 1.0)
    return slack * unit_roundoff(dtype) * math.sqrt(roundings)


def same_rounding_bound(geometry: Geometry, dtype: torch.dtype) -> float:
    """The bound between two runs that round at the same places: their sums differ in order only, so that now and then
    one of them rounds the other way. Half of what two unrelated roundings may differ by."""
    return half_bound(geometry, dtype) / 2


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """max|a - b| / max|b| over finite values of b (0 for empty ones); inf where only one of them is finite."""
    a, b = a.double(), b.double()
    finite = b.isfinite()
    if not torch.equal(a.isfinite(), finite):
        return math.inf
    if not bool(finite.any()):
        return 0.0
    scale = float(b[finite].abs().max())
    gap = float((a[finite] - b[finite]).abs().max())
    return gap / scale if scale else (math.inf if gap else 0.0)
