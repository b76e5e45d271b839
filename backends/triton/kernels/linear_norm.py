"""RMS norm of a layer's rows as a launch of its own, in front of a product over many rows.

A product over many rows reads each row of x once for every tile of features: normalising on the way would repeat the
work in every program and take the operand through registers. So x is normalised once, by one program per row.
"""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.dot import rounded
from specc.backends.triton.kernels.region_math import follow


@triton.jit
def normed_rows(x, norm, y, hidden, x_stride, eps, COLUMNS: tl.constexpr, DEPENDENT: tl.constexpr):
    """One program: y[row] = x[row] / sqrt(mean(x[row]^2) + eps) * norm, rounded once, as torch does.

    x [rows, hidden] by row stride, y [rows, hidden]; COLUMNS: at least `hidden`. DEPENDENT: started beside the kernel
    in front of it.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    inside = column < hidden
    scale = tl.load(norm + column, mask=inside, other=0.0).to(tl.float32)
    if DEPENDENT:
        follow()
    wide = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    r = tl.rsqrt(tl.sum(wide * wide, 0) / hidden + eps)
    tl.store(y + row * hidden + column, rounded(wide * r * scale, y), mask=inside)
