"""A layer's attention in one launch: rotary embeddings, new rows of the cache, and parts of the columns.

A program rotates its queries when it loads them. New keys are rotated by every program that looks at them, from the
projection itself: nobody reads from the cache what another program of the launch writes. The tile of the last rows
sees all new columns, each in one of its parts: its programs write them.
"""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.attention import part_of, prefetch_part, softmax_step, tail_visible, whole_tile
from specc.backends.triton.kernels.attention_inputs import rotated_rows
from specc.backends.triton.kernels.attention_parts import leave_part
from specc.backends.triton.kernels.pages import row_of
from specc.backends.triton.kernels.region_math import follow


@triton.jit
def new_columns(k_rows, v_rows, k_head, v_head, table, cos, sin, here, known, committed, kept, C, wide, M, written,
                stride_nm, stride_kr, stride_vr, D: tl.constexpr, DP: tl.constexpr, PAGE: tl.constexpr):  # fmt: skip
    """(k, v) [BT,DP] at columns `here` [BT]: committed rows from the caches, new ones rotated and, if `written`, kept.

    Beyond the capacity the last row is repeated; of the new rows only the first `kept` go into the cache.
    """
    d = tl.arange(0, DP)
    inner = (d < D)[None, :]
    row = tl.minimum(here, C - 1)
    node = row - committed
    fresh = known & (node >= 0) & (node < kept)
    source = tl.maximum(node, 0).to(tl.int64)
    old = (known & (fresh == 0))[:, None] & inner
    far = row_of(table, row, C, PAGE)
    k_at, v_at = (k_head + far * stride_kr)[:, None] + d[None, :], (v_head + far * stride_vr)[:, None] + d[None, :]
    k_new = rotated_rows(k_rows + source * stride_nm, wide * M + source, cos, sin, fresh, k_head, D, DP)
    v_new = tl.load((v_rows + source * stride_nm)[:, None] + d[None, :], mask=fresh[:, None] & inner, other=0.0)
    k = tl.where(fresh[:, None], k_new, tl.load(k_at, mask=old, other=0.0))
    v = tl.where(fresh[:, None], v_new, tl.load(v_at, mask=old, other=0.0))
    keep = (fresh & (here < C) & written)[:, None] & inner
    tl.store(k_at, k, mask=keep)
    tl.store(v_at, v, mask=keep)
    return k, v


@triton.jit(do_not_specialize=["tiles", "M", "C", "HKV", "S"])
def attention_step(
    q, k_new, v_new, cos, sin, k_cache, v_cache, k_tiles, v_tiles, table, length, count, mask, out, partial, lse,
    scale, tiles, M, C, HKV, S,
    stride_qb, stride_qm, stride_qh, stride_nb, stride_nm, stride_nh,
    stride_kb, stride_kr, stride_kh, stride_vb, stride_vr, stride_vh, stride_mb, stride_mm, stride_mr,
    G: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BT: tl.constexpr,
    AHEAD: tl.constexpr, LEAST: tl.constexpr, CAUSAL: tl.constexpr, COUNT: tl.constexpr, TMA: tl.constexpr,
    EARLY: tl.constexpr, SPLIT: tl.constexpr, PAGE: tl.constexpr, STAGED: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One tile of packed rows over one of S parts of the columns [0, length + M); see `attention_split`.

    q [B,M,HKV*G,D], k_new, v_new [B,M,HKV,D], not yet rotated; cos, sin [B,M,D/2]. Rows j < count[b] of the new ones
    (without COUNT: all) go to rows length[b] + j of the caches. Grid (tiles * HKV, B, S): parts that
    have nothing to see begin last, beside others that have. SPLIT: see
    `leave_part`. PAGE > 0: the caches are pools of pages of so many rows, named by table [B, C // PAGE].
    """
    tile, head = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    b, part = tl.program_id(1), tl.program_id(2)
    wide = b.to(tl.int64)
    k_head, v_head = k_cache + wide * stride_kb + head * stride_kh, v_cache + wide * stride_vb + head * stride_vh
    row_table = length if PAGE == 0 else table + wide * (C // PAGE)  # without pages it is not read
    if PDL:
        if EARLY > 0:
            prefetch_part(k_head, v_head, row_table, length + b, part, S, M, C, stride_kr, stride_vr, DP, BN, LEAST,
                          EARLY, PAGE)  # fmt: skip
        follow()
    packed = tile * BM + tl.arange(0, BM)
    token, committed = packed // G, tl.load(length + b).to(tl.int32)
    kept = M
    if COUNT:
        kept = tl.load(count + b).to(tl.int32)
    d = tl.arange(0, DP)  # all that does not depend on the length is asked for before it is needed
    q_rows = q + wide * stride_qb + token * stride_qm + (head * G + packed % G) * stride_qh
    x = rotated_rows(q_rows, wide * M + token, cos, sin, token < M, q, D, DP)
    end = committed + M
    if CAUSAL:
        end = committed + tl.minimum((tile * BM + BM - 1) // G, M - 1) + 1
    full = committed // BN
    start, stop = part_of(part, tl.zeros_like(committed), end, S, BN, LEAST)
    # What a pipelined loop only looks ahead to is then looked up in a line of the table that the step has read anyway.
    last = C if PAGE == 0 else tl.maximum(tl.minimum(stop * BN, committed), 1)
    top = tl.full([BM], float("-inf"), tl.float32)
    total, acc = tl.zeros([BM], tl.float32), tl.zeros([BM, DP], tl.float32)
    for step in tl.range(start, tl.minimum(stop, full)):
        k = whole_tile(k_tiles, k_head, row_table, b, head, step * BN, last, stride_kr, D, DP, BN, PAGE, TMA,
                       STAGED)  # fmt: skip
        v = whole_tile(v_tiles, v_head, row_table, b, head, step * BN, last, stride_vr, D, DP, BN, PAGE, TMA,
                       STAGED)  # fmt: skip
        acc, top, total = softmax_step(x, k, v, acc, top, total, scale, d, q, False)
    begin, behind = tl.maximum(start, full) * BN, tl.minimum(stop * BN, end)
    edge = tl.maximum(begin, committed // BT * BT)
    for here in tl.range(begin, tl.minimum(edge, behind), BT, num_stages=AHEAD):
        k = whole_tile(k_tiles, k_head, row_table, b, head, here, last, stride_kr, D, DP, BT, PAGE, False,
                       False)  # fmt: skip
        v = whole_tile(v_tiles, v_head, row_table, b, head, here, last, stride_vr, D, DP, BT, PAGE, False,
                       False)  # fmt: skip
        acc, top, total = softmax_step(x, k, v, acc, top, total, scale, d, q, False)
    k_rows, v_rows = k_new + wide * stride_nb + head * stride_nh, v_new + wide * stride_nb + head * stride_nh
    for here in tl.range(edge, behind, BT, num_stages=1):
        column = here + tl.arange(0, BT)
        known = column < behind
        k, v = new_columns(k_rows, v_rows, k_head, v_head, row_table, cos, sin, column, known, committed, kept, C, wide,
                           M, tile == tiles - 1, stride_nm, stride_kr, stride_vr, D, DP, PAGE)  # fmt: skip
        visible = tail_visible(mask + wide * stride_mb, column, token, token, committed, M, M, 0, 0, stride_mm,
                               stride_mr, CAUSAL, False) & known[None, :]  # fmt: skip
        acc, top, total = softmax_step(x, k, v, acc, top, total, scale, visible, q, True)
    leave_part(acc, total, top, partial, lse, out, wide, head, tile, part, M, HKV, S, tiles, G, D, BM, SPLIT)
