"""Linear layers for few rows, bound by reading the weight: y = act(rms_norm(x) W^T + b) + residual.

The weight is the left operand of the product and tokens are the right one, so that a program owns features and reads
each of its weight rows once, whatever the number of tokens. All tokens go through the same tile and the same order over
the hidden dim: a token's bits do not depend on how many there are.

Two forms of the product. With KW = 1 one two-dimensional product per step (on sm_90 a warp-group product from 64 weight
rows on). With KW > 1 the step's columns are cut into KW pieces, one per warp, each with an accumulator of its own,
added at the end: few weight rows then still keep all warps busy, with short chains of dependent products.

RMS norm: r = 1 / sqrt(mean(x^2) + eps) is applied to the accumulator, the norm's weight to x on the fly, so x is read
once. x * norm_weight is rounded to the dtype once, where torch rounds x * r * norm_weight once: errors of the same
size, not the same bits.
"""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from specc.backends.triton.kernels.dot import INTERPRETED, dot_rows, rounded


@triton.jit
def weight_rows(tile, features, BF: tl.constexpr, GATED: tl.constexpr):
    """The weight's rows that a program owns, kept in range: [BF], or [2 BF] as gate, up, gate, up, … of BF features."""
    if GATED:
        place = tl.arange(0, 2 * BF)
        row = tl.minimum(tile * BF + place // 2, features - 1) + (place % 2) * features
    else:
        row = tl.minimum(tile * BF + tl.arange(0, BF), features - 1)
    return row


@triton.jit
def fetch_ahead(weight, row, first, hidden, ROWS: tl.constexpr, COLUMNS: tl.constexpr, THREADS: tl.constexpr):
    """Bring COLUMNS columns from `first` on of the program's rows into the L2 cache, without waiting for them.

    One bulk request per thread: THREADS / ROWS of them share a row (one, if there are more rows than threads).
    """
    PARTS: tl.constexpr = THREADS // ROWS if THREADS > ROWS else 1
    SPAN: tl.constexpr = COLUMNS // PARTS
    part = tl.arange(0, PARTS)
    at = weight + row.to(tl.int64)[:, None] * hidden + first + part[None, :] * SPAN
    left = hidden - first - part * SPAN
    size = tl.minimum(tl.maximum(left, 0), SPAN) * (weight.dtype.element_ty.primitive_bitwidth // 8) // 16 * 16
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.gt.s32 p, $2, 0; @p cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0; }",
        "=r,l,r",
        [at, tl.broadcast_to(size[None, :], at.shape)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def times(x, scale, like):
    """x * scale in the dtype of the pointer `like`, rounded once; pairs of bfloat16 at a time."""
    if INTERPRETED or like.dtype.element_ty != tl.bfloat16:
        return rounded(x.to(tl.float32) * scale.to(tl.float32), like)
    else:
        return tl.inline_asm_elementwise("mul.rn.bf16x2 $0, $1, $2;", "=r,r,r", [x, scale], dtype=tl.bfloat16,
                                         is_pure=True, pack=2)  # fmt: skip


@triton.jit
def split_product(x, weight, norm, row, token, live, hidden, x_stride, first, last, BK: tl.constexpr, KW: tl.constexpr,
                  NORM: tl.constexpr, EVEN: tl.constexpr):  # fmt: skip
    """(acc [rows, tokens], sum of x^2 [tokens]) over steps first..last of BK columns, cut into KW pieces."""
    PIECE: tl.constexpr = BK // KW
    column = tl.arange(0, KW)[:, None, None] * PIECE + tl.arange(0, PIECE)[None, None, :]
    w_at = weight + row.to(tl.int64)[None, :, None] * hidden + column
    x_at = x + token.to(tl.int64)[None, :, None] * x_stride + column
    shown = live[None, :, None]
    acc = tl.zeros([KW, row.shape[0], token.shape[0]], tl.float32)
    squares = tl.zeros([KW, token.shape[0], PIECE], tl.float32)
    if NORM:  # one step ahead: it comes in pieces too small to be copied beside the products
        scale = tl.load(norm + column + first * BK, mask=column + first * BK < hidden, other=0.0)
    for step in range(first, last):
        k = step * BK
        if EVEN:
            w = tl.load(w_at + k)
            xs = tl.load(x_at + k, mask=shown, other=0.0)
        else:
            inside = column + k < hidden
            w = tl.load(w_at + k, mask=inside, other=0.0)
            xs = tl.load(x_at + k, mask=shown & inside, other=0.0)
        if NORM:
            wide = xs.to(tl.float32)
            squares += wide * wide
            following = tl.load(norm + column + k + BK, mask=column + k + BK < hidden, other=0.0)
            xs = times(xs, tl.broadcast_to(scale, xs.shape), x)
            scale = following
        acc = dot_rows(w, tl.permute(xs, (0, 2, 1)), acc)
    return tl.sum(acc, 0), tl.sum(tl.sum(squares, 2), 0)


@triton.jit
def plain_product(x, weight, norm, row, token, live, hidden, x_stride, first, last, BK: tl.constexpr,
                  NORM: tl.constexpr, EVEN: tl.constexpr):  # fmt: skip
    """As `split_product` with one piece."""
    column = tl.arange(0, BK)
    w_at = weight + row.to(tl.int64)[:, None] * hidden + column[None, :]
    x_at = x + token.to(tl.int64)[:, None] * x_stride + column[None, :]
    acc = tl.zeros([row.shape[0], token.shape[0]], tl.float32)
    squares = tl.zeros([token.shape[0], BK], tl.float32)
    if NORM:  # one step ahead: it comes in pieces too small to be copied beside the products
        scale = tl.load(norm + column + first * BK, mask=column + first * BK < hidden, other=0.0)
    for step in range(first, last):
        k = step * BK
        if EVEN:
            w = tl.load(w_at + k)
            xs = tl.load(x_at + k, mask=live[:, None], other=0.0)
        else:
            inside = (column + k < hidden)[None, :]
            w = tl.load(w_at + k, mask=inside, other=0.0)
            xs = tl.load(x_at + k, mask=live[:, None] & inside, other=0.0)
        if NORM:
            wide = xs.to(tl.float32)
            squares += wide * wide
            following = tl.load(norm + column + k + BK, mask=column + k + BK < hidden, other=0.0)
            xs = times(xs, tl.broadcast_to(scale[None, :], xs.shape), x)
            scale = following
        acc = dot_rows(w, tl.trans(xs), acc)
    return acc, tl.sum(squares, 1)


@triton.jit
def finished(acc, squares, bias, row, hidden, eps, BF: tl.constexpr, BM: tl.constexpr, BIAS: tl.constexpr,
             NORM: tl.constexpr, GATED: tl.constexpr):  # fmt: skip
    """From the products [rows, tokens] to act(r product + bias) [features, tokens]; nothing is rounded between."""
    if NORM:
        acc *= tl.rsqrt(squares / hidden + eps)[None, :]
    if BIAS:
        acc += tl.load(bias + row).to(tl.float32)[:, None]
    if GATED:
        gate, up = tl.split(tl.permute(tl.reshape(acc, [BF, 2, BM]), (0, 2, 1)))
        out = gate / (1 + tl.exp(-gate)) * up
    else:
        out = acc
    return out


@triton.jit
def merged(acc, squares, partial, arrived, at, part, SPLIT: tl.constexpr):
    """(last to arrive, acc, squares): the sums of all SPLIT programs of a tile, added in order by the last to arrive.

    partial: SPLIT x (products, sums of squares) per tile; arrived [tiles], 0 before and after each launch.
    """
    ROWS: tl.constexpr = acc.shape[0]
    BM: tl.constexpr = acc.shape[1]
    AREA: tl.constexpr = (ROWS + 1) * BM
    cell = tl.arange(0, ROWS)[:, None] * BM + tl.arange(0, BM)[None, :]
    below = ROWS * BM + tl.arange(0, BM)
    mine = partial + (at * SPLIT + part) * AREA
    tl.store(mine + cell, acc)
    tl.store(mine + below, squares)
    tl.debug_barrier()
    is_last = tl.atomic_add(arrived + at, 1, sem="acq_rel") == SPLIT - 1
    if is_last:
        acc, squares = tl.zeros_like(acc), tl.zeros_like(squares)
        for other in tl.static_range(SPLIT):
            theirs = partial + (at * SPLIT + other) * AREA
            acc += tl.load(theirs + cell, cache_modifier=".cg")
            squares += tl.load(theirs + below, cache_modifier=".cg")
        tl.store(arrived + at, 0)
    return is_last, acc, squares


@triton.jit(do_not_specialize=["rows"])
def linear(x, weight, bias, norm, residual, y, partial, arrived, rows, features, hidden, x_stride, residual_stride, eps,
           BF: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, KW: tl.constexpr, SPLIT: tl.constexpr,
           AHEAD: tl.constexpr, THREADS: tl.constexpr, BIAS: tl.constexpr, NORM: tl.constexpr, GATED: tl.constexpr,
           RESIDUAL: tl.constexpr, EVEN: tl.constexpr, DEPENDENT: tl.constexpr, LATE: tl.constexpr):  # fmt: skip
    """One program: BF features (their gate and up rows with GATED) of BM tokens, over one of SPLIT parts of the steps.

    x [rows, hidden] and residual [rows, features] by row stride, weight [features or 2 features, hidden], y
    [rows, features]. The last of the SPLIT programs of a tile to arrive adds their sums in order. AHEAD: columns of the
    weight asked for before anything else. DEPENDENT: started beside the kernel in front of it, whose results (x,
    residual) are read, and buffers written, only after it has ended.
    """
    block, tile, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row = weight_rows(tile, features, BF, GATED)
    steps = tl.cdiv(tl.cdiv(hidden, BK), SPLIT)
    first, last = part * steps, tl.minimum((part + 1) * steps, tl.cdiv(hidden, BK))
    if AHEAD > 0:
        fetch_ahead(weight, row, first * BK, hidden, row.shape[0], AHEAD, THREADS)
    if DEPENDENT:
        gdc_wait()
        if not LATE:  # never before the wait: what starts next may then rely on all kernels but this one
            gdc_launch_dependents()
    token = block * BM + tl.arange(0, BM)
    live = token < rows
    feature = tile * BF + tl.arange(0, BF)
    written = live[None, :] & (feature < features)[:, None]
    if RESIDUAL:
        beside = tl.load(residual + token.to(tl.int64)[None, :] * residual_stride + feature[:, None], mask=written,
                         other=0.0).to(tl.float32)  # fmt: skip
    if KW > 1:
        acc, squares = split_product(x, weight, norm, row, token, live, hidden, x_stride, first, last, BK, KW, NORM,
                                     EVEN)  # fmt: skip
    else:
        acc, squares = plain_product(x, weight, norm, row, token, live, hidden, x_stride, first, last, BK, NORM, EVEN)
    if DEPENDENT and LATE:
        gdc_launch_dependents()
    target = y + token.to(tl.int64)[None, :] * features + feature[:, None]
    if SPLIT > 1:
        at = block * tl.num_programs(1) + tile
        is_last, acc, squares = merged(acc, squares, partial, arrived, at, part, SPLIT)
        written = written & is_last
    out = finished(acc, squares, bias, row, hidden, eps, BF, BM, BIAS, NORM, GATED)
    if RESIDUAL:
        out += beside
    tl.store(target, rounded(out, y), mask=written)
