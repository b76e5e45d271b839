"""A layer's attention in one launch, for one row of few tokens: new columns are a part of their own.

What a step takes at short contexts is what comes behind the wait for the kernel in front. So a program of the prefix
has one tile of it, whose keys and values it reads before, and no loop; the new columns' programs have no prefix.
"""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.attention_inputs import rotated_rows
from specc.backends.triton.kernels.delta_rows import prefetch
from specc.backends.triton.kernels.dot import dot_rows, rounded
from specc.backends.triton.kernels.pages import row_of
from specc.backends.triton.kernels.region_math import follow


@triton.jit
def follow_front(q_rows, live, q, PDL: tl.constexpr):
    """Waits for the kernel in front and lets the next one begin; asks for the rows before, for their addresses' sake:
    else the compiler works them out behind the wait."""
    prefetch(tl.where(live, q_rows, q))
    if PDL:
        follow()


@triton.jit
def seen_of(x, k, v, visible, scale, like):
    """(acc [BM,DP], top, sum of weights [BM]) of the columns k, v [N,DP] that are `visible` [BM or 1,N]."""
    scores = dot_rows(x, tl.trans(k), tl.zeros([x.shape[0], k.shape[0]], tl.float32))
    scores = tl.where(visible, scores, float("-inf"))
    top = tl.max(scores, 1) * scale
    shift = tl.where(top == float("-inf"), 0.0, top)
    weight = tl.exp2(scores * scale - shift[:, None])
    acc = dot_rows(rounded(weight, like), v, tl.zeros([x.shape[0], v.shape[1]], tl.float32))
    return acc, top, tl.sum(weight, 1)


@triton.jit
def leave(acc, top, total, lse, target, live, inside):
    """A part's rows and the log2 of its sums of weights: -inf where it has seen nothing."""
    seen = total > 0
    total = tl.where(seen, total, 1.0)
    tl.store(lse, tl.where(seen, top + tl.log2(total), float("-inf")), mask=live)
    tl.store(target, acc * (1.0 / total)[:, None], mask=inside)


@triton.jit
def prefix_part(q_rows, cos, sin, k_head, v_head, table, committed, first, C, angle, live, lse, target, like, scale,
                stride_kr, stride_vr, D: tl.constexpr, DP: tl.constexpr, BN: tl.constexpr, PAGE: tl.constexpr,
                PDL: tl.constexpr):  # fmt: skip
    """The committed columns first + [0, BN)."""
    d = tl.arange(0, DP)
    inner = (d < D)[None, :]
    column = first + tl.arange(0, BN)
    known = column < committed
    far = row_of(table, column, C, PAGE)[:, None]
    k = tl.load(k_head + far * stride_kr + d[None, :], mask=known[:, None] & inner, other=0.0)
    v = tl.load(v_head + far * stride_vr + d[None, :], mask=known[:, None] & inner, other=0.0)
    follow_front(q_rows, live, like, PDL)
    x = rotated_rows(q_rows, angle, cos, sin, live, like, D, DP)
    acc, top, total = seen_of(x, k, v, known[None, :], scale, like)
    leave(acc, top, total, lse, target, live, live[:, None] & inner)


@triton.jit
def new_block(x, k_rows, v_rows, cos, sin, k_at, v_at, table, committed, n, C, room, kept, angle, token, mask, like,
              k_like, scale, M, stride_kr, stride_vr, stride_nm, stride_mm, stride_mr, D: tl.constexpr,
              DP: tl.constexpr, CAUSAL: tl.constexpr, PAGE: tl.constexpr):  # fmt: skip
    """`seen_of` of the new columns n [BT]; those below `kept` go into the caches as far as there is `room`."""
    d = tl.arange(0, DP)
    inner = (d < D)[None, :]
    new, far = n < M, n.to(tl.int64)
    into = far if PAGE == 0 else row_of(table, committed + n, C, PAGE)
    k = rotated_rows(k_rows + far * stride_nm, angle + n, cos, sin, new, k_like, D, DP)
    v = tl.load((v_rows + far * stride_nm)[:, None] + d[None, :], mask=new[:, None] & inner, other=0.0)
    if CAUSAL:
        visible = (n[None, :] <= token[:, None]) & new[None, :]
    else:
        both = (token < M)[:, None] & new[None, :]
        visible = tl.load(mask + token[:, None] * stride_mm + n[None, :] * stride_mr, mask=both, other=0) != 0
    keep = (new & (n < room) & (n < kept))[:, None] & inner
    tl.store((k_at + into * stride_kr)[:, None] + d[None, :], k, mask=keep)
    tl.store((v_at + into * stride_vr)[:, None] + d[None, :], v, mask=keep)
    return seen_of(x, k, v, visible, scale, like)


@triton.jit
def new_part(q_rows, k_rows, v_rows, cos, sin, k_at, v_at, table, committed, C, room, angle, token, lse, target, mask,
             like, k_like, scale, count, written, M, stride_kr, stride_vr, stride_nm, stride_mm, stride_mr,
             D: tl.constexpr, DP: tl.constexpr, BT: tl.constexpr, CAUSAL: tl.constexpr, COUNT: tl.constexpr,
             PAGE: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """All M new columns, BT at a time whatever M is: a row's bits do not depend on it. If `written`, those of the first
    count[0] tokens go into the caches: to row n from k_at, v_at on or, PAGE > 0, where the table says."""
    n, live = tl.arange(0, BT), token < M
    follow_front(q_rows, live, like, PDL)
    kept = tl.where(written, M, 0)
    if COUNT:
        kept = tl.minimum(kept, tl.load(count).to(tl.int32))
    x = rotated_rows(q_rows, angle + token, cos, sin, live, like, D, DP)
    acc, top, total = new_block(x, k_rows, v_rows, cos, sin, k_at, v_at, table, committed, n, C, room, kept, angle,
                                token, mask, like, k_like, scale, M, stride_kr, stride_vr, stride_nm, stride_mm,
                                stride_mr, D, DP, CAUSAL, PAGE)  # fmt: skip
    for first in tl.range(BT, M, BT, num_stages=1):
        more, peak, weights = new_block(x, k_rows, v_rows, cos, sin, k_at, v_at, table, committed, first + n, C, room,
                                        kept, angle, token, mask, like, k_like, scale, M, stride_kr, stride_vr,
                                        stride_nm, stride_mm, stride_mr, D, DP, CAUSAL, PAGE)  # fmt: skip
        now = tl.maximum(top, peak)
        shift = tl.where(now == float("-inf"), 0.0, now)
        old, young = tl.exp2(top - shift), tl.exp2(peak - shift)
        acc, total, top = acc * old[:, None] + more * young[:, None], total * old + weights * young, now
    leave(acc, top, total, lse, target, live, live[:, None] & (tl.arange(0, DP) < D)[None, :])


@triton.jit(do_not_specialize=["tiles", "M", "C", "HKV", "S"])
def attention_apart(
    q, k_new, v_new, cos, sin, k_cache, v_cache, table, length, count, mask, partial, lse,
    scale, tiles, M, C, HKV, S,
    stride_qb, stride_qm, stride_qh, stride_nb, stride_nm, stride_nh,
    stride_kb, stride_kr, stride_kh, stride_vb, stride_vr, stride_vh, stride_mb, stride_mm, stride_mr,
    G: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BT: tl.constexpr,
    CAUSAL: tl.constexpr, COUNT: tl.constexpr, PAGE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """As `attention_step` over S parts: part 0 of the new columns, part p of the committed ones from (p - 1) BN on.

    The length, the table and the committed rows are read before the wait: the kernel in front must write none of them,
    and must wait before it lets this one start (all in front of it is done then). Grid as there.
    """
    tile, head = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    part, b = tl.program_id(1), tl.program_id(2)
    wide = b.to(tl.int64)
    packed, d = tile * BM + tl.arange(0, BM), tl.arange(0, DP)
    token = packed // G
    k_head, v_head = k_cache + wide * stride_kb + head * stride_kh, v_cache + wide * stride_vb + head * stride_vh
    q_rows = q + wide * stride_qb + token * stride_qm + (head * G + packed % G) * stride_qh
    at = ((wide * HKV + head) * tiles * BM + packed) * S + part
    target = partial + at[:, None] * D + d[None, :]
    committed = tl.minimum(tl.load(length + b).to(tl.int32), C)
    row_table = length if PAGE == 0 else table + wide * (C // PAGE)  # without pages it is not read
    if part > 0:
        prefix_part(q_rows, cos, sin, k_head, v_head, row_table, committed, (part - 1) * BN, C, wide * M + token,
                    token < M, lse + at, target, q, scale, stride_kr, stride_vr, D, DP, BN, PAGE, PDL)  # fmt: skip
    else:
        k_rows, v_rows = k_new + wide * stride_nb + head * stride_nh, v_new + wide * stride_nb + head * stride_nh
        k_at, v_at = k_head, v_head
        if PAGE == 0:
            behind = tl.minimum(committed, C - 1).to(tl.int64)
            k_at, v_at = k_head + behind * stride_kr, v_head + behind * stride_vr
        new_part(q_rows, k_rows, v_rows, cos, sin, k_at, v_at, row_table, committed, C, C - committed, wide * M,
                 token, lse + at, target, mask + wide * stride_mb, q, k_cache, scale, count + b, tile == tiles - 1, M,
                 stride_kr, stride_vr, stride_nm, stride_mm, stride_mr, D, DP, BT, CAUSAL, COUNT, PAGE,
                 PDL)  # fmt: skip
