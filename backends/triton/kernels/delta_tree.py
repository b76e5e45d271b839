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
def finish(acc, weighted, decay, v, work, o, u, value, b, hv, N, HV, stride_vb, stride_vt, V: tl.constexpr,
           BV: tl.constexpr, T: tl.constexpr, R: tl.constexpr):  # fmt: skip
    """A tile's o and u from S [x_k; x_q] [BV,2T]: R = beta v - beta e^G r_k (S x_k), then [X; P X] R. Pending factors
    `weighted` [BV,R], already decayed among themselves, stand in front. All loads come before anything is looked at."""
    row, twice = tl.arange(0, T), tl.arange(0, 2 * T)[None, :]
    inside = (row[None, :] < N) & (value[:, None] < V)
    values = tl.load(v + (b * stride_vb + hv * V + row[None, :] * stride_vt) + value[:, None], mask=inside, other=0.0)
    matrix = tl.load(work + row[:, None] + twice * T)
    work += 2 * T * T
    beta = tl.load(work + row)
    scaled_k = tl.load(work + T + row)
    scaled_q = tl.load(work + 2 * T + row)
    if R > 0:
        near = tl.load(work + SCALARS * T + tl.arange(0, R)[:, None] * (2 * T) + twice)
        acc = dot_float32(weighted, asked(near), acc * decay)
    read_k, read_q = tl.split(acc.reshape(BV, T, 2))
    rest = beta[None, :] * asked(values).to(tl.float32) - scaled_k[None, :] * read_k
    both = dot_float32(tl.where(row[None, :] < N, rest, 0.0), matrix, tl.zeros([BV, 2 * T], tl.float32))
    factors, inner = tl.split(both.reshape(BV, T, 2))
    at = (b * N + row[None, :]).to(tl.int64) * (HV * V) + hv * V + value[:, None]
    tl.store(u + at, factors, mask=inside)
    tl.store(o + at, rounded(scaled_q[None, :] * read_q + inner, o), mask=inside)


@triton.jit(do_not_specialize=["N", "P", "ROWS", "window", "total", "loops"])
def delta_tree_apply(state, boxes, q, k, v, work, o, u, pending_k, pending_u, path, count, window, N, P, ROWS, total, loops,
                     stride_qb, stride_qt, stride_kb, stride_kt, stride_vb, stride_vt,
                     H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, T: tl.constexpr,
                     R: tl.constexpr, BV: tl.constexpr, BK: tl.constexpr, PIECES: tl.constexpr, PATH: tl.constexpr,
                     TMA: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """Grid (programs,), each for `loops` of the `total` tiles. o [B,N,HV,V], u [B,N,HV,V] float32; `state` [B,HV,V,K]
    is written where folds are due.

    `work`: what phase 1 wrote. R = 0: nothing is pending; else R >= P, the length of a path through ROWS pending rows.
    """
    CHUNKS: tl.constexpr = (K + BK - 1) // BK
    BLOCKS: tl.constexpr = (V + BV - 1) // BV
    begin = tl.program_id(0) * loops
    rows_of_tile = state + tl.arange(0, BV)[:, None] * K + tl.arange(0, BK)[None, :]
    acc = tl.zeros([BV, 2 * T], tl.float32)
    weighted, decay = 0.0, 0.0
    if R > 0:
        weighted, folded = tl.zeros([BV, R], tl.float32), tl.zeros([R, BK], pending_k.dtype.element_ty)
        rows, counted, due = tl.zeros([R], tl.int32), tl.zeros([R], tl.int32), 0
    if PDL and CHUNKS == 1:
        # Nothing in the loop depends on a condition then, and the compiler starts all its loads in front of it.
        tl.extra.cuda.gdc_wait()
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
        if TMA:
            tile_k = boxes.load([tile * BV, first])
        else:
            tile_k = load_state(at, value, column, K, V, BV, BK)
        x = load_x(q, k, b, head, column, N, stride_qb, stride_qt, stride_kb, stride_kt, K, T, BK)
        here = work + (b * HV + hv) * work_size(T, R)
        more = here + 2 * T * T + SCALARS * T
        if R > 0:
            if first == 0:
                if PDL:
                    tl.extra.cuda.gdc_wait()
                waiting = tl.load(count + b)
                rows, inside = path_rows(path, P, b, P, ROWS, R, PATH)  # the path does not wait for the count
                counted = (inside & (tl.arange(0, R) < waiting)).to(tl.int32)
                due = (waiting >= tl.maximum(window, 1)).to(tl.int32)
                decay = tl.load(more - T)
                if waiting > 0:
                    weights = tl.load(more + R * 2 * T + tl.arange(0, R))
                    u_rows = load_factors(pending_u, rows, counted != 0, value, b, hv, ROWS, HV, V)
                    weighted = asked(u_rows) * weights[None, :]
                else:
                    weighted = tl.zeros([BV, R], tl.float32)
            if due != 0:
                at_rows = pending_k + ((b * ROWS + rows.to(tl.int64)) * H + head)[:, None] * K + column
                folded = load_chunk(at_rows, counted != 0, column, K, BK)
        # A sum of its own for every chunk: the compiler would wait behind each product into one that is set to zero.
        part = dot_pieces(tile_k, tl.trans(x), tl.zeros([BV, 2 * T], tl.float32), PIECES)
        acc = part + tl.where(first == 0, 0.0, acc)
        if R > 0 and due != 0:
            after = fold(tile_k, weighted, folded, decay)
            if TMA:
                boxes.store([tile * BV, first], after)
            else:
                store_state(at, after, value, column, K, V, BV, BK)
        if i % CHUNKS == CHUNKS - 1:
            if PDL:
                tl.extra.cuda.gdc_wait()
            finish(
                acc, weighted, decay, v, here, o, u, value, b, hv, N, HV, stride_vb, stride_vt, V, BV, T, R
            )  # fmt: skip
