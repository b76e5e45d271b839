"""Both phases of the tree schedule in one program, for few sequences: what counts there is latency.

Every program of a value head makes the N x N part for itself, on multiprocessors that would have nothing to do, and
nothing is handed from launch to launch. All that a program needs is asked for before anything is looked at: one wait
for the memory, where two phases have three.
"""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.delta_rows import EPS, ancestors, gate_values
from specc.backends.triton.kernels.delta_solve import ask_rows, asked_all, decay_ratios, products, solve
from specc.backends.triton.kernels.delta_tree import load_state
from specc.backends.triton.kernels.dot import dot_float32, dot_pieces, rounded
from specc.backends.triton.kernels.linear_once import asked
from specc.backends.triton.kernels.region_math import follow


@triton.jit
def ask_state(state, value, K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr, BK: tl.constexpr):
    """Rows [BV] of a state [V,K] as a tuple of chunks [BV,BK]: loaded, not looked at."""
    parts = ()
    for first in tl.static_range(0, K, BK):
        column = tl.arange(0, BK)[None, :] + first
        parts = parts + (load_state(state + value[:, None] * K + column, value, column, K, V, BV, BK),)
    return parts


@triton.jit
def read_state(parts, xk, xq, T: tl.constexpr, PIECES: tl.constexpr):
    """(S x_k, S x_q) [BV,T] of rows in chunks."""
    read_k = tl.zeros([parts[0].shape[0], T], tl.float32)
    read_q = tl.zeros([parts[0].shape[0], T], tl.float32)
    for c in tl.static_range(len(parts)):
        part = asked(parts[c])
        read_k = dot_pieces(part, tl.trans(xk[c]), read_k, PIECES)
        read_q = dot_pieces(part, tl.trans(xq[c]), read_q, PIECES)
    return read_k, read_q


@triton.jit(do_not_specialize=["N"])
def delta_tree_whole(state, q, k, v, g, beta, mask, a_log, dt_bias, g_out, work, o, u, N, H, HV,
                     stride_qb, stride_qt, stride_kb, stride_kt, stride_vb, stride_vt, stride_gb, stride_gt,
                     stride_bb, stride_bt,
                     K: tl.constexpr, V: tl.constexpr, T: tl.constexpr, LEVELS: tl.constexpr, BV: tl.constexpr,
                     BK: tl.constexpr, W: tl.constexpr, PIECES: tl.constexpr, MASK: tl.constexpr, GATE: tl.constexpr,
                     PDL: tl.constexpr):  # fmt: skip
    """Grid (V / BV, HV, B). o [B,N,HV,V], u [B,N,HV,V] float32; operands as phase 1 and 2 have them; `work`: room for
    [4T,T] numbers per program."""
    if PDL:
        follow()
    hv, b = tl.program_id(1), tl.program_id(2)
    head = hv // (HV // H)
    row = tl.arange(0, T)
    live = row < N
    value = tl.program_id(0) * BV + tl.arange(0, BV)
    inside = live[None, :] & (value[:, None] < V)
    place = tl.arange(0, BK)[None, :] + head * K
    xk = ask_rows(k + b.to(tl.int64) * stride_kb + row[:, None] * stride_kt + place, live, K, BK)
    xq = ask_rows(q + b.to(tl.int64) * stride_qb + row[:, None] * stride_qt + place, live, K, BK)
    parts = ask_state(state + (b.to(tl.int64) * HV + hv) * (V * K), value, K, V, BV, BK)
    if GATE > 0:
        rate, bias = tl.load(a_log + hv).to(tl.float32), tl.load(dt_bias + hv).to(tl.float32)
    g_rows = tl.load(g + b * stride_gb + row * stride_gt + hv, mask=live, other=0.0)
    beta_rows = tl.load(beta + b * stride_bb + row * stride_bt + hv, mask=live, other=0.0)
    at_value = (b * stride_vb + hv * V + row[None, :] * stride_vt) + value[:, None]
    values = tl.load(v + at_value, mask=inside, other=0.0)
    seen = ancestors(mask, b, N, T, MASK).to(tl.int32)
    xk, xq = asked_all(xk), asked_all(xq)
    gram, cross, square_k, square_q = products(xk, xq, T, False)
    read_k, read_q = read_state(parts, xk, xq, T, PIECES)
    seen = asked(seen) != 0
    g_rows, beta_rows = asked(g_rows).to(tl.float32), asked(beta_rows).to(tl.float32)
    if GATE > 0:
        g_rows, beta_rows = gate_values(g_rows, beta_rows, rate, bias, GATE)
        tl.store(g_out + (b * N + row) * HV + hv, g_rows, mask=live & (tl.program_id(0) == 0))
    g_rows = tl.where(live, g_rows, 0.0)
    beta_rows = tl.where(live, beta_rows, 0.0)
    norm_k, norm_q = tl.rsqrt(square_k + EPS), tl.rsqrt(square_q + EPS) * (K**-0.5)
    ratio = decay_ratios(seen, g_rows, T) * norm_k[None, :]
    lower = tl.where(row[None, :] < row[:, None], (beta_rows * norm_k)[:, None] * ratio * gram, 0.0)
    decay = tl.exp(tl.sum(tl.where(seen, g_rows[None, :], 0.0), 1))
    rest = beta_rows[None, :] * asked(values).to(tl.float32) - (beta_rows * decay * norm_k)[None, :] * read_k
    outer_read = (decay * norm_q)[None, :] * read_q
    work += ((b * HV + hv) * tl.num_programs(0) + tl.program_id(0)) * (4 * T * T)
    solve(lower, norm_q[:, None] * ratio * cross, work, work + 2 * T * T, T, LEVELS, W)
    tl.debug_barrier()
    matrix = tl.load(work + row[:, None] + tl.arange(0, 2 * T)[None, :] * T)
    both = dot_float32(rest, matrix, tl.zeros([BV, 2 * T], tl.float32))
    factors, inner = tl.split(both.reshape(BV, T, 2))
    at = (b * N + row[None, :]).to(tl.int64) * (HV * V) + hv * V + value[:, None]
    tl.store(u + at, factors, mask=inside)
    tl.store(o + at, rounded(outer_read + inner, o), mask=inside)
