"""What a program leaves of an attention: all of it, or a part to be joined with the others.

By `attention_merge`, or by the product behind it while it reads its x: both call `joined`, so both give the same bits.
"""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.dot import rounded


@triton.jit
def leave_part(acc, total, top, partial, lse, out, wide, head, tile, part, M, HKV, S, tiles, G: tl.constexpr,
               D: tl.constexpr, BM: tl.constexpr, SPLIT: tl.constexpr):  # fmt: skip
    """Writes what a program has found for its part of the columns: acc [BM,DP] and the sum of weights total [BM] (0:
    nothing seen), both relative to 2^top [BM].

    Without SPLIT there is one part, and it is all of `out`.
    """
    DP: tl.constexpr = acc.shape[1]
    d = tl.arange(0, DP)
    packed = tile * BM + tl.arange(0, BM)
    token = packed // G
    seen = total > 0
    total = tl.where(seen, total, 1.0)
    result = acc * (1.0 / total)[:, None]
    inside = (d < D)[None, :]
    if SPLIT:
        at = ((wide * HKV + head) * tiles * BM + packed) * S + part
        tl.store(lse + at, tl.where(seen, top + tl.log2(total), float("-inf")), mask=token < M)
        tl.store(partial + at[:, None] * D + d[None, :], result, mask=(seen & (token < M))[:, None] & inside)
    else:
        at = (wide * M + token) * HKV * G + head * G + packed % G
        tl.store(out + at[:, None] * D + d[None, :], rounded(result, out), mask=(token < M)[:, None] & inside)


@triton.jit
def seen_parts(length, rows, S, STEP: tl.constexpr):
    """How many of S parts, each of STEP columns at least, can have seen anything of `length` columns and `rows`."""
    return tl.minimum(S, tl.cdiv(tl.load(length).to(tl.int32) + rows, STEP) + 1)


@triton.jit
def read_parts(partial, lse, at, d, first, parts, D: tl.constexpr, PARTS: tl.constexpr):
    """Log-sum-exps and rows of PARTS parts from `first` on, as tuples; beyond `parts` -inf and anything."""
    sums, rows = (), ()
    for place in tl.static_range(PARTS):
        there = first + place < parts
        sums = sums + (tl.load(lse + at + (first + place), mask=there, other=float("-inf")),)
        rows = rows + (tl.load(partial + (at + (first + place)) * D + d, mask=there),)
    return sums, rows


@triton.jit
def add_parts(acc, total, sums, rows, top, PARTS: tl.constexpr):
    """(acc, total) and PARTS parts more, in order; rows of parts that have seen nothing may hold anything."""
    for place in tl.static_range(PARTS):
        share = tl.exp2(sums[place] - top)
        row = tl.where(share > 0, rows[place], 0.0)
        acc, total = tl.fma(row, tl.broadcast_to(share, row.shape), acc), total + share
    return acc, total


@triton.jit
def joined_from(sums, rows, partial, lse, at, d, parts, D: tl.constexpr, PARTS: tl.constexpr):
    """Attention from its parts, in float32: elements d of the rows whose first parts are number `at`.

    sums, rows: what `read_parts` reads of the first PARTS, the number of parts that is read at a time. Parts are added
    in order, whatever the shapes and PARTS.
    """
    top = sums[0]
    for place in tl.static_range(1, PARTS):
        top = tl.maximum(top, sums[place])
    for first in tl.range(PARTS, parts, PARTS):
        for place in tl.static_range(PARTS):
            top = tl.maximum(top, tl.load(lse + at + (first + place), mask=first + place < parts, other=float("-inf")))
    top = tl.where(top == float("-inf"), 0.0, top)
    acc, total = tl.zeros_like(rows[0]), top * 0.0
    acc, total = add_parts(acc, total, sums, rows, top, PARTS)
    for first in tl.range(PARTS, parts, PARTS):
        sums, rows = read_parts(partial, lse, at, d, first, parts, D, PARTS)
        acc, total = add_parts(acc, total, sums, rows, top, PARTS)
    return acc * (1.0 / tl.where(total > 0, total, 1.0))


@triton.jit
def joined(partial, lse, at, d, parts, D: tl.constexpr, PARTS: tl.constexpr):
    """As `joined_from`, which see."""
    sums, rows = read_parts(partial, lse, at, d, 0, parts, D, PARTS)
    return joined_from(sums, rows, partial, lse, at, d, parts, D, PARTS)
