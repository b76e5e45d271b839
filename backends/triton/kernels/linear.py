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
from specc.backends.triton.kernels.linear_beside import read_beside


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
def same(x):
    """x, two or more elements of two bytes next to each other in a thread, as something new to the compiler.

    It fails on some operands that it sees to be made of pairs.
    """
    if INTERPRETED:
        return x
    else:
        return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=x.dtype, is_pure=True, pack=2)


@triton.jit
def started(DEPENDENT: tl.constexpr, LATE: tl.constexpr):
    """Wait for the kernel in front; unless LATE, the next one may then start."""
    if DEPENDENT:
        gdc_wait()
        if not LATE:  # never before the wait: what starts next may then rely on all kernels but this one
            gdc_launch_dependents()


@triton.jit
def halves(pairs, like):
    """[…, 2 n] in the dtype of the pointer `like`, of two bytes, from pairs of neighbours in int32 [..., n]."""
    if INTERPRETED:
        low, high = (pairs & 0xFFFF).to(tl.int16), (pairs >> 16).to(tl.int16)
    else:
        low, high = tl.inline_asm_elementwise("mov.b32 {$0, $1}, $2;", "=h,=h,r", [pairs], dtype=(tl.int16, tl.int16),
                                              is_pure=True, pack=1)  # fmt: skip
    both = tl.join(low, high).to(like.dtype.element_ty, bitcast=True)
    if len(pairs.shape) == 2:
        return tl.reshape(both, [pairs.shape[0], 2 * pairs.shape[1]])
    else:
        return tl.reshape(both, [pairs.shape[0], pairs.shape[1], 2 * pairs.shape[2]])


@triton.jit
def pairs_of(at, pair, first, shown, hidden, BK: tl.constexpr, EVEN: tl.constexpr):
    """Pairs of x of a step from `first` on; beyond the last step it is again the last one, beyond the columns zeros."""
    if EVEN:
        return tl.load(at + tl.minimum(first, hidden // 2 - BK // 2))
    return tl.load(at + first, mask=shown & (pair + first < hidden // 2), other=0)


@triton.jit
def products(boxes, w_at, row, x_at, pairs_at, column, pair, norm, shown, given, beside, acc, squares, hidden,
             first, last, BK: tl.constexpr, EARLY: tl.constexpr, BOXES: tl.constexpr, NORM: tl.constexpr,
             RESIDUAL: tl.constexpr, TAPS: tl.constexpr, TREE: tl.constexpr, GATED: tl.constexpr, EVEN: tl.constexpr,
             DEPENDENT: tl.constexpr, LATE: tl.constexpr):  # fmt: skip
    """(acc, squares, beside) over steps first..last of BK columns, from pointers to their first step's `column`.

    EARLY: the wait for the kernel in front is in the first step, so that what the compiler copies ahead, the weight,
    comes before it. x comes after it, one step ahead in registers, where the compiler does not copy it ahead; in pairs,
    since registers of halves would have to be packed and unpacked in every step. BOXES: the weight comes by bulk
    copies, which loads don't wait for: a thread's own copies and loads return in the order in which they were made.
    """
    coming = tl.zeros(pairs_at.shape, tl.int32)
    if not EARLY:
        started(DEPENDENT, LATE)
        beside = read_beside(given, beside, RESIDUAL, TAPS, TREE)
    normal = column if len(column.shape) > 2 else tl.arange(0, BK)
    if NORM:  # one step ahead: it comes in pieces too small to be copied beside the products
        scale = tl.load(norm + normal + first * BK, mask=normal + first * BK < hidden, other=0.0)
    for step in range(first, last):
        k = step * BK
        if BOXES and GATED:
            w = tl.reshape(boxes.load([0, row, k]), [acc.shape[0], BK])
        elif BOXES:
            w = boxes.load([row, k])
        elif EVEN:
            w = tl.load(w_at + k)
        else:
            w = tl.load(w_at + k, mask=column + k < hidden, other=0.0)
        if EARLY:
            if step == first:
                started(DEPENDENT, LATE)
                coming = pairs_of(pairs_at, pair, step * (BK // 2), shown, hidden, BK, EVEN)
                beside = read_beside(given, beside, RESIDUAL, TAPS, TREE)
            xs = halves(coming, x_at)
            coming = pairs_of(pairs_at, pair, (step + 1) * (BK // 2), shown, hidden, BK, EVEN)
        elif EVEN:
            xs = tl.load(x_at + k, mask=shown, other=0.0)
        else:
            xs = tl.load(x_at + k, mask=shown & (column + k < hidden), other=0.0)
        if NORM:
            wide = xs.to(tl.float32)
            squares += wide * wide
            following = tl.load(norm + normal + k + BK, mask=normal + k + BK < hidden, other=0.0)
            each = scale if len(column.shape) > 2 else scale[None, :]
            xs = times(xs, tl.broadcast_to(each, xs.shape), x_at)
            scale = following
        elif EARLY:
            xs = same(xs)
        acc = dot_rows(w, tl.trans(xs) if len(xs.shape) == 2 else tl.permute(xs, (0, 2, 1)), acc)
    return acc, squares, beside


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
def finished_apart(acc, squares, bias, first, features, hidden, eps, BF: tl.constexpr, BM: tl.constexpr,
                   BIAS: tl.constexpr, NORM: tl.constexpr):  # fmt: skip
    """As `finished` with GATED, from all gates of the features from `first` on and then all their ups."""
    if NORM:
        acc *= tl.rsqrt(squares / hidden + eps)[None, :]
    if BIAS:
        place = tl.arange(0, 2 * BF)
        row = tl.minimum(first + place % BF, features - 1) + place // BF * features
        acc += tl.load(bias + row).to(tl.float32)[:, None]
    gate, up = tl.split(tl.permute(tl.reshape(acc, [2, BF, BM]), (1, 2, 0)))
    return gate / (1 + tl.exp(-gate)) * up


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
def linear(x, weight, boxes, bias, norm, residual, y, partial, arrived, rows, features, hidden, x_stride, pair_stride,
           residual_stride, eps, BF: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, KW: tl.constexpr,
           SPLIT: tl.constexpr, AHEAD: tl.constexpr, EARLY: tl.constexpr, BOXES: tl.constexpr, THREADS: tl.constexpr,
           BIAS: tl.constexpr, NORM: tl.constexpr, GATED: tl.constexpr, RESIDUAL: tl.constexpr, EVEN: tl.constexpr,
           DEPENDENT: tl.constexpr, LATE: tl.constexpr):  # fmt: skip
    """One program: BF features (their gate and up rows with GATED) of BM tokens, over one of SPLIT parts of the steps.

    x [rows, hidden] and residual [rows, features] by row stride (pair_stride: half of x's), weight [features or 2
    features, hidden] (BOXES: a descriptor of it beside it), y [rows, features]. The last of the SPLIT programs of a
    tile to arrive adds their sums in order. AHEAD: columns of the weight asked for before anything else. DEPENDENT:
    started beside the kernel in front of it, whose results (x, residual) are read, and buffers written, only after it
    has ended; see `products` for EARLY.
    """
    block, tile, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row = weight_rows(tile, features, BF, GATED)
    steps = tl.cdiv(tl.cdiv(hidden, BK), SPLIT)
    first, last = part * steps, tl.minimum((part + 1) * steps, tl.cdiv(hidden, BK))
    if AHEAD > 0:
        fetch_ahead(weight, row, first * BK, hidden, row.shape[0], AHEAD, THREADS)
    token = block * BM + tl.arange(0, BM)
    live = token < rows
    feature = tile * BF + tl.arange(0, BF)
    written = live[None, :] & (feature < features)[:, None]
    given = (residual + token.to(tl.int64)[None, :] * residual_stride + feature[:, None], written)
    beside = (tl.zeros([BF, BM], residual.dtype.element_ty),)
    w_at, x_at = weight + row.to(tl.int64) * hidden, x + token.to(tl.int64) * x_stride
    # Without a mask: tokens that are not there are the last one again.
    pairs_at = x.to(tl.pointer_type(tl.int32)) + tl.minimum(token, rows - 1).to(tl.int64) * pair_stride
    if KW > 1:
        inner = tl.arange(0, KW)[:, None, None] * (BK // KW)
        column = inner + tl.arange(0, BK // KW)[None, None, :]
        pair = inner // 2 + tl.arange(0, BK // KW // 2)[None, None, :]
        acc, squares, beside = products(
            boxes, w_at[None, :, None] + column, tile * BF, x_at[None, :, None] + column,
            pairs_at[None, :, None] + pair, column, pair, norm, live[None, :, None], given, beside,
            tl.zeros([KW, row.shape[0], BM], tl.float32), tl.zeros([KW, BM, BK // KW], tl.float32), hidden, first,
            last, BK, EARLY, False, NORM, RESIDUAL, 0, False, GATED, EVEN, DEPENDENT, LATE)  # fmt: skip
        acc, squares = tl.sum(acc, 0), tl.sum(tl.sum(squares, 2), 0)
    else:
        column, pair = tl.arange(0, BK)[None, :], tl.arange(0, BK // 2)[None, :]
        acc, squares, beside = products(
            boxes, w_at[:, None] + column, tile * BF, x_at[:, None] + column, pairs_at[:, None] + pair, column, pair,
            norm, live[:, None], given, beside, tl.zeros([row.shape[0], BM], tl.float32),
            tl.zeros([BM, BK], tl.float32), hidden, first, last, BK, EARLY, BOXES, NORM, RESIDUAL, 0, False, GATED,
            EVEN, DEPENDENT, LATE)  # fmt: skip
        squares = tl.sum(squares, 1)
    if EARLY and SPLIT > 1 and first >= last:  # a part without steps has not waited, and may be the last to arrive
        started(DEPENDENT, LATE)
        beside = read_beside(given, beside, RESIDUAL, 0, False)
    if DEPENDENT and LATE:
        gdc_launch_dependents()
    target = y + token.to(tl.int64)[None, :] * features + feature[:, None]
    if SPLIT > 1:
        at = block * tl.num_programs(1) + tile
        is_last, acc, squares = merged(acc, squares, partial, arrived, at, part, SPLIT)
        written = written & is_last
    if BOXES and GATED:
        out = finished_apart(acc, squares, bias, tile * BF, features, hidden, eps, BF, BM, BIAS, NORM)
    else:
        out = finished(acc, squares, bias, row, hidden, eps, BF, BM, BIAS, NORM, GATED)
    if RESIDUAL:
        out += beside[0].to(tl.float32)
    tl.store(target, rounded(out, y), mask=written)
