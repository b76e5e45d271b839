"""Narrow linear layers in one step: y = act(rms_norm(x) W^T + b) + residual, all columns of a tile at once.

What such a layer takes is latency, not bytes: a program loads its whole tile of the weight into registers while the
kernel in front of it still runs, then waits for x, and is done after one product. Columns are cut into KW pieces, one
per warp, each with an accumulator of its own, added at the end: a power of two of them, and another one where the layer
is not as wide as a power of two (576 = 512 + 64). All rows go through the same code, 16 in a program.

RMS norm as in `linear`: the norm's weight meets x before the product, 1 / rms the sums behind it.
"""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from specc.backends.triton.kernels.attention_parts import joined, seen_parts
from specc.backends.triton.kernels.dot import dot_rows, rounded
from specc.backends.triton.kernels.linear import finished, times, weight_rows


@triton.jit
def held(weight, norm, row, column, hidden, NORM: tl.constexpr, EVEN: tl.constexpr):
    """(weight [KW,rows,PIECE], norm's weight [KW,1,PIECE]) of the columns [KW,1,PIECE]; zeros beyond the last one."""
    at = weight + row.to(tl.int64)[None, :, None] * hidden + column
    inside = column < hidden
    w = tl.load(at) if EVEN else tl.load(at, mask=inside, other=0.0)
    scale = w
    if NORM:
        scale = tl.load(norm + column) if EVEN else tl.load(norm + column, mask=inside, other=0.0)
    return w, scale


@triton.jit
def first_parts(column, hidden, most, padded, GROUP: tl.constexpr, D: tl.constexpr):
    """Numbers of the first parts of the heads that the columns belong to, `padded` rows a KV head."""
    head = tl.minimum(column, hidden - 1) // D
    return (head // GROUP * padded + head % GROUP) * most


@triton.jit
def row_left(partial, lse, at, column, parts, like, BM: tl.constexpr, D: tl.constexpr, PARTS: tl.constexpr):
    """x [KW,BM,PIECE] of the one row that attention has left in parts, at columns [KW,1,PIECE], BM times."""
    made = rounded(joined(partial, lse, at, column % D, parts, D, PARTS), like)
    return tl.broadcast_to(made, [column.shape[0], BM, column.shape[2]])


@triton.jit
def rows_of(x, token, live, column, hidden, x_stride, EVEN: tl.constexpr):
    """x [KW,tokens,PIECE] at the columns."""
    shown = live[None, :, None] if EVEN else live[None, :, None] & (column < hidden)
    return tl.load(x + token.to(tl.int64)[None, :, None] * x_stride + column, mask=shown, other=0.0)


@triton.jit
def squared(xs):
    """Sums of squares [tokens] of xs [KW,tokens,PIECE]."""
    wide = xs.to(tl.float32)
    return tl.sum(tl.sum(wide * wide, 2), 0)


@triton.jit
def piece_product(xs, w, scale, acc, like, NORM: tl.constexpr):
    """acc [KW,rows,tokens] + w (xs scale)^T."""
    if NORM:
        xs = times(xs, tl.broadcast_to(scale, xs.shape), like)
    return dot_rows(w, tl.permute(xs, (0, 2, 1)), acc)


@triton.jit(do_not_specialize=["rows", "most"])
def linear_once(x, weight, bias, norm, residual, y, lse, length, rows, features, hidden, x_stride, residual_stride, eps,
                most, padded, BF: tl.constexpr, BM: tl.constexpr, PIECE: tl.constexpr, REST: tl.constexpr,
                KW: tl.constexpr, BIAS: tl.constexpr, NORM: tl.constexpr, GATED: tl.constexpr,
                RESIDUAL: tl.constexpr, EVEN: tl.constexpr, DEPENDENT: tl.constexpr,
                GROUP: tl.constexpr, D: tl.constexpr, PARTS: tl.constexpr, STEP: tl.constexpr):  # fmt: skip
    """One program: BF features (their gate and up rows with GATED) of BM tokens. Operands as in `linear`.

    KW x (PIECE + REST) columns, at least all there are (EVEN: exactly). DEPENDENT: started beside the kernel in front
    of it. PARTS > 0: that is an attention of one token over `length` rows and itself, heads of D, GROUP of them to a
    KV head; x and lse are what it has left (see `leave_part`) of `most` parts, each a step of STEP columns at least,
    and `padded` rows a KV head. PARTS of the parts are read at a time.
    """
    block, tile = tl.program_id(0), tl.program_id(1)
    row = weight_rows(tile, features, BF, GATED)
    inner = tl.arange(0, KW)[:, None, None]
    column = inner * PIECE + tl.arange(0, PIECE)[None, None, :]
    w, scale = held(weight, norm, row, column, hidden, NORM, EVEN)
    if REST > 0:
        last = KW * PIECE + inner * REST + tl.arange(0, REST)[None, None, :]
        w_last, scale_last = held(weight, norm, row, last, hidden, NORM, EVEN)
    parts = most
    if PARTS > 0:  # read before: the kernel in front is the attention, which does not write it
        parts, at = seen_parts(length, 1, most, STEP), first_parts(column, hidden, most, padded, GROUP, D)
        if REST > 0:
            at_last = first_parts(last, hidden, most, padded, GROUP, D)
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()  # never before the wait: what starts next may then rely on all kernels but this one
    token = block * BM + tl.arange(0, BM)
    live = token < rows
    feature = tile * BF + tl.arange(0, BF)
    written = live[None, :] & (feature < features)[:, None]
    if PARTS > 0:
        xs = row_left(x, lse, at, column, parts, y, BM, D, PARTS)
        if REST > 0:
            xs_last = row_left(x, lse, at_last, last, parts, y, BM, D, PARTS)
    else:
        xs = rows_of(x, token, live, column, hidden, x_stride, EVEN)
        if REST > 0:
            xs_last = rows_of(x, token, live, last, hidden, x_stride, EVEN)
    if RESIDUAL:
        beside = tl.load(residual + token.to(tl.int64)[None, :] * residual_stride + feature[:, None], mask=written,
                         other=0.0).to(tl.float32)  # fmt: skip
    acc = piece_product(xs, w, scale, tl.zeros([KW, row.shape[0], BM], tl.float32), y, NORM)
    squares = 0.0
    if NORM:
        squares = squared(xs)
    if REST > 0:
        acc = piece_product(xs_last, w_last, scale_last, acc, y, NORM)
        if NORM:
            squares += squared(xs_last)
    out = finished(tl.sum(acc, 0), squares, bias, row, hidden, eps, BF, BM, BIAS, NORM, GATED)
    if RESIDUAL:
        out += beside
    tl.store(y + token.to(tl.int64)[None, :] * features + feature[:, None], rounded(out, y), mask=written)
