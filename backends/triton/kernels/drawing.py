"""Children drawn without replacement from a drafter's law, one launch a level, and those laws by node in another.

Which tokens are drawn depends on sums over the vocabulary in no way, so that the programs of a row need not wait for
one another: each finds the best of its part, the last one merges them as they come (see `sampling` for how it knows).
"""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.region_math import follow
from specc.backends.triton.kernels.sampling import (
    GOLDEN,
    collect_word,
    counter_hash,
    first_tag,
    leave_word,
    mix,
    shifted,
    unit_interval,
)
from specc.backends.triton.kernels.vocab import exponentials, score_keys


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
def leave_drawn(boxes, tag, part, best, at, x, largest, total, parts, K: tl.constexpr, KP: tl.constexpr):
    """Leaves the K best of a part (their keys float64, columns and logits by temperature [KP]) and its sums."""
    turn = tl.arange(0, KP)
    bits, place, all_places = best.to(tl.int64, bitcast=True), part * K + turn, parts * K
    leave_word(boxes + place, shifted(bits, 32), tag, turn < K)
    leave_word(boxes + all_places + place, bits, tag, turn < K)
    leave_word(boxes + 2 * all_places + place, at.to(tl.int64), tag, turn < K)
    leave_word(boxes + 3 * all_places + place, x.to(tl.int32, bitcast=True).to(tl.int64), tag, turn < K)
    sums = boxes + 4 * all_places + part
    leave_word(sums, largest.to(tl.int32, bitcast=True).to(tl.int64), tag, None)
    leave_word(sums + parts, total.to(tl.int32, bitcast=True).to(tl.int64), tag, None)


@triton.jit
def all_drawn(boxes, tag, parts, K: tl.constexpr, PARTS: tl.constexpr, ALL: tl.constexpr):
    """What `leave_drawn` has left of all parts, once it is there: (keys, columns, logits) [ALL], (largest, sum of
    exp(x - largest)) of the row."""
    place, each, all_places = tl.arange(0, ALL), tl.arange(0, PARTS), parts * K
    known, part = place < all_places, each < parts
    high, low, at = tl.zeros([ALL], tl.int32), tl.zeros([ALL], tl.int32), tl.zeros([ALL], tl.int32)
    x, maxima, totals = high, tl.zeros([PARTS], tl.int32), tl.zeros([PARTS], tl.int32)
    waiting = tl.full([], 1, tl.int32)
    while waiting > 0:
        high, late = collect_word(boxes + place, tag, known)
        low, late_2 = collect_word(boxes + all_places + place, tag, known)
        at, late_3 = collect_word(boxes + 2 * all_places + place, tag, known)
        x, late_4 = collect_word(boxes + 3 * all_places + place, tag, known)
        maxima, late_5 = collect_word(boxes + 4 * all_places + each, tag, part)
        totals, late_6 = collect_word(boxes + 4 * all_places + parts + each, tag, part)
        waiting = tl.max(late | late_2 | late_3 | late_4, 0) | tl.max(late_5 | late_6, 0)
    keys = ((high.to(tl.int64) << 32) | (low.to(tl.int64) & 0xFFFFFFFF)).to(tl.float64, bitcast=True)
    keys, x = tl.where(known, keys, float("-inf")), x.to(tl.float32, bitcast=True)
    maxima = tl.where(part, maxima.to(tl.float32, bitcast=True), float("-inf"))
    totals = tl.where(part, totals.to(tl.float32, bitcast=True), 0.0)
    largest = tl.max(maxima, 0)
    scale = tl.where(maxima == float("-inf"), 0.0, tl.exp(maxima - largest))
    # A part that holds a NaN has no other sum, and neither has a row.
    return keys, at, x, largest, tl.sum(tl.where(totals <= float("inf"), totals * scale, totals), 0)


@triton.jit
def store_drawn(token, log_prob, sums, row, index, x, largest, total, K: tl.constexpr, KP: tl.constexpr):
    """Writes what was drawn from a row: its K tokens `index` [KP], logits by temperature x [KP], and the sums that tell
    its law."""
    turn = tl.arange(0, KP)
    tl.store(token + row.to(tl.int64) * K + turn, index.to(tl.int64), mask=turn < K)
    tl.store(log_prob + row.to(tl.int64) * K + turn, x - largest - tl.log(total), mask=turn < K)
    tl.store(sums + 2 * row, largest)
    tl.store(sums + 2 * row + 1, total)


@triton.jit
def embed_drawn(table, embedded, token, row, rows, H, K: tl.constexpr, KP: tl.constexpr, PLACES: tl.constexpr,
                PICKED: tl.constexpr, HB: tl.constexpr):  # fmt: skip
    """Writes embedded [B,PICKED,H]: the rows of table [V,H] of a row's tokens [KP]; four bits of PLACES for each of the
    tokens of a batch row: its place in `embedded` + 1, or 0."""
    turn, column = tl.arange(0, KP), tl.arange(0, HB)
    at = ((tl.full([KP], PLACES, tl.int64) >> ((row % rows * K + turn) * 4).to(tl.int64)) & 15).to(tl.int32)
    mask = ((turn < K) & (at > 0))[:, None] & (column < H)[None, :]
    x = tl.load(table + token.to(tl.int64)[:, None] * H + column[None, :], mask=mask, other=0.0)
    at = (row // rows).to(tl.int64) * PICKED + at - 1
    tl.store(embedded + at[:, None] * H + column[None, :], x, mask=mask)


@triton.jit
def draw_rows(logits, rng, position, draw, token, log_prob, sums, table, embedded, boxes, turns, V, parts, rows,
              draw_stride, temperature, H, K: tl.constexpr, KP: tl.constexpr, SPAN: tl.constexpr, PARTS: tl.constexpr,
              ALL: tl.constexpr, LOW: tl.constexpr, PLACES: tl.constexpr, PICKED: tl.constexpr,
              HB: tl.constexpr):  # fmt: skip
    """See `specc.ir.ops.draw_children`; logits [B,M,V], draw [B or 1,M] by `draw_stride`. Grid (parts, B M).

    boxes int64 [B M,4 K + 2,parts], turns int32 [B M]: see `sampling`. With PICKED also `draw_embedded`.
    """
    follow()
    part, row = tl.program_id(0), tl.program_id(1)
    b = row // rows
    column = part * SPAN + tl.arange(0, SPAN)
    logits += row.to(tl.int64) * V
    x = tl.load(logits + column, mask=column < V, other=float("-inf")).to(tl.float32)
    tag = first_tag(turns, row, PARTS)
    base = counter_hash(tl.load(rng + b), tl.load(position + row), tl.load(draw + b * draw_stride + row % rows))
    x = tl.math.div_rn(x, temperature)
    noise = -tl.log(-tl.log(unit_interval(mix(base + (column.to(tl.int64) + 1) * GOLDEN))))
    noisy = tl.where(column < V, score_keys(x.to(tl.float64) + noise, LOW), float("-inf"))
    best, at = best_keys(noisy, K, KP)
    largest, total = exponentials(x, column < V)
    own = tl.gather(x, at, 0)
    at += part * SPAN
    if PARTS > 1:
        boxes += row.to(tl.int64) * (4 * K + 2) * parts
        leave_drawn(boxes, tag, part, best, at, own, largest, total, parts, K, KP)
        if part == parts - 1:
            keys, columns, logit, largest, total = all_drawn(boxes, tag, parts, K, PARTS, ALL)
            tl.store(turns + row, tag)
            _, place = best_keys(keys, K, KP)
            at, own = tl.gather(columns, place, 0), tl.gather(logit, place, 0)
            if PICKED:
                embed_drawn(table, embedded, at, row, rows, H, K, KP, PLACES, PICKED, HB)
            store_drawn(token, log_prob, sums, row, at, own, largest, total, K, KP)
    else:
        if PICKED:
            embed_drawn(table, embedded, at, row, rows, H, K, KP, PLACES, PICKED, HB)
        store_drawn(token, log_prob, sums, row, at, own, largest, total, K, KP)


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
