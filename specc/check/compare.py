"""Equality of states and results: integers equal, floats within a bound that is stated here.

The bound. Two programs that do the same arithmetic in another order differ by rounding only. A sum of K products in
float64 has a relative error of about sqrt(K) eps with high probability (Higham and Mary, SIAM J. Sci. Comput. 41(5),
2019, theorem 3.1), K at most the longest reduction of the model. A reduced model has two layers of about ten such
sums each, whose errors the sharp softmax and the norms amplify by their condition numbers. Over the shipped specs of
transformers the largest difference seen is 1.5 in this unit. Recurrent layers norm the output of every head, however
small it is beside the terms that cancelled in it (eps is 1e-6 under the root, so that rounding grows by up to 1e3):
there a few hundred units were seen. SLACK = 4096 covers both: at K = 128 the bound is 1.0e-11 of the largest value,
while a wrong row, position or parent moves results by more than 1e-3, and a wrong eps in a norm by more than 1e-10.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

SLACK = 4096.0
LONGEST_SUM = 128
EPS = torch.finfo(torch.float64).eps
BOUND = SLACK * EPS * math.sqrt(LONGEST_SUM)
FLOAT32_BOUND = 64 * torch.finfo(torch.float32).eps


def bound_of(dtype: torch.dtype, bound: float = 0.0) -> float:
    """The relative bound for values of this type, at least `bound`; float32 scores are sums of rounded numbers."""
    return max(bound, BOUND if dtype == torch.float64 else FLOAT32_BOUND)


def close(a: Tensor, b: Tensor) -> bool:
    """Whether a and b agree within the bound; infinities and NaN must stand at the same places."""
    return difference(a, b) is None


def difference(a: Tensor, b: Tensor, exact: bool = False, bound: float = 0.0) -> str | None:
    """How `a` differs from the reference `b`, or None. Shapes and dtypes must agree; see the module for floats.

    `bound`: a relative bound that is larger than float64's, for results of a module in float32.
    """
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"{a.dtype} {list(a.shape)} instead of {b.dtype} {list(b.shape)}"
    if a.numel() == 0:
        return None
    if exact or not a.dtype.is_floating_point:
        same = (a == b) | (a.isnan() & b.isnan()) if a.dtype.is_floating_point else a == b
        return None if bool(same.all()) else _first(a, b, ~same)
    finite = b.isfinite()
    special = (a == b) | (a.isnan() & b.isnan())
    scale = b[finite].abs().max() if bool(finite.any()) else torch.ones((), dtype=b.dtype)
    near = (a - b).abs() <= bound_of(a.dtype, bound) * scale.clamp(min=1e-30)
    wrong = ~torch.where(finite, near, special)
    return _first(a, b, wrong) if bool(wrong.any()) else None


def _first(a: Tensor, b: Tensor, wrong: Tensor) -> str:
    place = tuple(int(index) for index in wrong.nonzero()[0].tolist())
    got, wanted = a[place].item(), b[place].item()
    gap = f", off by {abs(got - wanted):.1e}" if a.dtype.is_floating_point else ""
    return f"at {list(place)} it is {got}, not {wanted}{gap} ({int(wrong.sum())} of {wrong.numel()} differ)"


def mapping_difference(
    a: Mapping[str, Tensor], b: Mapping[str, Tensor], exact: bool = False, bound: float = 0.0
) -> str | None:
    """The first difference of two mappings of tensors, by name; names that only one of them has don't count."""
    for name in b:
        if name in a:
            text = difference(a[name], b[name], exact, bound)
            if text is not None:
                return f"`{name}`: {text}"
    return None
