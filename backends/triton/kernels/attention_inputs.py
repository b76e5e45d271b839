"""What attention needs beside keys and values: rotary embeddings and the ancestor mask of a tree."""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.dot import rounded


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
