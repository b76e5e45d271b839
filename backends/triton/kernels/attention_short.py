"""Attention over short contexts: a program has one tile of columns and no loop, the new columns a part of their own.

As `attention_split`, of which most is what surrounds its loop where that has one step. Which rows a program reads does
not depend on the length, so that they need not wait for it.
"""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.attention_apart import leave, seen_of
from specc.backends.triton.kernels.delta_rows import prefetch
from specc.backends.triton.kernels.pages import row_of
from specc.backends.triton.kernels.region_math import follow


@triton.jit
def rows_at(rows, live, D: tl.constexpr, DP: tl.constexpr):
    """[N,DP] at pointers `rows` [N]; 0 where not `live` [N]."""
    d = tl.arange(0, DP)
    if D == DP:
        return tl.load(rows[:, None] + d[None, :], mask=live[:, None], other=0.0)
    else:
        return tl.load(rows[:, None] + d[None, :], mask=live[:, None] & (d < D)[None, :], other=0.0)


@triton.jit
def all_rows_at(rows, D: tl.constexpr, DP: tl.constexpr):
    """[N,DP] at pointers `rows` [N]."""
    d = tl.arange(0, DP)
    if D == DP:
        return tl.load(rows[:, None] + d[None, :])
    else:
        return tl.load(rows[:, None] + d[None, :], mask=(d < D)[None, :], other=0.0)


@triton.jit
def short_prefix(q_rows, k_head, v_head, table, length, live, first, C, scale, lse, target, like, stride_kr, stride_vr,
                 D: tl.constexpr, DP: tl.constexpr, BN: tl.constexpr, PAGE: tl.constexpr,
                 PDL: tl.constexpr):  # fmt: skip
    """The committed columns first + [0, BN). Their lines are asked for while the kernel in front still runs: nothing
    depends on what comes.

    A look at the length before, for programs with nothing to do to end early, costs more than what they read: 5.52
    instead of 4.94 us (64 nodes, 1,024 rows).
    """
    column = first + tl.arange(0, BN)
    row = tl.minimum(column, C - 1)
    far = row.to(tl.int64)
    if PDL:
        if PAGE == 0:
            line = (tl.arange(0, max(DP // 64, 1)) * 64)[None, :]
            prefetch((k_head + far * stride_kr)[:, None] + line)
            prefetch((v_head + far * stride_vr)[:, None] + line)
        follow()
    committed = tl.load(length, cache_modifier=".cg").to(tl.int32)
    known = column < committed
    if PAGE > 0:
        far = row_of(table, row, C, PAGE)
        k, v = rows_at(k_head + far * stride_kr, known, D, DP), rows_at(v_head + far * stride_vr, known, D, DP)
        x = rows_at(q_rows, live, D, DP)
    else:  # which rows are read does not depend on the length: they need not wait for it
        k, v = all_rows_at(k_head + far * stride_kr, D, DP), all_rows_at(v_head + far * stride_vr, D, DP)
        x = rows_at(q_rows, live, D, DP)
        v = tl.where(known[:, None], v, 0.0)  # what lies behind the new rows may be no number
    acc, top, total = seen_of(x, k, v, known[None, :], scale, like)
    leave(acc, top, total, lse, target, live, live[:, None] & (tl.arange(0, DP) < D)[None, :])


@triton.jit
def short_new(q_rows, k_rows, v_rows, table, length, mask, live, token, M, R, C, offset, scale, lse, target, like,
              stride_kr, stride_vr, stride_mm, stride_mr, D: tl.constexpr, DP: tl.constexpr, BT: tl.constexpr,
              CAUSAL: tl.constexpr, SEPARATE: tl.constexpr, PAGE: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """The R <= BT new columns, from the caches' rows behind the committed ones or (SEPARATE) from rows of their own."""
    n = tl.arange(0, BT)
    new = n < R
    if PDL:
        follow()
    if SEPARATE:
        row = n.to(tl.int64)
    else:
        committed = tl.load(length, cache_modifier=".cg").to(tl.int32)
        row = row_of(table, tl.minimum(committed + n, C - 1), C, PAGE)
    # All loads before the first use of one: a program goes no further than that until it is there.
    k, v = rows_at(k_rows + row * stride_kr, new, D, DP), rows_at(v_rows + row * stride_vr, new, D, DP)
    x = rows_at(q_rows, live, D, DP)
    if CAUSAL:
        visible = (n[None, :] <= token[:, None] + offset) & new[None, :]
    else:
        near = mask + tl.minimum(token, M - 1)[:, None] * stride_mm + n[None, :] * stride_mr
        visible = tl.load(near, mask=new[None, :], other=0) != 0
    acc, top, total = seen_of(x, k, v, visible, scale, like)
    leave(acc, top, total, lse, target, live, live[:, None] & (tl.arange(0, DP) < D)[None, :])


@triton.jit(do_not_specialize=["tiles", "M", "C", "offset", "HKV", "S"])
def attention_short(
    q, k_cache, v_cache, k_new, v_new, table, length, mask, partial, lse,
    scale, tiles, M, R, C, offset, HKV, S,
    stride_qb, stride_qm, stride_qh, stride_kb, stride_kr, stride_kh, stride_vb, stride_vr, stride_vh,
    stride_nb, stride_nr, stride_nh, stride_mb, stride_mm, stride_mr, stride_tb,
    G: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BT: tl.constexpr,
    CAUSAL: tl.constexpr, SEPARATE: tl.constexpr, PAGE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """As `attention_split` over S parts: part 0 of the new columns, part p of the committed ones from (p - 1) BN on.

    Grid as there.
    """
    tile, head = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    part, b = tl.program_id(1), tl.program_id(2)
    wide = b.to(tl.int64)
    packed = tile * BM + tl.arange(0, BM)
    token = packed // G
    live = token < M
    q_rows = q + wide * stride_qb + token * stride_qm + (head * G + packed % G) * stride_qh
    k_head, v_head = k_cache + wide * stride_kb + head * stride_kh, v_cache + wide * stride_vb + head * stride_vh
    at = ((wide * HKV + head) * tiles * BM + packed) * S + part
    target = partial + at[:, None] * D + tl.arange(0, DP)[None, :]
    row_table = table + wide * stride_tb
    if part > 0:
        short_prefix(q_rows, k_head, v_head, row_table, length + b, live, (part - 1) * BN, C, scale, lse + at, target,
                     q, stride_kr, stride_vr, D, DP, BN, PAGE, PDL)  # fmt: skip
    else:
        k_rows, v_rows, k_step, v_step = k_head, v_head, stride_kr, stride_vr
        if SEPARATE:
            k_rows, v_rows = k_new + wide * stride_nb + head * stride_nh, v_new + wide * stride_nb + head * stride_nh
            k_step, v_step = stride_nr, stride_nr
        short_new(q_rows, k_rows, v_rows, row_table, length + b, mask + wide * stride_mb, live, token, M, R, C, offset,
                  scale, lse + at, target, q, k_step, v_step, stride_mm, stride_mr, D, DP, BT, CAUSAL, SEPARATE, PAGE,
                  PDL)  # fmt: skip
