"""Phase 2 of the tree schedule, and both phases in one kernel: the state streamed once against all nodes' rows.

The state tile [BV,K] is the left operand, [x_k; x_q] of all nodes the right one as one block of 2T columns (k and q of
a node side by side), so that each piece of the state feeds one product. Values are the M dimension: 64 of them give
warpgroup products with the state in registers (design 09, "Triton on sm_90").
"""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.delta_pending import fold, pending_rows, weighted_factors
from specc.backends.triton.kernels.delta_rows import prefetch
from specc.backends.triton.kernels.delta_solve import SCALARS, norms, products, solve, tree_rows
from specc.backends.triton.kernels.dot import dot_float32, dot_pieces, dot_rows, rounded


@triton.jit
def tail(acc, values, beta, scaled_k, scaled_q, live, matrix, BV: tl.constexpr, T: tl.constexpr):
    """(o, u) [BV,T] from S [x_k; x_q] [BV,2T]: R = beta v - beta e^G r_k (S x_k), then [X; P X] R."""
    read_k, read_q = tl.split(acc.reshape(BV, T, 2))
    rest = tl.where(live[None, :], beta[None, :] * values - scaled_k[None, :] * read_k, 0.0)
    both = dot_float32(rest, matrix, tl.zeros([BV, 2 * T], tl.float32))
    u, inner = tl.split(both.reshape(BV, T, 2))
    return tl.where(live[None, :], scaled_q[None, :] * read_q + inner, 0.0), u


@triton.jit
def read_work(work, T: tl.constexpr):
    """(matrix [T,2T], beta, beta e^G r_k, e^G r_q, live) as phase 1 wrote them."""
    row = tl.arange(0, T)
    matrix = tl.load(work + row[:, None] * (2 * T) + tl.arange(0, 2 * T)[None, :])
    work += 2 * T * T
    live = tl.load(work + 3 * T + row) != 0.0
    return matrix, tl.load(work + row), tl.load(work + T + row), tl.load(work + 2 * T + row), live


@triton.jit
def whole_solve(at_k, at_q, g, beta, seen, live, K: tl.constexpr, T: tl.constexpr, LEVELS: tl.constexpr,
                BK: tl.constexpr):  # fmt: skip
    """What `read_work` gives but for `live`, computed here."""
    gram, cross, square_k, square_q = products(at_k, at_q, live, K, T, BK)
    norm_k, norm_q = norms(square_k, square_q, K)
    matrix, grown = solve(gram, cross, norm_k, norm_q, g, beta, seen, T, LEVELS)
    return matrix, beta, beta * grown * norm_k, grown * norm_q


@triton.jit
def stream(at_state, at_x, twice,
           K: tl.constexpr, T: tl.constexpr, BV: tl.constexpr, BK: tl.constexpr, PIECES: tl.constexpr):  # fmt: skip
    """S [x_k; x_q] over K in chunks: [BV,2T]."""
    acc = tl.zeros([BV, 2 * T], tl.float32)
    for first in tl.range(0, K, BK):
        state = tl.load(at_state + first)
        x = tl.load(at_x + first, mask=twice[:, None], other=0.0)
        acc = dot_pieces(state, tl.trans(x), acc, PIECES)
    return acc


@triton.jit
def stream_pending(at_state, at_x, at_pending, keep, weighted, decay, due, twice,
                   K: tl.constexpr, T: tl.constexpr, R: tl.constexpr, BV: tl.constexpr, BK: tl.constexpr,
                   PIECES: tl.constexpr):  # fmt: skip
    """S [x_k; x_q] with pending factors as further ancestors: e^G S x + sum_j (w_j u_j) (x_j . x), [BV,2T].

    `weighted` [BV,R] holds w_j r_j u_j. Where the sequence is `due`, the folded chunks are written back on the way.
    """
    acc = tl.zeros([BV, 2 * T], tl.float32)
    shared = tl.zeros([R, 2 * T], tl.float32)
    if due:
        for first in tl.range(0, K, BK):
            state = tl.load(at_state + first)
            x = tl.load(at_x + first, mask=twice[:, None], other=0.0)
            rows = tl.load(at_pending + first, mask=keep[:, None], other=0.0)
            acc = dot_pieces(state, tl.trans(x), acc, PIECES)
            shared = dot_rows(rows, tl.trans(x), shared)
            tl.store(at_state + first, fold(state, weighted, rows, decay))
    else:
        for first in tl.range(0, K, BK):
            state = tl.load(at_state + first)
            x = tl.load(at_x + first, mask=twice[:, None], other=0.0)
            rows = tl.load(at_pending + first, mask=keep[:, None], other=0.0)
            acc = dot_pieces(state, tl.trans(x), acc, PIECES)
            shared = dot_rows(rows, tl.trans(x), shared)
    return dot_float32(weighted, shared, acc * decay)


@triton.jit(do_not_specialize=["N", "P", "ROWS", "window"])
def delta_tree_apply(state, q, k, v, g, beta, mask, valid, a_log, dt_bias, g_out, work, o, u,
                     pending_k, pending_u, pending_g, path, count, window, N, P, ROWS, H, HV,
                     stride_qb, stride_qt, stride_kb, stride_kt, stride_vb, stride_vt, stride_gb, stride_gt,
                     K: tl.constexpr, V: tl.constexpr, T: tl.constexpr, LEVELS: tl.constexpr, R: tl.constexpr,
                     BV: tl.constexpr, BK: tl.constexpr, PIECES: tl.constexpr, FUSED: tl.constexpr,
                     MASK: tl.constexpr, VALID: tl.constexpr, GATE: tl.constexpr, PATH: tl.constexpr,
                     PDL: tl.constexpr):  # fmt: skip
    """Grid (V / BV, HV, B). o [B,N,HV,V], u [B,N,HV,V] float32; `state` [B,HV,V,K] is written where folds are due.

    FUSED: the N x N part is computed here too, else read from `work` (phase 1; with PDL this kernel starts beside it
    and waits only here). R = 0: nothing is pending; else R >= P, the length of a path through ROWS pending rows.
    """
    hv, b = tl.program_id(1), tl.program_id(2)
    head = hv // (HV // H)
    value = tl.program_id(0) * BV + tl.arange(0, BV)
    row = tl.arange(0, T)
    live = row < N
    at_value = (b * stride_vb + hv * V + row[None, :] * stride_vt) + value[:, None]
    values = tl.load(v + at_value, mask=live[None, :], other=0.0).to(tl.float32)
    at_state_rows = state + ((b.to(tl.int64) * HV + hv) * V + value[:, None]) * K
    at_state = at_state_rows + tl.arange(0, BK)[None, :]
    place = tl.arange(0, BK)[None, :] + head * K
    at_k = k + b.to(tl.int64) * stride_kb + place
    at_q = q + b.to(tl.int64) * stride_qb + place
    twin = tl.arange(0, 2 * T)[:, None]
    at_x = tl.where(twin % 2 == 0, at_k + (twin // 2) * stride_kt, at_q + (twin // 2) * stride_qt)
    twice = tl.arange(0, 2 * T) // 2 < N
    if FUSED:
        prefetch(at_state_rows + tl.arange(0, max(K // 32, 1))[None, :] * 32)
        seen, live, g_rows, beta_rows = tree_rows(
            g, beta, mask, valid, a_log, dt_bias, b, hv, N, stride_gb, stride_gt, T, MASK, VALID, GATE
        )
        if (GATE > 0) & (tl.program_id(0) == 0):
            tl.store(g_out + (b * N + row) * HV + hv, g_rows, mask=row < N)
        matrix, beta_rows, scaled_k, scaled_q = whole_solve(
            at_k + row[:, None] * stride_kt, at_q + row[:, None] * stride_qt, g_rows, beta_rows, seen, live,
            K, T, LEVELS, BK,
        )  # fmt: skip
    if R > 0:
        if not FUSED:
            prefetch(at_state_rows + tl.arange(0, max(K // 32, 1))[None, :] * 32)
        rows, keep, rates, decay, due = pending_rows(pending_g, path, count, window, b, hv, P, ROWS, HV, R, PATH)
        at_pending = pending_k + ((b * ROWS + rows.to(tl.int64)) * H * K)[:, None] + place
        at_u = pending_u + ((b * ROWS + rows.to(tl.int64)) * HV * V)[None, :] + hv * V + value[:, None]
        weighted = weighted_factors(at_pending, at_u, keep, rates, K, R, BK)
        acc = stream_pending(at_state, at_x, at_pending, keep, weighted, decay, due, twice, K, T, R, BV, BK, PIECES)
    else:
        acc = stream(at_state, at_x, twice, K, T, BV, BK, PIECES)
    if not FUSED:
        if PDL:
            tl.extra.cuda.gdc_wait()
        matrix, beta_rows, scaled_k, scaled_q, live = read_work(work + (b * HV + hv) * (2 * T * T + SCALARS * T), T)
    outputs, factors = tail(acc, values, beta_rows, scaled_k, scaled_q, live, matrix, BV, T)
    at_out = (b * N + row[None, :]).to(tl.int64) * (HV * V) + hv * V + value[:, None]
    tl.store(u + at_out, factors, mask=row[None, :] < N)
    tl.store(o + at_out, rounded(outputs, o), mask=row[None, :] < N)
