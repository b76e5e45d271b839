"""The N x N part of the tree schedule: it does not depend on the state or the value tile (design 04, "Tree, UT form").

A_ij = beta_i e^{G_i - G_j} (k_i . k_j) over proper ancestors j of i, P_ij = e^{G_i - G_j} (q_i . k_j) over ancestors
and self. With X = (I + A)^-1 and R = beta v - beta e^G (K S^T), U = X R and O = e^G (Q S^T) + P U. The kernels apply
[X; P X] to R in one product; rows come interleaved (X_0, (P X)_0, X_1, …), so that pairs of columns split in registers.
"""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.delta_rows import EPS, ancestors, gates, live_rows
from specc.backends.triton.kernels.dot import dot_float32, dot_pieces, dot_rows

SCALARS = tl.constexpr(4)
"""Rows of T scalars behind the matrix in the workspace: beta, beta e^G r_k, e^G r_q, and 1 where the row is live."""


@triton.jit
def unit_lower_inverse(a, T: tl.constexpr, LEVELS: tl.constexpr):
    """(I + A)^-1 of a strictly lower triangular [T,T] by block recursion, T = 2^LEVELS."""
    i = tl.arange(0, T)[:, None]
    j = tl.arange(0, T)[None, :]
    inverse = tl.where(i == j, 1.0, 0.0) - tl.where(i // 2 == j // 2, a, 0.0)
    for level in tl.range(1, LEVELS, num_stages=1):
        half = 1 << level
        pairs = (i // (2 * half) == j // (2 * half)) & ((i // half) % 2 == 1) & ((j // half) % 2 == 0)
        right = dot_float32(tl.where(pairs, a, 0.0), inverse, tl.zeros([T, T], tl.float32))
        inverse = inverse - dot_float32(inverse, right, tl.zeros([T, T], tl.float32))
    return inverse


@triton.jit
def products(at_k, at_q, live, K: tl.constexpr, T: tl.constexpr, BK: tl.constexpr):
    """(X_k X_k^T, X_q X_k^T [T,T], sums of squares of the rows [T]); at_k, at_q [T,BK] point to the first columns."""
    gram = tl.zeros([T, T], tl.float32)
    cross = tl.zeros([T, T], tl.float32)
    square_k = tl.zeros([T], tl.float32)
    square_q = tl.zeros([T], tl.float32)
    for first in tl.range(0, K, BK):
        xk = tl.load(at_k + first, mask=live[:, None], other=0.0)
        xq = tl.load(at_q + first, mask=live[:, None], other=0.0)
        gram = dot_rows(xk, tl.trans(xk), gram)
        cross = dot_rows(xq, tl.trans(xk), cross)
        square_k += tl.sum(xk.to(tl.float32) * xk.to(tl.float32), 1)
        square_q += tl.sum(xq.to(tl.float32) * xq.to(tl.float32), 1)
    return gram, cross, square_k, square_q


@triton.jit
def norms(square_k, square_q, K: tl.constexpr):
    """Factors of the l2 norms from the sums of squares; that of q with K^-1/2."""
    return tl.rsqrt(square_k + EPS), tl.rsqrt(square_q + EPS) * (K**-0.5)


@triton.jit
def decay_ratios(seen, g, T: tl.constexpr):
    """e^{G_i - G_j} [T,T] over ancestors and self, 0 elsewhere.

    The difference is the sum of g over the nodes of i's path that are not on j's: nothing cancels, so that the ratio
    keeps its digits for long decays, and for siblings it is never positive, so that nothing overflows.
    """
    others = tl.trans(tl.where(seen, 0.0, 1.0)).to(tl.bfloat16)
    between = dot_pieces(tl.where(seen, g[None, :], 0.0), others, tl.zeros([T, T], tl.float32), 3)
    return tl.exp(tl.where(seen, between, float("-inf")))


@triton.jit
def solve(gram, cross, norm_k, norm_q, g, beta, seen, T: tl.constexpr, LEVELS: tl.constexpr):
    """(matrix [T,2T], e^G [T]) from gram = X_k X_k^T, cross = X_q X_k^T [T,T] of raw rows and their norms.

    Column 2i of the matrix is row i of (I + A)^-1, column 2i + 1 row i of P (I + A)^-1.
    """
    i = tl.arange(0, T)[:, None]
    j = tl.arange(0, T)[None, :]
    ratio = decay_ratios(seen, g, T) * norm_k[None, :]
    lower = tl.where(seen & (j < i), (beta * norm_k)[:, None] * ratio * gram, 0.0)
    inverse = unit_lower_inverse(lower, T, LEVELS)
    outer = tl.where(seen, norm_q[:, None] * ratio * cross, 0.0)
    both = tl.join(inverse, dot_float32(outer, inverse, tl.zeros([T, T], tl.float32)))
    total = tl.sum(tl.where(seen, g[None, :], 0.0), 1)
    return tl.permute(both, (1, 0, 2)).reshape(T, 2 * T), tl.exp(total)


@triton.jit
def tree_rows(g, beta, mask, valid, a_log, dt_bias, b, hv, N, stride_gb, stride_gt,
              T: tl.constexpr, MASK: tl.constexpr, VALID: tl.constexpr, GATE: tl.constexpr):  # fmt: skip
    """(seen [T,T], live, g, beta [T]) of one sequence and value head; what is not live sees and is seen by nothing."""
    row = tl.arange(0, T)
    live = live_rows(valid, b, N, T, VALID)
    at = b * stride_gb + row * stride_gt + hv
    g = tl.load(g + at, mask=live, other=0.0)
    beta = tl.load(beta + at, mask=live, other=0.0)
    g, beta = gates(g, beta, a_log, dt_bias, hv, GATE)
    seen = ancestors(mask, b, N, T, MASK) & live[:, None] & live[None, :]
    return seen, live, tl.where(live, g, 0.0), tl.where(live, beta, 0.0)


@triton.jit(do_not_specialize=["N"])
def delta_tree_prepare(q, k, g, beta, mask, valid, a_log, dt_bias, g_out, work, N, H, HV,
                       stride_qb, stride_qt, stride_kb, stride_kt, stride_gb, stride_gt,
                       K: tl.constexpr, T: tl.constexpr, LEVELS: tl.constexpr, BK: tl.constexpr, MASK: tl.constexpr,
                       VALID: tl.constexpr, GATE: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """Phase 1, one program per (value head, sequence): the matrix [T,2T] and four rows [T] of scalars into `work`.

    Grid (HV, B). q, k [B,N,H,K] and g, beta [B,N,HV] with strides for sequence and node; `g_out` [B,N,HV] gets g
    where the gates are computed here.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    hv, b = tl.program_id(0), tl.program_id(1)
    row = tl.arange(0, T)
    seen, live, g_rows, beta_rows = tree_rows(
        g, beta, mask, valid, a_log, dt_bias, b, hv, N, stride_gb, stride_gt, T, MASK, VALID, GATE
    )
    if GATE > 0:
        tl.store(g_out + (b * N + row) * HV + hv, g_rows, mask=row < N)
    place = tl.arange(0, BK)[None, :] + hv // (HV // H) * K
    gram, cross, square_k, square_q = products(
        k + b.to(tl.int64) * stride_kb + row[:, None] * stride_kt + place,
        q + b.to(tl.int64) * stride_qb + row[:, None] * stride_qt + place, live, K, T, BK,
    )  # fmt: skip
    norm_k, norm_q = norms(square_k, square_q, K)
    matrix, decay = solve(gram, cross, norm_k, norm_q, g_rows, beta_rows, seen, T, LEVELS)
    work += (b * HV + hv) * (2 * T * T + SCALARS * T)
    tl.store(work + row[:, None] * (2 * T) + tl.arange(0, 2 * T)[None, :], matrix)
    work += 2 * T * T
    tl.store(work + row, beta_rows)
    tl.store(work + T + row, beta_rows * decay * norm_k)
    tl.store(work + 2 * T + row, decay * norm_q)
    tl.store(work + 3 * T + row, tl.where(live, 1.0, 0.0))
