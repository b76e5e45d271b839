"""Phase 2 of the tree schedule: the state streamed once against all nodes' rows, then the N x N part applied.

The state tile [BV,K] is the left operand, [x_k; x_q] of all nodes the right one as one block of 2T columns (k and q of
a node side by side), so that each piece of the state feeds one product. Values are the M dimension: 64 of them give
warpgroup products with the state in registers (design 09, "Triton on sm_90"). With PDL the state streams while phase 1
runs; what phase 1 wrote is read behind `gdc_wait`.

A program goes through several tiles in one loop over all their chunks, so that the next tile's loads are on their way
while a tile's end is computed; there are as many programs as run at once. Factors that are pending are folded into the
chunk that has just been multiplied: a state that is due is read once and written once.
"""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.delta_pending import fold, path_rows
from specc.backends.triton.kernels.delta_solve import SCALARS, load_chunk, work_size
from specc.backends.triton.kernels.dot import dot_float32, dot_pieces, rounded
from specc.backends.triton.kernels.linear_once import asked


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
    """The reverse of `load_state`. Past the cache as far as that goes: what is written is not read again soon, and in
    the cache it would be in the way of what is read."""
    if (K % BK == 0) and (V % BV == 0):
        tl.store(at, state, cache_modifier=".cs")
    else:
        tl.store(at, state, mask=(value[:, None] < V) & (column < K), cache_modifier=".cs")


@triton.jit
def load_x(q, k, b, head, column, N, stride_qb, stride_qt, stride_kb, stride_kt, K: tl.constexpr, T: tl.constexpr,
           BK: tl.constexpr):  # fmt: skip
    """[2T,BK]: columns [1,BK] of x_k and x_q of all nodes by turns."""
    twin = tl.arange(0, 2 * T)[:, None]
    at = tl.where(
        twin % 2 == 0,
        k + b.to(tl.int64) * stride_kb + head * K + (twin // 2) * stride_kt + column,
        q + b.to(tl.int64) * stride_qb + head * K + (twin // 2) * stride_qt + column,
    )
    return load_chunk(at, tl.arange(0, 2 * T) // 2 < N, column, K, BK)


@triton.jit
def load_factors(pending_u, rows, keep, value, b, hv, ROWS, HV, V: tl.constexpr):
    """u [BV,R] of the pending rows that count."""
    at = pending_u + ((b * ROWS + rows.to(tl.int64)) * HV * V)[None, :] + hv * V + value[:, None]
    return tl.load(at, mask=keep[None, :] & (value[:, None] < V), other=0.0)


@triton.jit
def finish(acc, v, work, o, u, value, b, hv, N, HV, stride_vb, stride_vt, V: tl.constexpr, BV: tl.constexpr,
           T: tl.constexpr):  # fmt: skip
    """A tile's o and u from S [x_k; x_q]."""
    row = tl.arange(0, T)
    inside = (row[None, :] < N) & (value[:, None] < V)
    at = (b * stride_vb + hv * V + row[None, :] * stride_vt) + value[:, None]
    values = asked(tl.load(v + at, mask=inside, other=0.0))
    outputs, factors = tail(acc, values.to(tl.float32), work, N, BV, T)
    at = (b * N + row[None, :]).to(tl.int64) * (HV * V) + hv * V + value[:, None]
    tl.store(u + at, factors, mask=inside)
    tl.store(o + at, rounded(outputs, o), mask=inside)


@triton.jit(do_not_specialize=["N", "P", "ROWS", "window", "total", "loops"])
def delta_tree_apply(state, q, k, v, work, o, u, pending_k, pending_u, path, count, window, N, P, ROWS, total, loops,
                     stride_qb, stride_qt, stride_kb, stride_kt, stride_vb, stride_vt,
                     H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, T: tl.constexpr,
                     R: tl.constexpr, BV: tl.constexpr, BK: tl.constexpr, PIECES: tl.constexpr, PATH: tl.constexpr,
                     PDL: tl.constexpr):  # fmt: skip
    """Grid (programs,), each for `loops` of the `total` tiles. o [B,N,HV,V], u [B,N,HV,V] float32; `state` [B,HV,V,K]
    is written where folds are due.

    `work`: what phase 1 wrote. R = 0: nothing is pending; else R >= P, the length of a path through ROWS pending rows.
    """
    CHUNKS: tl.constexpr = (K + BK - 1) // BK
    BLOCKS: tl.constexpr = (V + BV - 1) // BV
    begin = tl.program_id(0) * loops
    rows_of_tile = state + tl.arange(0, BV)[:, None] * K + tl.arange(0, BK)[None, :]
    acc = tl.zeros([BV, 2 * T], tl.float32)
    if R > 0:
        weighted = tl.zeros([BV, R], tl.float32)
        rows, counted = tl.zeros([R], tl.int32), tl.zeros([R], tl.int32)
        decay, due = 0.0, 0
    for i in tl.range(0, tl.minimum(loops, total - begin) * CHUNKS):
        tile, first = begin + i // CHUNKS, i % CHUNKS * BK
        hv, b = tile // BLOCKS % HV, tile // BLOCKS // HV
        head = hv // (HV // H)
        value = tile % BLOCKS * BV + tl.arange(0, BV)
        column = tl.arange(0, BK)[None, :] + first
        if V % BV == 0:
            at = rows_of_tile + (tile.to(tl.int64) * (BV * K) + first)
        else:
            at = state + ((b.to(tl.int64) * HV + hv) * V + value[:, None]) * K + column
        tile_k = load_state(at, value, column, K, V, BV, BK)
        x = load_x(q, k, b, head, column, N, stride_qb, stride_qt, stride_kb, stride_kt, K, T, BK)
        here = work + (b * HV + hv) * work_size(T, R)
        more = here + 2 * T * T + SCALARS * T
        if R > 0 and first == 0:
            waiting = tl.load(count + b)
            rows, keep = path_rows(path, waiting, b, P, ROWS, R, PATH)
            counted, due = keep.to(tl.int32), (waiting >= tl.maximum(window, 1)).to(tl.int32)
            if due != 0:
                weighted = load_factors(pending_u, rows, keep, value, b, hv, ROWS, HV, V)
                if PDL:
                    tl.extra.cuda.gdc_wait()
                decay = tl.load(more - T)
                weighted = asked(weighted) * tl.load(more + R * 2 * T + tl.arange(0, R))[None, :]
        # A sum of its own for every chunk: the compiler would wait behind each product into one that is set to zero.
        part = dot_pieces(tile_k, tl.trans(x), tl.zeros([BV, 2 * T], tl.float32), PIECES)
        acc = part + tl.where(first == 0, 0.0, acc)
        if R > 0 and due != 0:
            at_rows = pending_k + ((b * ROWS + rows.to(tl.int64)) * H + head)[:, None] * K + column
            after = fold(tile_k, weighted, load_chunk(at_rows, counted != 0, column, K, BK), decay)
            store_state(at, after, value, column, K, V, BV, BK)
        if i % CHUNKS == CHUNKS - 1:
            if PDL:
                tl.extra.cuda.gdc_wait()
            ends = acc
            if R > 0:
                near = tl.load(more + tl.arange(0, R)[:, None] * (2 * T) + tl.arange(0, 2 * T)[None, :])
                factors = load_factors(pending_u, rows, counted != 0, value, b, hv, ROWS, HV, V)
                ends = dot_float32(asked(factors), asked(near), acc * tl.load(more - T))
            finish(ends, v, here, o, u, value, b, hv, N, HV, stride_vb, stride_vt, V, BV, T)
