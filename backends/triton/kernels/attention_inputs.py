"""What attention needs beside keys and values: rotary embeddings and the ancestor mask of a tree."""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.dot import INTERPRETED, rounded
from specc.backends.triton.kernels.pages import row_of
from specc.backends.triton.kernels.region_math import follow


@triton.jit
def rope_angles(positions, cos, sin, FREQUENCIES: tl.constexpr, HALF: tl.constexpr, HP: tl.constexpr):
    """cos, sin [rows,HALF] of positions int64 [rows] times FREQUENCIES, a tuple of HALF floats; grid (rows,)."""
    row = tl.program_id(0)
    i = tl.arange(0, HP)
    frequency = tl.zeros([HP], tl.float32)
    for place in tl.static_range(HALF):
        frequency = tl.where(i == place, FREQUENCIES[place], frequency)
    angle = tl.load(positions + row).to(tl.float32) * frequency
    at = row.to(tl.int64) * HALF + i
    tl.store(cos + at, rounded(tl.cos(angle), cos), mask=i < HALF)
    tl.store(sin + at, rounded(tl.sin(angle), sin), mask=i < HALF)


@triton.jit
def rotate_halves(x, cos, sin, out, M, H, stride_b, stride_m, stride_h, HALF: tl.constexpr, HP: tl.constexpr,
                  HEADS: tl.constexpr):  # fmt: skip
    """out [B,M,H,2*HALF] = x rotated by cos, sin [B,M,HALF]; grid (B*M, blocks of HEADS heads).

    Products are rounded to the dtype before they are added, as torch does it.
    """
    row, head = tl.program_id(0), tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    i = tl.arange(0, HP)
    inner = i < HALF
    c = tl.load(cos + row.to(tl.int64) * HALF + i, mask=inner, other=0.0).to(tl.float32)[None, :]
    s = tl.load(sin + row.to(tl.int64) * HALF + i, mask=inner, other=0.0).to(tl.float32)[None, :]
    source = x + (row // M).to(tl.int64) * stride_b + (row % M) * stride_m + head[:, None] * stride_h + i[None, :]
    here = (head < H)[:, None] & inner[None, :]
    first = tl.load(source, mask=here, other=0.0).to(tl.float32)
    second = tl.load(source + HALF, mask=here, other=0.0).to(tl.float32)
    left = rounded(first * c, out).to(tl.float32) - rounded(second * s, out).to(tl.float32)
    right = rounded(second * c, out).to(tl.float32) + rounded(first * s, out).to(tl.float32)
    target = out + (row.to(tl.int64) * H + head[:, None]) * (2 * HALF) + i[None, :]
    tl.store(target, rounded(left, out), mask=here)
    tl.store(target + HALF, rounded(right, out), mask=here)


@triton.jit
def product(x, y, like):
    """x * y rounded to the dtype of the pointer `like`, in float32; never fused with the sum that it goes into."""
    if INTERPRETED or like.dtype.element_ty != tl.float32:
        return rounded(x.to(tl.float32) * y.to(tl.float32), like).to(tl.float32)
    else:
        x, y = tl.broadcast(x, y)
        return tl.inline_asm_elementwise("mul.rn.f32 $0, $1, $2;", "=f,f,f", [x, y], dtype=tl.float32, is_pure=True,
                                         pack=1)  # fmt: skip


@triton.jit
def rotated_rows(rows, angles, cos, sin, live, like, D: tl.constexpr, DP: tl.constexpr):
    """[R,DP] of rows at pointers `rows` [R], rotated in halves by rows `angles` [R] (int64) of cos, sin [.,D/2].

    Products are rounded to the dtype before they are added, as torch does it. Rows that are not `live` are 0.
    """
    HALF: tl.constexpr = D // 2
    d = tl.arange(0, DP)
    low = d < HALF
    here = live[:, None] & (d < D)[None, :]
    place = angles[:, None] * HALF + tl.where(low, d, d - HALF)[None, :]
    x = tl.load(rows[:, None] + d[None, :], mask=here, other=0.0)
    partner = tl.load(rows[:, None] + tl.where(low, d + HALF, d - HALF)[None, :], mask=here, other=0.0)
    along = product(x, tl.load(cos + place, mask=here, other=0.0), like)
    across = product(partner, tl.load(sin + place, mask=here, other=0.0), like)
    return rounded(tl.where(low[None, :], along - across, along + across), like)


@triton.jit(do_not_specialize=["M", "C"])
def rotate_and_append(
    q, k, v, cos, sin, k_cache, v_cache, table, length, count, out, M, HKV, C,
    stride_qb, stride_qm, stride_qh, stride_nb, stride_nm, stride_nh,
    stride_kb, stride_kr, stride_kh, stride_vb, stride_vr, stride_vh,
    G: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, COUNT: tl.constexpr, PAGE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """out [B,M,HKV*G,D]: q rotated by cos, sin [B,M,D/2]; of k, v [B,M,HKV,D] the first count[b] rows (without COUNT:
    all) go to rows length[b] + j of the caches, k rotated. Grid (B*M, HKV). PAGE, table: see `attention_step`."""
    if PDL:
        follow()
    row, head = tl.program_id(0), tl.program_id(1)
    b, token = (row // M).to(tl.int64), row % M
    member, one, d = tl.arange(0, GP), tl.arange(0, 1), tl.arange(0, DP)
    angle = row.to(tl.int64)
    q_rows = q + b * stride_qb + token * stride_qm + (head * G + member) * stride_qh
    turned = rotated_rows(q_rows, angle + member * 0, cos, sin, member < G, out, D, DP)
    target = out + (angle * HKV * G + head * G + member) * D
    tl.store(target[:, None] + d[None, :], turned, mask=(member < G)[:, None] & (d < D)[None, :])
    place = tl.load(length + b).to(tl.int64) + token
    kept = place < C
    if COUNT:
        kept = kept & (token < tl.load(count + b))
    if PAGE > 0:
        place = row_of(table + b * (C // PAGE), place, C, PAGE)
    new = b * stride_nb + token * stride_nm + head * stride_nh
    turned = rotated_rows(k + new + one, angle + one, cos, sin, one == 0, k_cache, D, DP)
    here = (one == 0)[:, None] & (d < D)[None, :] & kept
    into = b * stride_kb + place * stride_kr + head * stride_kh
    tl.store((k_cache + into + one)[:, None] + d[None, :], turned, mask=here)
    into = b * stride_vb + place * stride_vr + head * stride_vh
    value = tl.load((v + new + one)[:, None] + d[None, :], mask=here)
    tl.store((v_cache + into + one)[:, None] + d[None, :], value, mask=here)


@triton.jit
def close_ancestors(parent_row, valid, mask, N, NP: tl.constexpr, ROWS: tl.constexpr):
    """mask uint8 [B,N,N]: column j of row i is 1 if node j is i or above it; grid (B, blocks of ROWS nodes).

    All nodes of a block climb together, one generation a turn, until all have come to the root (row 0).
    """
    b = tl.program_id(0)
    node, column = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.arange(0, NP)
    parents, valids = parent_row + b.to(tl.int64) * N, valid + b.to(tl.int64) * N
    row = tl.where(node < N, node + 1, 0)
    seen = tl.zeros([ROWS, NP], tl.int32)
    turn = 0
    while (tl.max(row, 0) > 0) & (turn <= N):
        seen = seen | (row[:, None] == column[None, :] + 1).to(tl.int32)
        known = (row > 0) & (tl.load(valids + row - 1, mask=row > 0, other=0) != 0)
        row = tl.load(parents + row - 1, mask=known, other=0).to(tl.int32)
        turn += 1
    target = mask + (b.to(tl.int64) * N + node[:, None]) * N + column[None, :]
    tl.store(target, seen.to(tl.uint8), mask=(node < N)[:, None] & (column < N)[None, :])
