"""Narrow linear layers in one step: y = act(rms_norm(x) W^T + b) + residual, all columns of a tile at once.

What such a layer takes is latency, not bytes: a program brings its whole tile of the weight into shared memory while
the kernel in front of it still runs, then waits for x, and is done after one product. Columns are cut into KW pieces,
each with an accumulator of its own, added at the end: a power of two of them, and another one where the layer is not
as wide as a power of two (576 = 512 + 64). All rows go through the same code, 8 or 16 in a program.

How few instructions and barriers stand between x and y is what counts:

* every load is asked for before any is looked at (`asked`), the weight's before the wait;
* RMS norm: the norm's weight meets the layer's before x is there (rounded once, as x * norm_weight would be). Sums of
  squares are products too: the diagonal of x x^T, which lies where the sums over columns do. 1 / rms comes behind;
* warps exchange their accumulators and sums of squares once (`across`), and gates and ups lie in the same thread.

A layer with a residual or gates, behind which a product comes, lets the next kernel start before it waits itself, so
that several of them have their weights when their turn comes. Others do not: an attention reads its cache before the
wait and relies on whatever ran before the kernel in front of it.
"""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from specc.backends.triton.kernels.attention_parts import joined_from, read_parts, seen_parts
from specc.backends.triton.kernels.dot import INTERPRETED, dot_rows, rounded
from specc.backends.triton.kernels.linear import times


@triton.jit
def asked(loaded):
    """What was loaded, not looked at before here: else the compiler copies it to shared memory where it is loaded, and
    the next load has to wait for this one."""
    if INTERPRETED:
        return loaded
    elif loaded.dtype.primitive_bitwidth == 16:
        return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [loaded], dtype=loaded.dtype, is_pure=False, pack=2)
    else:
        return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [loaded], dtype=loaded.dtype, is_pure=False, pack=1)


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
def scaled(w, scale, like, NORM: tl.constexpr):
    """The weight times the norm's, as an operand."""
    w = asked(w)
    if NORM:
        w = times(w, tl.broadcast_to(asked(scale), w.shape), like)
    return w


@triton.jit
def owned_rows(tile, features, BF: tl.constexpr, GATED: tl.constexpr):
    """The weight's rows that a program owns, kept in range: [BF], or [2 BF] as eight gates, their eight ups, and so on:
    a thread of the product holds both of a feature."""
    if GATED:
        place = tl.arange(0, 2 * BF)
        feature = tile * BF + place // 16 * 8 + place % 8
        row = tl.minimum(feature, features - 1) + place // 8 % 2 * features
    else:
        row = tl.minimum(tile * BF + tl.arange(0, BF), features - 1)
    return row


@triton.jit
def left_places(first, hidden, most, padded, KW: tl.constexpr, PIECE: tl.constexpr, GROUP: tl.constexpr,
                D: tl.constexpr):  # fmt: skip
    """Of KW x PIECE columns from `first` on: first parts' numbers [KW,runs,1], places in their rows [KW,runs,columns].

    A KV head has `padded` rows, a row `most` parts. A thread's columns, where it has four, share a head's sums.
    """
    RUN: tl.constexpr = 4 if D % 4 == 0 and PIECE >= 128 else 1
    run = first + tl.arange(0, KW)[:, None, None] * PIECE + tl.arange(0, PIECE // RUN)[None, :, None] * RUN
    head = tl.minimum(run, hidden - 1) // D
    at = (head // GROUP * padded + head % GROUP) * most
    return at, tl.multiple_of(run % D, [RUN, RUN, RUN]) + tl.arange(0, RUN)[None, None, :]


@triton.jit
def row_left(made, like, BM: tl.constexpr, PIECE: tl.constexpr):
    """x [KW,BM,PIECE] of the one row that attention has left, BM times."""
    made = tl.reshape(rounded(made, like), [made.shape[0], 1, PIECE])
    return tl.broadcast_to(made, [made.shape[0], BM, PIECE])


@triton.jit
def rows_of(x, token, live, column, hidden, x_stride, EVEN: tl.constexpr):
    """x [KW,tokens,PIECE] at the columns."""
    shown = live[None, :, None] if EVEN else live[None, :, None] & (column < hidden)
    return tl.load(x + token.to(tl.int64)[None, :, None] * x_stride + column, mask=shown, other=0.0)


@triton.jit
def piece_product(xs, w, acc, squares, NORM: tl.constexpr):
    """acc [KW,rows,tokens] + w xs^T, and squares [KW,tokens,tokens] + xs xs^T, whose diagonal is what is wanted."""
    turned = tl.permute(xs, (0, 2, 1))
    acc = dot_rows(w, turned, acc)
    if NORM:
        squares = dot_rows(xs, turned, squares)
    return acc, squares


@triton.jit
def diagonal(sums, ROWS: tl.constexpr):
    """The diagonals of sums [KW,tokens,tokens] as [KW,ROWS,tokens], each ROWS times."""
    BM: tl.constexpr = sums.shape[1]
    at = tl.arange(0, BM)
    own = tl.sum(tl.where((at[:, None] == at[None, :])[None, :, :], sums, 0.0), 1)
    return tl.broadcast_to(own[:, None, :], [sums.shape[0], ROWS, BM])


@triton.jit
def across(acc, BF: tl.constexpr, GATED: tl.constexpr):
    """acc [KW,rows,tokens,J] added over KW: [J,1,tokens,BF], or with gates and ups [J,2,tokens,BF].

    One exchange between warps: the split wants two summands in a thread, and where a tile has as many elements as there
    are threads the others lie beside them.
    """
    KW: tl.constexpr = acc.shape[0]
    BM: tl.constexpr = acc.shape[2]
    J: tl.constexpr = acc.shape[3]
    if GATED:
        parts = tl.reshape(acc, [KW // 2, 2, BF // 8, 2, 8, BM, J])
        parts = tl.reshape(tl.permute(parts, (0, 6, 3, 5, 2, 4, 1)), [KW // 2, J, 2, BM, BF, 2])
    else:
        parts = tl.reshape(acc, [KW // 2, 2, BF, BM, J])
        parts = tl.reshape(tl.permute(parts, (0, 4, 3, 2, 1)), [KW // 2, J, 1, BM, BF, 2])
    one, two = tl.split(parts)
    return tl.sum(one + two, 0)


@triton.jit
def activated(sums, bias, feature, features, hidden, eps, BIAS: tl.constexpr, NORM: tl.constexpr, GATED: tl.constexpr):
    """From sums [J,1 or 2,tokens,BF] of products and (with NORM) squares to act(r product + bias) [tokens,BF]."""
    if NORM:
        sums, squares = tl.split(tl.permute(sums, (1, 2, 3, 0)))
        sums *= tl.rsqrt(squares / hidden + eps)
    else:
        sums = tl.reshape(sums, sums.shape[1:])
    if GATED:
        gate, up = tl.split(tl.permute(sums, (1, 2, 0)))
        if BIAS:
            gate += tl.load(bias + feature).to(tl.float32)[None, :]
            up += tl.load(bias + features + feature).to(tl.float32)[None, :]
        out = gate / (1 + tl.exp(-gate)) * up
    else:
        out = tl.reshape(sums, sums.shape[1:])
        if BIAS:
            out += tl.load(bias + feature).to(tl.float32)[None, :]
    return out


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
    if DEPENDENT and (RESIDUAL or GATED):  # a product comes next, and reads nothing but its weight before its wait
        gdc_launch_dependents()
    block, tile = tl.program_id(0), tl.program_id(1)
    row = owned_rows(tile, features, BF, GATED)
    inner = tl.arange(0, KW)[:, None, None]
    column = inner * PIECE + tl.arange(0, PIECE)[None, None, :]
    w, scale = held(weight, norm, row, column, hidden, NORM, EVEN)
    if REST > 0:
        last = KW * PIECE + inner * REST + tl.arange(0, REST)[None, None, :]
        w_last, scale_last = held(weight, norm, row, last, hidden, NORM, EVEN)
    w = scaled(w, scale, weight, NORM)
    if REST > 0:
        w_last = scaled(w_last, scale_last, weight, NORM)
    parts = most
    if PARTS > 0:  # read before: the kernel in front is the attention, which waits first and does not write it
        parts = seen_parts(length, 1, most, STEP)
        at, d = left_places(0, hidden, most, padded, KW, PIECE, GROUP, D)
        if REST > 0:
            at_last, d_last = left_places(KW * PIECE, hidden, most, padded, KW, REST, GROUP, D)
    token, feature = block * BM + tl.arange(0, BM), tile * BF + tl.arange(0, BF)
    inside = feature < features
    feature = tl.minimum(feature, features - 1)
    live = token < rows
    written = live[:, None] & inside[None, :]
    if DEPENDENT:
        gdc_wait()
        if not (RESIDUAL or GATED):  # never before the wait: what is next may rely on all kernels but this one
            gdc_launch_dependents()
    if PARTS > 0:
        sums, left = read_parts(x, lse, at, d, 0, parts, D, PARTS)
        if REST > 0:
            sums_last, left_last = read_parts(x, lse, at_last, d_last, 0, parts, D, PARTS)
        xs = row_left(joined_from(sums, left, x, lse, at, d, parts, D, PARTS), y, BM, PIECE)
        if REST > 0:
            made = joined_from(sums_last, left_last, x, lse, at_last, d_last, parts, D, PARTS)
            xs_last = row_left(made, y, BM, REST)
    else:
        xs = rows_of(x, token, live, column, hidden, x_stride, EVEN)
        if REST > 0:
            xs_last = rows_of(x, token, live, last, hidden, x_stride, EVEN)
    if RESIDUAL:
        beside = tl.load(residual + token.to(tl.int64)[:, None] * residual_stride + feature[None, :], mask=written,
                         other=0.0)  # fmt: skip
    if PARTS == 0:
        xs = asked(xs)
        if REST > 0:
            xs_last = asked(xs_last)
    acc, squares = tl.zeros([KW, row.shape[0], BM], tl.float32), tl.zeros([KW, BM, BM], tl.float32)
    acc, squares = piece_product(xs, w, acc, squares, NORM)
    if REST > 0:
        acc, squares = piece_product(xs_last, w_last, acc, squares, NORM)
    together = tl.join(acc, diagonal(squares, row.shape[0])) if NORM else acc[:, :, :, None]
    out = activated(across(together, BF, GATED), bias, feature, features, hidden, eps, BIAS, NORM, GATED)
    if RESIDUAL:
        out += beside.to(tl.float32)
    tl.store(y + token.to(tl.int64)[:, None] * features + feature[None, :], rounded(out, y), mask=written)
