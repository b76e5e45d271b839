"""Phase 2 of the tree schedule: the state streamed once against all nodes' rows, then the N x N part applied.

The state tile [BV,K] is the left operand, [x_k; x_q] of all nodes the right one as one block of 2T columns (k and q of
a node side by side), so that each piece of the state feeds one product. Values are the M dimension: 64 of them give
warpgroup products with the state in registers (design 09, "Triton on sm_90"). With PDL the state streams while phase 1
runs; what phase 1 wrote is read behind `gdc_wait`.
"""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.delta_pending import fold, path_rows
from specc.backends.triton.kernels.delta_solve import SCALARS, load_chunk, work_size
from specc.backends.triton.kernels.dot import dot_float32, dot_pieces, rounded


@triton.jit
def tail(acc, values, work, N, BV: tl.constexpr, T: tl.constexpr):
    """(o, u) [BV,T] from S [x_k; x_q] [BV,2T]: R = beta v - beta e^G r_k (S x_k), then [X; P X] R."""
    row = tl.arange(0, T)
    matrix = tl.load(work + row[:, None] + tl.arange(0, 2 * T)[None, :] * T)
    work += 2 * T * T
    beta = tl.load(work + row)
    scaled_k = tl.load(work + T + row)
    scaled_q = tl.load(work + 2 * T + row)
    read_k, read_q = tl.split(acc.reshape(BV, T, 2))
    rest = tl.where(row[None, :] < N, beta[None, :] * values - scaled_k[None, :] * read_k, 0.0)
    both = dot_float32(rest, matrix, tl.zeros([BV, 2 * T], tl.float32))
    u, inner = tl.split(both.reshape(BV, T, 2))
    return scaled_q[None, :] * read_q + inner, u


@triton.jit
def load_state(at, value, column, K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr, BK: tl.constexpr):
    """[BV,BK] of a state; zeros outside."""
    if (K % BK == 0) and (V % BV == 0):
        return tl.load(at)
    else:
        return tl.load(at, mask=(value[:, None] < V) & (column < K), other=0.0)


@triton.jit
def store_state(at, state, value, column, K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr, BK: tl.constexpr):
    """The reverse of `load_state`."""
    if (K % BK == 0) and (V % BV == 0):
        tl.store(at, state)
    else:
        tl.store(at, state, mask=(value[:, None] < V) & (column < K))


@triton.jit
def stream(at_state, at_x, twice, value,
           K: tl.constexpr, V: tl.constexpr, T: tl.constexpr, BV: tl.constexpr, BK: tl.constexpr,
           PIECES: tl.constexpr):  # fmt: skip
    """S [x_k; x_q] over K in chunks: [BV,2T]."""
    acc = tl.zeros([BV, 2 * T], tl.float32)
    for first in tl.range(0, K, BK):
        column = tl.arange(0, BK)[None, :] + first
        state = load_state(at_state + first, value, column, K, V, BV, BK)
        acc = dot_pieces(state, tl.trans(load_chunk(at_x + first, twice, column, K, BK)), acc, PIECES)
    return acc


@triton.jit
def fold_all(at_state, at_pending, keep, weighted, decay, value,
             K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """The state with its pending factors folded in, written where it lies. In a loop of its own: the tile has just been
    read, so it comes from the cache, and a loop that streams, multiplies and writes at once does all three badly."""
    for first in tl.range(0, K, BK):
        column = tl.arange(0, BK)[None, :] + first
        state = load_state(at_state + first, value, column, K, V, BV, BK)
        rows = load_chunk(at_pending + first, keep, column, K, BK)
        store_state(at_state + first, fold(state, weighted, rows, decay), value, column, K, V, BV, BK)


@triton.jit
def held(at_state, value, due, K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr, BK: tl.constexpr):
    """The chunks [BV,BK] of the state that a fold will change; nothing is read where none is due."""
    tiles = ()
    for first in tl.static_range(0, K, BK):
        if (K % BK == 0) and (V % BV == 0):
            tiles = tiles + (tl.load(at_state + first, mask=due, other=0.0),)
        else:
            inside = (value[:, None] < V) & (tl.arange(0, BK)[None, :] + first < K)
            tiles = tiles + (tl.load(at_state + first, mask=inside & due, other=0.0),)
    return tiles


@triton.jit
def fold_held(at_state, tiles, at_pending, keep, weighted, decay, value,
              K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """As `fold_all` on tiles that are in registers: all chunks are independent of each other and of memory."""
    for first in tl.static_range(0, K, BK):
        column = tl.arange(0, BK)[None, :] + first
        rows = load_chunk(at_pending + first, keep, column, K, BK)
        more = fold(tl.zeros([BV, BK], tl.float32), weighted, rows, 0.0)
        store_state(at_state + first, tl.fma(tiles[first // BK], decay, more), value, column, K, V, BV, BK)


@triton.jit(do_not_specialize=["N", "P", "ROWS", "window"])
def delta_tree_apply(state, q, k, v, work, o, u, pending_k, pending_u, path, count, window, N, P, ROWS, H, HV,
                     stride_qb, stride_qt, stride_kb, stride_kt, stride_vb, stride_vt,
                     K: tl.constexpr, V: tl.constexpr, T: tl.constexpr, R: tl.constexpr,
                     BV: tl.constexpr, BK: tl.constexpr, PIECES: tl.constexpr, PATH: tl.constexpr,
                     HOLD: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """Grid (V / BV, HV, B). o [B,N,HV,V], u [B,N,HV,V] float32; `state` [B,HV,V,K] is written where folds are due.

    `work`: what phase 1 wrote. R = 0: nothing is pending; else R >= P, the length of a path through ROWS pending rows.
    """
    hv, b = tl.program_id(1), tl.program_id(2)
    head = hv // (HV // H)
    value = tl.program_id(0) * BV + tl.arange(0, BV)
    row = tl.arange(0, T)
    inside = (row[None, :] < N) & (value[:, None] < V)
    at_value = (b * stride_vb + hv * V + row[None, :] * stride_vt) + value[:, None]
    values = tl.load(v + at_value, mask=inside, other=0.0).to(tl.float32)
    at_rows = state + ((b.to(tl.int64) * HV + hv) * V + value[:, None]) * K
    at_state = at_rows + tl.arange(0, BK)[None, :]
    place = tl.arange(0, BK)[None, :] + head * K
    twin = tl.arange(0, 2 * T)[:, None]
    at_x = tl.where(
        twin % 2 == 0,
        k + b.to(tl.int64) * stride_kb + place + (twin // 2) * stride_kt,
        q + b.to(tl.int64) * stride_qb + place + (twin // 2) * stride_qt,
    )
    twice = tl.arange(0, 2 * T) // 2 < N
    work += (b * HV + hv) * work_size(T, R)
    if R > 0:
        waiting = tl.load(count + b)
        rows, keep = path_rows(path, waiting, b, P, ROWS, R, PATH)
        at_u = pending_u + ((b * ROWS + rows.to(tl.int64)) * HV * V)[None, :] + hv * V + value[:, None]
        weighted = tl.load(at_u, mask=keep[None, :] & (value[:, None] < V), other=0.0)
    acc = stream(at_state, at_x, twice, value, K, V, T, BV, BK, PIECES)
    if (R > 0) and HOLD:
        tiles = held(at_state, value, waiting >= tl.maximum(window, 1), K, V, BV, BK)
    if PDL:
        tl.extra.cuda.gdc_wait()
    if R > 0:
        at_more = work + 2 * T * T + SCALARS * T
        decay = tl.load(at_more - T)
        if waiting >= tl.maximum(window, 1):
            rates = tl.load(at_more + R * 2 * T + tl.arange(0, R))
            at_pending = pending_k + ((b * ROWS + rows.to(tl.int64)) * H * K)[:, None] + place
            if HOLD:
                fold_held(at_state, tiles, at_pending, keep, weighted * rates[None, :], decay, value, K, V, BV, BK)
            else:
                fold_all(at_state, at_pending, keep, weighted * rates[None, :], decay, value, K, V, BV, BK)
        near = tl.load(at_more + tl.arange(0, R)[:, None] * (2 * T) + tl.arange(0, 2 * T)[None, :])
        acc = dot_float32(weighted, near, acc * decay)
    outputs, factors = tail(acc, values, work, N, BV, T)
    at_out = (b * N + row[None, :]).to(tl.int64) * (HV * V) + hv * V + value[:, None]
    tl.store(u + at_out, factors, mask=inside)
    tl.store(o + at_out, rounded(outputs, o), mask=inside)
