"""Reductions over a vocabulary: the largest element, the k best. A row is cut into parts, the last part to arrive
merges them; so there is one launch, and no order of arrival changes the result."""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.numbers import is_nan
from specc.backends.triton.kernels.region_math import follow


@triton.jit
def ordered_bits(x):
    """int32 in the order of float32 x: -0 equals 0, NaN is above all."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    bits = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return tl.where(is_nan(x), 0x7FFFFFFF, bits)


@triton.jit
def is_last(arrived, row, parts):
    """Whether all other parts of a row have arrived; the counter is 0 again then. What they stored can be read."""
    tl.debug_barrier()
    last = tl.atomic_add(arrived + row, 1, sem="acq_rel") == parts - 1
    if last:
        tl.store(arrived + row, 0)
    return last


@triton.jit
def half_keys(x, INFINITY: tl.constexpr):
    """int32 in the order of (x, -place) of 16-bit floats: the value's bits above, its place from the end below.

    INFINITY: the bits of the type's infinity; what is above it is NaN, and comes first.
    """
    bits = x.to(tl.int16, bitcast=True).to(tl.int32)
    bits = tl.where(bits < 0, bits ^ 0x7FFF, bits)
    bits = tl.where(bits == -1, 0, bits)  # -0
    bits = tl.where((bits > INFINITY) | (bits < -INFINITY - 1), 0x7FFF, bits)
    return (bits << 16) | (0xFFFF - tl.arange(0, x.shape[0]))


@triton.jit
def part_key(x, part, row, V, stride, SPAN: tl.constexpr):
    """The best of a part of a row of x as one int64, whose order is that of (value, -column)."""
    column = part * SPAN + tl.arange(0, SPAN)
    values = tl.load(x + row.to(tl.int64) * stride + column, mask=column < V, other=float("-inf"))
    if x.dtype.element_ty.primitive_bitwidth == 16 and SPAN <= 65536:
        # What is behind the last column is -inf too, and comes after those of the row.
        if x.dtype.element_ty == tl.bfloat16:
            key = tl.max(half_keys(values, 0x7F80), 0)
            bits = key >> 16
            best = tl.where(bits < 0, (bits << 16) | 0xFFFF, tl.where(bits == 0x7FFF, 0x7FFFFFFF, bits << 16))
        else:
            key = tl.max(half_keys(values, 0x7C00), 0)
            bits = key >> 16
            bits = tl.where(bits < 0, bits ^ 0x7FFF, bits).to(tl.int16)
            best = ordered_bits(bits.to(tl.float16, bitcast=True).to(tl.float32))
        at = 0xFFFF - (key & 0xFFFF)
    else:
        keys = tl.where(column < V, ordered_bits(values.to(tl.float32)), -2147483648)
        best, at = tl.max(keys, 0, return_indices=True)
    return (best.to(tl.int64) << 32) + (0x7FFFFFFF - part * SPAN - at)


@triton.jit
def row_argmax(x, out, partial, arrived, V, parts, stride, SPAN: tl.constexpr, PARTS: tl.constexpr):
    """out [R] int64: the first index of the maximum of x [R,V]; NaN counts as the maximum. Grid (parts, R).

    `partial` int64 [R,parts]: room for the parts' best.
    """
    follow()
    part, row = tl.program_id(0), tl.program_id(1)
    key = part_key(x, part, row, V, stride, SPAN)
    if PARTS > 1:
        tl.store(partial + row * parts + part, key)
        if is_last(arrived, row, parts):
            place = tl.arange(0, PARTS)
            each = tl.load(partial + row * parts + place, mask=place < parts, other=-(2**63), cache_modifier=".cg")
            tl.store(out + row, 0x7FFFFFFF - (tl.max(each, 0) & 0xFFFFFFFF))
    else:
        tl.store(out + row, 0x7FFFFFFF - (key & 0xFFFFFFFF))


@triton.jit
def part_argmax(x, out, V, stride, N: tl.constexpr, SPAN: tl.constexpr):
    """out int64 [B,parts,N]: what `row_argmax` has of each part of the rows of x [B*N,V]. Grid (parts, B*N)."""
    follow()
    part, row = tl.program_id(0), tl.program_id(1)
    at = (row // N * tl.num_programs(0) + part) * N + row % N
    tl.store(out + at, part_key(x, part, row, V, stride, SPAN))


@triton.jit
def widened(x):
    """In float32, or float64 where it is that."""
    if x.dtype == tl.float64:
        return x
    else:
        return x.to(tl.float32)


@triton.jit
def score_keys(x, LOW: tl.constexpr):
    """What scores are ordered by: NaN and -inf come last, and are equal (`ordered_scores`); -inf is left for places
    that are no candidates. `LOW` is the dtype's smallest finite number."""
    return tl.where(is_nan(x) | (x < LOW), LOW, x)


@triton.jit
def pick_best(keys, K, KP: tl.constexpr):
    """Places [KP] of the K best by (key descending, place ascending)."""
    place = tl.arange(0, keys.shape[0])
    turn = tl.arange(0, KP)
    found = tl.zeros([KP], tl.int32)
    for number in tl.range(0, K):
        _, at = tl.max(keys, 0, return_indices=True)
        found = tl.where(turn == number, at, found)
        keys = tl.where(place == at, float("-inf"), keys)
    return found


@triton.jit
def store_best(scores, values, indices, index, row, K, KP: tl.constexpr, largest, total, LAW: tl.constexpr):
    """Writes the result of a row: its K best `index` [KP] and their scores, or with LAW their log-probabilities."""
    turn = tl.arange(0, KP)
    keep = turn < K
    x = widened(tl.load(scores + index, mask=keep, other=0.0))
    if LAW:
        # What a NaN, an infinity or nothing finite in the row leaves is a law of NaN: first come, first served.
        broken = is_nan(total) | (tl.abs(largest) == float("inf"))
        index = tl.where(broken, turn, index)
        x = x - largest - tl.log(total)
        x = tl.where(broken, float("-inf"), tl.minimum(x, 0.0))
    tl.store(values + row.to(tl.int64) * K + turn, tl.where(is_nan(x), float("-inf"), x), mask=keep)
    tl.store(indices + row.to(tl.int64) * K + turn, index.to(tl.int64), mask=keep)


@triton.jit
def exponentials(x, inside):
    """(largest, sum of exp(x - largest)) of a part of a row; a part of nothing but -inf has the sum 0."""
    largest = tl.max(tl.where(inside & ~is_nan(x), x, float("-inf")), 0)
    base = tl.where(largest == float("-inf"), 0.0, largest)
    return largest, tl.sum(tl.where(inside, tl.exp(x - base), 0.0), 0)


@triton.jit(do_not_specialize=["K"])
def row_topk(scores, values, indices, partial, sums, arrived, V, parts, stride, K, KP: tl.constexpr,
             SPAN: tl.constexpr, PARTS: tl.constexpr, PLACES: tl.constexpr, LOW: tl.constexpr,
             LAW: tl.constexpr):  # fmt: skip
    """The K best of each row of scores [R,V] by (score descending, index ascending): values, indices int64 [R,K].

    With LAW the scores are logits and the values min(log_softmax, 0) in float32. Grid (parts, R). `partial` int32
    [R,parts,K]: a part's best; `sums` float32 [R,2,parts]: its maximum and sum of exponentials (LAW).
    """
    follow()
    part, row = tl.program_id(0), tl.program_id(1)
    scores += row.to(tl.int64) * stride
    column = part * SPAN + tl.arange(0, SPAN)
    x = widened(tl.load(scores + column, mask=column < V, other=float("-inf")))
    largest, total = 0.0, 1.0
    if LAW:
        largest, total = exponentials(x, column < V)
    found = part * SPAN + pick_best(tl.where(column < V, score_keys(x, LOW), float("-inf")), K, KP)
    if PARTS > 1:
        turn, place = tl.arange(0, KP), tl.arange(0, PLACES)
        partial += row.to(tl.int64) * parts * K
        tl.store(partial + part * K + turn, tl.where(found < V, found, -1), mask=turn < K)
        if LAW:
            sums += row * parts * 2
            tl.store(sums + part, largest)
            tl.store(sums + parts + part, total)
        if is_last(arrived, row, parts):
            if LAW:
                each = tl.arange(0, PARTS)
                maxima = tl.load(sums + each, mask=each < parts, other=float("-inf"), cache_modifier=".cg")
                totals = tl.load(sums + parts + each, mask=each < parts, other=0.0, cache_modifier=".cg")
                largest = tl.max(maxima, 0)
                scale = tl.where(maxima == float("-inf"), 0.0, tl.exp(maxima - largest))
                total = tl.sum(tl.where(is_nan(totals), totals, totals * scale), 0)
            index = tl.load(partial + place, mask=place < parts * K, other=-1, cache_modifier=".cg")
            candidate = widened(tl.load(scores + index, mask=index >= 0, other=0.0))
            keys = tl.where(index >= 0, score_keys(candidate, LOW), float("-inf"))
            best = tl.gather(index, pick_best(keys, K, KP), 0)
            store_best(scores, values, indices, best, row, K, KP, largest, total, LAW)
    else:
        store_best(scores, values, indices, found, row, K, KP, largest, total, LAW)
