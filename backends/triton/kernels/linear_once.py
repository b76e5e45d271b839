"""Narrow linear layers in one step: y = act(rms_norm(x) W^T + b) + residual, all columns of a tile at once.

What such a layer takes is latency, not bytes: a program loads its whole tile of the weight into registers while the
kernel in front of it still runs, then waits for x, and is done after one product. Columns are cut into KW pieces, one
per warp, each with an accumulator of its own, added at the end. All rows go through the same code, 16 in a program.

x / rms(x) * norm_weight is rounded to the dtype once, as torch does.
"""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from specc.backends.triton.kernels.dot import dot_rows, rounded
from specc.backends.triton.kernels.linear import finished, weight_rows


@triton.jit(do_not_specialize=["rows"])
def linear_once(x, weight, bias, norm, residual, y, rows, features, hidden, x_stride, residual_stride, eps,
                BF: tl.constexpr, BM: tl.constexpr, PIECE: tl.constexpr, KW: tl.constexpr, BIAS: tl.constexpr,
                NORM: tl.constexpr, GATED: tl.constexpr, RESIDUAL: tl.constexpr, EVEN: tl.constexpr,
                DEPENDENT: tl.constexpr):  # fmt: skip
    """One program: BF features (their gate and up rows with GATED) of BM tokens. Operands as in `linear`.

    KW x PIECE columns, at least all there are (EVEN: exactly). DEPENDENT: started beside the kernel in front of it.
    """
    block, tile = tl.program_id(0), tl.program_id(1)
    row = weight_rows(tile, features, BF, GATED)
    column = tl.arange(0, KW)[:, None, None] * PIECE + tl.arange(0, PIECE)[None, None, :]
    inside = column < hidden
    w_at = weight + row.to(tl.int64)[None, :, None] * hidden + column
    w = tl.load(w_at) if EVEN else tl.load(w_at, mask=inside, other=0.0)
    if NORM:
        scale = tl.load(norm + column, mask=inside, other=0.0).to(tl.float32)
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()  # never before the wait: what starts next may then rely on all kernels but this one
    token = block * BM + tl.arange(0, BM)
    live = token < rows
    feature = tile * BF + tl.arange(0, BF)
    written = live[None, :] & (feature < features)[:, None]
    xs = tl.load(x + token.to(tl.int64)[None, :, None] * x_stride + column, mask=live[None, :, None] & inside,
                 other=0.0)  # fmt: skip
    if RESIDUAL:
        beside = tl.load(residual + token.to(tl.int64)[None, :] * residual_stride + feature[:, None], mask=written,
                         other=0.0).to(tl.float32)  # fmt: skip
    if NORM:
        wide = xs.to(tl.float32)
        squares = tl.sum(tl.sum(wide * wide, 2), 0)
        xs = rounded(wide * tl.rsqrt(squares / hidden + eps)[None, :, None] * scale, x)
    acc = dot_rows(w, tl.permute(xs, (0, 2, 1)), tl.zeros([KW, row.shape[0], BM], tl.float32))
    out = finished(tl.sum(acc, 0), 0, bias, row, hidden, eps, BF, BM, BIAS, False, GATED)
    if RESIDUAL:
        out += beside
    tl.store(y + token.to(tl.int64)[None, :] * features + feature[:, None], rounded(out, y), mask=written)
