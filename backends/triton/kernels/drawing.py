"""Children drawn without replacement from a drafter's law, one launch a level, and those laws by node in another.

Which tokens are drawn depends on sums over the vocabulary in no way, so that the programs of a row need not wait for
one another: each finds the best of its part, the last one to arrive merges them.
"""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.region_math import follow
from specc.backends.triton.kernels.sampling import GOLDEN, counter_hash, mix, unit_interval
from specc.backends.triton.kernels.vocab import exponentials, is_last, score_keys


@triton.jit
def best_keys(keys, K: tl.constexpr, KP: tl.constexpr):
    """(keys, places) [KP] of the K best by (key descending, place ascending); -inf and 0 behind them."""
    place, turn = tl.arange(0, keys.shape[0]), tl.arange(0, KP)
    found, best = tl.zeros([KP], tl.int32), tl.full([KP], float("-inf"), keys.dtype)
    for number in tl.static_range(K):
        key, at = tl.max(keys, 0, return_indices=True)
        found, best = tl.where(turn == number, at, found), tl.where(turn == number, key, best)
        if number + 1 < K:
            keys = tl.where(place == at, float("-inf"), keys)
    return best, found


@triton.jit
def all_sums(sums, parts, PARTS: tl.constexpr):
    """(largest, sum of exp(x - largest)) of a row, from those of its parts, float32 [2,parts]."""
    each = tl.arange(0, PARTS)
    maxima = tl.load(sums + each, mask=each < parts, other=float("-inf"), cache_modifier=".cg")
    totals = tl.load(sums + parts + each, mask=each < parts, other=0.0, cache_modifier=".cg")
    largest = tl.max(maxima, 0)
    scale = tl.where(maxima == float("-inf"), 0.0, tl.exp(maxima - largest))
    # A part that holds a NaN has no other sum, and neither has a row.
    return largest, tl.sum(tl.where(totals <= float("inf"), totals * scale, totals), 0)


@triton.jit
def store_drawn(logits, token, log_prob, sums, row, index, largest, total, temperature, K: tl.constexpr,
                KP: tl.constexpr):  # fmt: skip
    """Writes what was drawn from a row: its K tokens `index` [KP], and the sums that tell its law."""
    turn = tl.arange(0, KP)
    x = tl.math.div_rn(tl.load(logits + index, mask=turn < K, other=0.0).to(tl.float32), temperature)
    tl.store(token + row.to(tl.int64) * K + turn, index.to(tl.int64), mask=turn < K)
    tl.store(log_prob + row.to(tl.int64) * K + turn, x - largest - tl.log(total), mask=turn < K)
    tl.store(sums + 2 * row, largest)
    tl.store(sums + 2 * row + 1, total)


@triton.jit
def draw_rows(logits, rng, position, draw, token, log_prob, sums, partial_key, partial_at, partial_sums, arrived, V,
              parts, rows, draw_stride, temperature, K: tl.constexpr, KP: tl.constexpr, SPAN: tl.constexpr,
              PARTS: tl.constexpr, PLACES: tl.constexpr, LOW: tl.constexpr):  # fmt: skip
    """See `specc.ir.ops.draw_children`; logits [B,M,V], draw [B or 1,M] by `draw_stride`. Grid (parts, B M).

    partial_key float64, partial_at int32 [B,M,parts,K], partial_sums float32 [B,M,2,parts].
    """
    follow()
    part, row = tl.program_id(0), tl.program_id(1)
    b = row // rows
    column = part * SPAN + tl.arange(0, SPAN)
    logits += row.to(tl.int64) * V
    x = tl.load(logits + column, mask=column < V, other=float("-inf")).to(tl.float32)
    base = counter_hash(tl.load(rng + b), tl.load(position + row), tl.load(draw + b * draw_stride + row % rows))
    x = tl.math.div_rn(x, temperature)
    largest, total = exponentials(x, column < V)
    noise = -tl.log(-tl.log(unit_interval(mix(base + (column.to(tl.int64) + 1) * GOLDEN))))
    noisy = tl.where(column < V, score_keys(x.to(tl.float64) + noise, LOW), float("-inf"))
    best, at = best_keys(noisy, K, KP)
    at += part * SPAN
    if PARTS > 1:
        turn, place = tl.arange(0, KP), tl.arange(0, PLACES)
        partial_key += row * parts * K
        partial_at += row * parts * K
        partial_sums += row * parts * 2
        tl.store(partial_key + part * K + turn, best, mask=turn < K)
        tl.store(partial_at + part * K + turn, at, mask=turn < K)
        tl.store(partial_sums + part, largest)
        tl.store(partial_sums + parts + part, total)
        if is_last(arrived, row, parts):
            largest, total = all_sums(partial_sums, parts, PARTS)
            keys = tl.load(partial_key + place, mask=place < parts * K, other=float("-inf"), cache_modifier=".cg")
            index = tl.load(partial_at + place, mask=place < parts * K, other=0, cache_modifier=".cg")
            _, at = best_keys(keys, K, KP)
            at = tl.gather(index, at, 0)
            store_drawn(logits, token, log_prob, sums, row, at, largest, total, temperature, K, KP)
    else:
        store_drawn(logits, token, log_prob, sums, row, at, largest, total, temperature, K, KP)


@triton.jit
def level_rows(raw, largest, total, logits, sums, row, first, rows, b, column, inside, V):
    """A level's row instead of what there is so far, if the row is the level's: (logits, largest, total)."""
    here = (row >= first) & (row < first + rows)
    at = b * rows + tl.where(here, row - first, 0)
    x = tl.load(logits + at.to(tl.int64) * V + column, mask=inside & here, other=0.0).to(tl.float32)
    largest = tl.where(here, tl.load(sums + 2 * at), largest)
    return tl.where(here, x, raw), largest, tl.where(here, tl.load(sums + 2 * at + 1), total)


@triton.jit
def law_of_nodes(logits, logits_2, logits_3, logits_4, logits_5, logits_6, sums, sums_2, sums_3, sums_4, sums_5, sums_6,
                 rows, rows_2, rows_3, rows_4, rows_5, rows_6, place, out, V, temperature, LEVELS: tl.constexpr,
                 BLOCK: tl.constexpr):  # fmt: skip
    """See `specc.ir.ops.drawn_laws`: up to six levels of logits [B,rows,V], place int64 [B,N]. Grid (blocks, N, B)."""
    follow()
    node, b = tl.program_id(1), tl.program_id(2)
    at = b * tl.num_programs(1) + node
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = column < V
    row = tl.load(place + at).to(tl.int32)
    raw, largest, total = tl.zeros([BLOCK], tl.float32), tl.full([], float("inf"), tl.float32), 1.0
    raw, largest, total = level_rows(raw, largest, total, logits, sums, row, 0, rows, b, column, inside, V)
    first = rows
    if LEVELS > 1:
        raw, largest, total = level_rows(
            raw, largest, total, logits_2, sums_2, row, first, rows_2, b, column, inside, V
        )
        first += rows_2
    if LEVELS > 2:
        raw, largest, total = level_rows(
            raw, largest, total, logits_3, sums_3, row, first, rows_3, b, column, inside, V
        )
        first += rows_3
    if LEVELS > 3:
        raw, largest, total = level_rows(
            raw, largest, total, logits_4, sums_4, row, first, rows_4, b, column, inside, V
        )
        first += rows_4
    if LEVELS > 4:
        raw, largest, total = level_rows(
            raw, largest, total, logits_5, sums_5, row, first, rows_5, b, column, inside, V
        )
        first += rows_5
    if LEVELS > 5:
        raw, largest, total = level_rows(
            raw, largest, total, logits_6, sums_6, row, first, rows_6, b, column, inside, V
        )
    # A node without children: exp(0 - inf) is 0.
    law = tl.math.div_rn(tl.exp(tl.math.div_rn(raw, temperature) - largest), total)
    tl.store(out + at.to(tl.int64) * V + column, law, mask=inside)
