"""Phase 2 of the tree schedule: the state streamed once against all nodes' rows, then the N x N part applied.

The state tile [BV,K] is the left operand, [x_k; x_q] of all nodes the right one as one block of 2T columns (k and q of
a node side by side), so that each piece of the state feeds one product. Values are the M dimension: 64 of them give
warpgroup products with the state in registers (design 09, "Triton on sm_90"). With PDL the state streams while phase 1
runs; what phase 1 wrote is read behind `gdc_wait`.

Factors that are pending are folded into each chunk before it is multiplied, so that the first phase need not know of
them. Where a state is due the chunk is written, too: it is read once and written once.
"""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.delta_pending import fold, left_over, path_rows
from specc.backends.triton.kernels.delta_rows import EPS
from specc.backends.triton.kernels.delta_solve import ask_rows, load_chunk, squares, work_size
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
def stream(at_state, at_x, twice, value, K: tl.constexpr, V: tl.constexpr, T: tl.constexpr, BV: tl.constexpr,
           BK: tl.constexpr, PIECES: tl.constexpr):  # fmt: skip
    """S [x_k; x_q] over K in chunks: [BV,2T]."""
    acc = tl.zeros([BV, 2 * T], tl.float32)
    for first in tl.range(0, K, BK):
        column = tl.arange(0, BK)[None, :] + first
        state = load_state(at_state + first, value, column, K, V, BV, BK)
        acc = dot_pieces(state, tl.trans(load_chunk(at_x + first, twice, column, K, BK)), acc, PIECES)
    return acc


@triton.jit
def load_either(state_box, at_row, first, at_state, value, column, K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr,
                BK: tl.constexpr, TMA: tl.constexpr):  # fmt: skip
    """A chunk of the state by a bulk copy or as `load_state`."""
    if TMA:
        return state_box.load([at_row, first])
    else:
        return load_state(at_state + first, value, column, K, V, BV, BK)


@triton.jit
def fold_weights(keys, g_rows, R: tl.constexpr):
    """(w_j r_j [R], e^G) of pending rows, keys [R,K] in chunks."""
    square = tl.zeros([R], tl.float32)
    for c in tl.static_range(len(keys)):
        square += squares(asked(keys[c]))
    rates, left = left_over(asked(g_rows).to(tl.float32), R)
    return rates * tl.rsqrt(square + EPS), left


@triton.jit
def stream_fold(state_box, at_row, at_state, at_x, twice, at_rows, keep, u_rows, keys, g_rows, value, due,
                K: tl.constexpr, V: tl.constexpr, T: tl.constexpr, R: tl.constexpr, BV: tl.constexpr, BK: tl.constexpr,
                PIECES: tl.constexpr, STAGES: tl.constexpr, TMA: tl.constexpr, INSIDE: tl.constexpr):  # fmt: skip
    """S* [x_k; x_q] over K in chunks: [BV,2T]. S* is the state with the pending factors folded in, written if `due`."""
    acc = tl.zeros([BV, 2 * T], tl.float32)
    weighted, left = tl.zeros([BV, R], tl.float32), 0.0
    if not INSIDE:
        weights, left = fold_weights(keys, g_rows, R)
        weighted = asked(u_rows) * weights[None, :]
    # With their number stages are for all loads; else not for the state, which a product has as its summand.
    for first in tl.range(0, K, BK, num_stages=STAGES):
        column = tl.arange(0, BK)[None, :] + first
        state = load_either(state_box, at_row, first, at_state, value, column, K, V, BV, BK, TMA)
        rows = load_chunk(at_rows + first, keep, column, K, BK)
        x = load_chunk(at_x + first, twice, column, K, BK)
        if INSIDE and first == 0:
            # Here the first chunks are on their way.
            weights, left = fold_weights(keys, g_rows, R)
            weighted = asked(u_rows) * weights[None, :]
        after = fold(state, weighted, rows, left)
        acc = dot_pieces(after, tl.trans(x), acc, PIECES)
        if due:
            if TMA:
                state_box.store([at_row, first], after)
            else:
                store_state(at_state + first, after, value, column, K, V, BV, BK)
    return acc


@triton.jit
def load_factors(pending_u, rows, keep, value, b, hv, ROWS, HV, V: tl.constexpr):
    """u [BV,R] of the pending rows that count."""
    at = pending_u + ((b * ROWS + rows.to(tl.int64)) * HV * V)[None, :] + hv * V + value[:, None]
    return tl.load(at, mask=keep[None, :] & (value[:, None] < V), other=0.0)


@triton.jit
def tail(acc, values, work, N, BV: tl.constexpr, T: tl.constexpr):
    """(o, u) [BV,T] from S [x_k; x_q] [BV,2T]: R = beta v - beta e^G r_k (S x_k), then [X; P X] R. All loads come
    first."""
    row, twice = tl.arange(0, T), tl.arange(0, 2 * T)[None, :]
    matrix = tl.load(work + row[:, None] + twice * T)
    work += 2 * T * T
    beta = tl.load(work + row)
    scaled_k = tl.load(work + T + row)
    scaled_q = tl.load(work + 2 * T + row)
    read_k, read_q = tl.split(acc.reshape(BV, T, 2))
    rest = beta[None, :] * values - scaled_k[None, :] * read_k
    both = dot_float32(tl.where(row[None, :] < N, rest, 0.0), matrix, tl.zeros([BV, 2 * T], tl.float32))
    u, inner = tl.split(both.reshape(BV, T, 2))
    return scaled_q[None, :] * read_q + inner, u


@triton.jit(do_not_specialize=["N", "P", "ROWS", "window"])
def delta_tree_apply(state, state_box, q, k, v, work, o, u, pending_k, pending_u, pending_g, path, count, window,
                     N, P, ROWS, H, HV, stride_qb, stride_qt, stride_kb, stride_kt, stride_vb, stride_vt,
                     K: tl.constexpr, V: tl.constexpr, T: tl.constexpr, R: tl.constexpr,
                     BV: tl.constexpr, BK: tl.constexpr, PIECES: tl.constexpr, STAGES: tl.constexpr,
                     WINDOW: tl.constexpr, PATH: tl.constexpr, TMA: tl.constexpr, INSIDE: tl.constexpr,
                     PDL: tl.constexpr):  # fmt: skip
    """Grid (V / BV, HV, B). o [B,N,HV,V], u [B,N,HV,V] float32; `state` [B,HV,V,K] is written where folds are due, TMA:
    through its descriptor `state_box`.

    `work`: what phase 1 wrote. R = 0: nothing is pending; else R >= P, the length of a path through ROWS pending rows.
    Without WINDOW every sequence is due, one that has none pending too (it writes what it has read).
    """
    hv, b = tl.program_id(1), tl.program_id(2)
    head = hv // (HV // H)
    value = tl.program_id(0) * BV + tl.arange(0, BV)
    row = tl.arange(0, T)
    inside = (row[None, :] < N) & (value[:, None] < V)
    at_value = (b * stride_vb + hv * V + row[None, :] * stride_vt) + value[:, None]
    values = tl.load(v + at_value, mask=inside, other=0.0)
    at_state = state + ((b.to(tl.int64) * HV + hv) * V + value[:, None]) * K + tl.arange(0, BK)[None, :]
    place = tl.arange(0, BK)[None, :] + head * K
    twin = tl.arange(0, 2 * T)[:, None]
    at_x = tl.where(
        twin % 2 == 0,
        k + b.to(tl.int64) * stride_kb + place + (twin // 2) * stride_kt,
        q + b.to(tl.int64) * stride_qb + place + (twin // 2) * stride_qt,
    )
    twice = tl.arange(0, 2 * T) // 2 < N
    if R > 0:
        waiting = tl.load(count + b)
        rows, keep = path_rows(path, waiting, b, P, ROWS, R, PATH)
        u_rows = load_factors(pending_u, rows, keep, value, b, hv, ROWS, HV, V)
        at_rows = pending_k + ((b * ROWS + rows.to(tl.int64)) * H * K)[:, None] + place
        keys = ask_rows(at_rows, keep, K, BK)
        g_rows = tl.load(pending_g + (b * ROWS + rows) * HV + hv, mask=keep, other=0.0)
        due = not WINDOW or waiting >= window
        at_row = ((b * HV + hv) * V + tl.program_id(0) * BV).to(tl.int32)
        acc = stream_fold(
            state_box, at_row, at_state, at_x, twice, at_rows, keep, u_rows, keys, g_rows, value, due,
            K, V, T, R, BV, BK, PIECES, STAGES, TMA, INSIDE,
        )  # fmt: skip
    else:
        acc = stream(at_state, at_x, twice, value, K, V, T, BV, BK, PIECES)
    if PDL:
        tl.extra.cuda.gdc_wait()
    outputs, own = tail(acc, asked(values).to(tl.float32), work + (b * HV + hv) * work_size(T), N, BV, T)
    at_out = (b * N + row[None, :]).to(tl.int64) * (HV * V) + hv * V + value[:, None]
    tl.store(u + at_out, own, mask=inside)
    tl.store(o + at_out, rounded(outputs, o), mask=inside)
