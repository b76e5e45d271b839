"""Attention of a few new tokens over a long committed prefix, split over the prefix, and over the other new tokens.

The heads that share a KV head are packed into the rows of one product: packed row r is token r // G, head r % G of the
group. A program takes one tile of packed rows and one part of the columns [0, length + R): the committed rows, which
every token sees, without a mask, then the tail. Parts are joined by `attention_merge` (log-sum-exp; Flash-Decoding).
"""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from specc.backends.triton.kernels.attention_parts import joined, leave_part, seen_parts
from specc.backends.triton.kernels.delta_rows import prefetch
from specc.backends.triton.kernels.dot import dot_rows, rounded
from specc.backends.triton.kernels.pages import page_of, pages_at, row_of
from specc.backends.triton.kernels.region_math import follow


@triton.jit
def cache_rows(cache, table, first, C, stride, BN: tl.constexpr, PAGE: tl.constexpr):
    """Pointers [BN] to the rows of columns first + [0, BN). PAGE > 0: through the block table, PAGE rows a block."""
    inside = tl.arange(0, BN)
    if PAGE == 0:
        return cache + tl.cast(first, tl.int64) * stride + inside * stride
    elif PAGE >= BN:
        page = page_of(table, first, C, PAGE).to(tl.int64)
        return cache + (page * PAGE + first % PAGE) * stride + inside * stride
    else:
        page = page_of(table, first + inside, C, PAGE).to(tl.int64)
        return cache + (page * PAGE + (first + inside) % PAGE) * stride


@triton.jit
def tail_rows(cache, new, table, column, committed, C, stride, stride_new, SEPARATE: tl.constexpr, PAGE: tl.constexpr):
    """Pointers to the rows of `column` [BN], committed or new; beyond the capacity the last row is repeated."""
    if SEPARATE:
        old = cache + tl.minimum(column, C - 1).to(tl.int64) * stride
        return tl.where(column < committed, old, new + tl.maximum(column - committed, 0).to(tl.int64) * stride_new)
    else:
        return cache + row_of(table, tl.minimum(column, C - 1), C, PAGE) * stride


@triton.jit
def softmax_step(q, k, v, acc, top, total, scale, visible, like, MASKED: tl.constexpr):
    """(acc, top, total) after the columns k, v [BN,DP]; `scale` includes log2(e) (online softmax)."""
    scores = dot_rows(q, tl.trans(k), tl.zeros([q.shape[0], k.shape[0]], tl.float32))
    if MASKED:
        scores = tl.where(visible, scores, float("-inf"))
    now = tl.maximum(top, tl.max(scores, 1) * scale)
    shift = now
    if MASKED:
        # A row may have seen nothing yet: -inf - -inf is no number.
        shift = tl.where(now == float("-inf"), 0.0, now)
    weight = tl.exp2(scores * scale - shift[:, None])
    shrink = tl.exp2(top - shift)
    total = total * shrink + tl.sum(weight, 1)
    acc = dot_rows(rounded(weight, like), v, acc * shrink[:, None])
    return acc, now, total


@triton.jit
def tail_visible(mask, column, token, position, committed, M, R, offset, window, stride_mm, stride_mr,
                 CAUSAL: tl.constexpr, WINDOW: tl.constexpr):  # fmt: skip
    """bool [BM,BN]: which columns the tokens [BM] see: committed ones (in the window), new ones by mask or order."""
    node = (column - committed)[None, :]
    row = token[:, None]
    before = node < 0
    if WINDOW:
        before = before & (column[None, :] > (position - window)[:, None])
    if CAUSAL:
        new = node <= row + offset
        if WINDOW:
            new = new & (node > row + offset - window)
    else:
        inside = (row < M) & (node >= 0) & (node < R)
        new = tl.load(mask + row * stride_mm + node * stride_mr, mask=inside, other=0) != 0
    return before | (new & (node >= 0) & (node < R))


@triton.jit
def columns_of(committed, low, tile, M, R, C, offset, G: tl.constexpr, BM: tl.constexpr, CAUSAL: tl.constexpr,
               WINDOW: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """(first, clear, end): the tile's columns; those in [first, clear) are seen by all of its rows.

    BLOCK: of the new rows too. Only prompts gain by it; and few tokens get the bits of `attention_step`.
    """
    clear, end = committed, committed + R
    if CAUSAL:
        last = tl.minimum((tile * BM + BM - 1) // G, M - 1)
        end = committed + tl.minimum(offset + last + 1, R)
        if BLOCK:
            clear = tl.minimum(committed + tl.minimum(offset + tile * BM // G + 1, R), C)
    first = tl.zeros_like(committed)
    if WINDOW:
        first = tl.minimum(tl.maximum(low, 0), committed)
        clear = first
    return first, clear, end


@triton.jit
def whole_tile(tiles, rows, table, b, head, first, C, stride, D: tl.constexpr, DP: tl.constexpr, BN: tl.constexpr,
               PAGE: tl.constexpr, TMA: tl.constexpr, STAGED: tl.constexpr):  # fmt: skip
    """[BN,DP] of a cache at columns first + [0, BN), all committed; `rows` points to row 0 of the head.

    TMA: rows lie at multiples of 16 bytes; tiles of several pages are read without bulk copies then, too.
    """
    if TMA and PAGE > 0 and PAGE < BN:
        return tl.load(pages_at(rows, table, first, C, stride, DP, BN, PAGE, STAGED))
    elif TMA:
        row = page_of(table, first, C, PAGE) * PAGE + first % PAGE if PAGE > 0 else b * C + first
        return tiles.load([row, head * D])
    else:
        d = tl.arange(0, DP)
        place = cache_rows(rows, table, first, C, stride, BN, PAGE)[:, None] + d[None, :]
        if D == DP:
            return tl.load(place)
        else:
            return tl.load(place, mask=(d < D)[None, :], other=0.0)


@triton.jit
def part_of(part, first, end, S, BN: tl.constexpr, LEAST: tl.constexpr):
    """[start, stop): the steps of BN columns that are a part of [first, end); empty where there is nothing left."""
    # The tail's steps take longer: it counts one more.
    start, count = first // BN, tl.cdiv(end, BN) - first // BN + 1
    parts = tl.minimum(S, tl.cdiv(count, LEAST))
    return start + count * tl.minimum(part, parts) // parts, start + count * tl.minimum(part + 1, parts) // parts


@triton.jit
def prefetch_part(k_head, v_head, table, length, part, S, R, C, stride_kr, stride_vr, DP: tl.constexpr,
                  BN: tl.constexpr, LEAST: tl.constexpr, EARLY: tl.constexpr, PAGE: tl.constexpr):  # fmt: skip
    """Asks for the first EARLY steps of a part's committed rows while the kernel in front still runs.

    Nothing depends on what comes: the length may be an old one, rows may still be written. It must not stay in the L1.
    """
    committed = tl.minimum(tl.maximum(tl.load(length, cache_modifier=".cg").to(tl.int32), 1), C)
    start, _ = part_of(part, tl.zeros_like(committed), committed + R, S, BN, LEAST)
    row = row_of(table, tl.minimum(start * BN + tl.arange(0, EARLY * BN), committed - 1), C, PAGE)[:, None]
    line = (tl.arange(0, max(DP // 64, 1)) * 64)[None, :]
    prefetch(k_head + row * stride_kr + line)
    prefetch(v_head + row * stride_vr + line)


@triton.jit(do_not_specialize=["tiles", "M", "R", "C", "offset", "window", "HKV", "S"])
def attention_split(
    q, k_cache, v_cache, k_tiles, v_tiles, k_new, v_new, table, length, mask, positions, out, partial, lse,
    scale, tiles, M, R, C, offset, window, HKV, S,
    stride_qb, stride_qm, stride_qh, stride_kb, stride_kr, stride_kh, stride_vb, stride_vr, stride_vh,
    stride_nb, stride_nr, stride_nh, stride_mb, stride_mm, stride_mr, stride_tb,
    G: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BT: tl.constexpr,
    AHEAD: tl.constexpr, LEAST: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, SEPARATE: tl.constexpr,
    PAGE: tl.constexpr, TMA: tl.constexpr, EARLY: tl.constexpr, SPLIT: tl.constexpr, BLOCK: tl.constexpr,
    STAGED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One tile of packed rows over one of S parts of the columns, at least LEAST tiles of BN; the tail by BT.

    Grid (tiles * HKV, S, B). Of several parts partial [B,HKV,tiles*BM,S,D] gets o, lse [B,HKV,tiles*BM,S] log2 of the
    sum of weights (-inf: nothing seen); out [B,M,HKV*G,D]; SPLIT: see `leave_part`. Strides are in
    elements. TMA: k_tiles, v_tiles are descriptors of the caches as [rows,HKV*D] with boxes of [BN,D].
    """
    tile, head = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    part, b = tl.program_id(1), tl.program_id(2)
    wide = b.to(tl.int64)
    k_head, v_head = k_cache + wide * stride_kb + head * stride_kh, v_cache + wide * stride_vb + head * stride_vh
    if PDL:
        if EARLY > 0 and not WINDOW and PAGE == 0:
            prefetch_part(k_head, v_head, table, length + b, part, S, R, C, stride_kr, stride_vr, DP, BN, LEAST, EARLY,
                          PAGE)  # fmt: skip
        follow()
    packed = tile * BM + tl.arange(0, BM)
    token, member = packed // G, packed % G
    d = tl.arange(0, DP)
    inner = d < D
    row_table, committed = table + wide * stride_tb, tl.load(length + b).to(tl.int32)
    q_rows = q + wide * stride_qb + token * stride_qm + (head * G + member) * stride_qh
    x = tl.load(q_rows[:, None] + d[None, :], mask=(token < M)[:, None] & inner[None, :], other=0.0)
    position, low = token, 0
    if WINDOW:
        position = tl.load(positions + wide * M + tl.minimum(token, M - 1)).to(tl.int32)
        low = tl.min(position, 0) - window + 1
    first, clear, end = columns_of(committed, low, tile, M, R, C, offset, G, BM, CAUSAL, WINDOW, BLOCK)
    full = clear // BN
    start, stop = part_of(part, first, end, S, BN, LEAST)
    top = tl.full([BM], float("-inf"), tl.float32)
    total, acc = tl.zeros([BM], tl.float32), tl.zeros([BM, DP], tl.float32)
    if not WINDOW:
        for step in tl.range(start, tl.minimum(stop, full)):
            k = whole_tile(k_tiles, k_head, row_table, b, head, step * BN, C, stride_kr, D, DP, BN, PAGE, TMA, STAGED)
            v = whole_tile(v_tiles, v_head, row_table, b, head, step * BN, C, stride_vr, D, DP, BN, PAGE, TMA, STAGED)
            acc, top, total = softmax_step(x, k, v, acc, top, total, scale, d, q, False)
        start = tl.maximum(start, full)
    k_fresh, v_fresh = k_new + wide * stride_nb + head * stride_nh, v_new + wide * stride_nb + head * stride_nh
    behind = tl.minimum(stop * BN, end)
    for here in tl.range(start * BN, behind, BT, num_stages=AHEAD):
        column = here + tl.arange(0, BT)
        known = column < behind
        k_rows = tail_rows(k_head, k_fresh, row_table, column, committed, C, stride_kr, stride_nr, SEPARATE, PAGE)
        v_rows = tail_rows(v_head, v_fresh, row_table, column, committed, C, stride_vr, stride_nr, SEPARATE, PAGE)
        k = tl.load(k_rows[:, None] + d[None, :], mask=known[:, None] & inner[None, :], other=0.0)
        v = tl.load(v_rows[:, None] + d[None, :], mask=known[:, None] & inner[None, :], other=0.0)
        visible = tail_visible(mask + wide * stride_mb, column, token, position, committed, M, R, offset, window,
                               stride_mm, stride_mr, CAUSAL, WINDOW) & known[None, :]  # fmt: skip
        acc, top, total = softmax_step(x, k, v, acc, top, total, scale, visible, q, True)
    leave_part(acc, total, top, partial, lse, out, wide, head, tile, part, M, HKV, S, tiles, G, D, BM, SPLIT)


@triton.jit(do_not_specialize=["tiles", "M", "R", "HKV", "S"])
def attention_merge(partial, lse, out, length, tiles, M, R, HKV, S, G: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
                    BM: tl.constexpr, STEP: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, LEAD: tl.constexpr,
                    PDL: tl.constexpr):  # fmt: skip
    """out [B,M,HKV*G,D] from S parts, each of STEP of length[b] + R columns at least, PARTS of them at a time; grid
    (blocks of ROWS packed rows, HKV, B). LEAD: what comes next is a product, which reads nothing but its weight before
    its own wait, and may start at once.

    Few warps: programs fit beside those of the kernel in front and wait there.
    """
    packed, head, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    parts, d = seen_parts(length + b, R, S, STEP), tl.arange(0, DP)
    if ROWS > 1:
        packed, d = packed * ROWS + tl.arange(0, ROWS)[:, None], d[None, :]
    place = tl.minimum(packed, M * G - 1)
    at = ((b.to(tl.int64) * HKV + head) * tiles * BM + place) * S
    row = (b.to(tl.int64) * M + place // G) * HKV * G + head * G + place % G
    if PDL:  # the length is read before: the kernel in front is the attention, which does not write it
        if LEAD:
            gdc_launch_dependents()
            gdc_wait()
        else:
            follow()
    inside = d if D == DP else tl.minimum(d, D - 1)  # a minimum would be read one by one
    result = joined(partial, lse, at, inside, parts, D, PARTS)
    tl.store(out + row * D + d, rounded(result, out), mask=(packed < M * G) & (d < D))
