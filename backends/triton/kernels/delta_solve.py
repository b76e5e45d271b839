"""The N x N part of the tree schedule: it does not depend on the state or the value tile (design 04, "Tree, UT form").

A_ij = beta_i e^{G_i - G_j} (k_i . k_j) over proper ancestors j of i, P_ij = e^{G_i - G_j} (q_i . k_j) over ancestors
and self. With X = (I + A)^-1 and R = beta v - beta e^G (K S^T), U = X R and O = e^G (Q S^T) + P U. The second phase
applies [X; P X] to R in one product; rows come interleaved (X_0, (P X)_0, X_1, …), so that pairs of columns split in
registers. X comes by forward substitution.

A program does little and everything waits for what stands before it: loads start together, and a substitution in
registers replaces products of small matrices, each of which costs a microsecond with its exchanges of operands.
"""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.delta_rows import EPS, ancestors, gate_values, touch
from specc.backends.triton.kernels.dot import dot_float32, dot_pieces, dot_rows, dot_vector
from specc.backends.triton.kernels.linear_once import asked
from specc.backends.triton.kernels.region_math import follow

SCALARS = tl.constexpr(3)
"""Rows of T scalars behind the matrix in the workspace: beta, beta e^G r_k, e^G r_q."""


@triton.jit
def work_size(T: tl.constexpr):
    """Floats per sequence and value head: the matrix, the scalars, and scratch."""
    return 4 * T * T + SCALARS * T


@triton.jit
def four(row, place):
    """Four neighbouring numbers at row + place [W,1] as tensors [W]: one load of 16 bytes for every thread."""
    W: tl.constexpr = place.shape[0]
    even, odd = tl.split(tl.load(row + place + tl.arange(0, 4)[None, :]).reshape(W, 2, 2))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def substitute(scratch, work, T: tl.constexpr, W: tl.constexpr):
    """The diagonal blocks of 16 of X = (I + A)^-1 into the even rows of `work` [2T,T], column by column in threads.
    W >= T: the threads there are.

    `scratch` holds rows of A and P by turns. Row i of a block is e_i - sum_j A_ij X_j: no two threads exchange
    anything, the numbers A_ij come from memory for all of a block's columns alike and wait for nothing.
    """
    column = tl.arange(0, W)
    place = ((column % T) // 16)[:, None] * (16 * 2 * T + 16)
    out = work + (column % T) // 16 * (16 * 2 * T) + column
    rows = ()
    for i in tl.static_range(16):
        x = tl.where(column % 16 == i, 1.0, 0.0)
        for first in tl.static_range(0, i, 4):
            a = four(scratch + 2 * i * T + first, place)
            for j in tl.static_range(first, min(first + 4, i)):
                x = tl.fma(-a[j - first], rows[j], x)
        rows = rows + (x,)  # the compiler knows no other way
        tl.store(out + 2 * i * T, x, mask=column < T)


@triton.jit
def square(a, b, T: tl.constexpr):
    """a b of [T,T] float32."""
    if T <= 32:
        return dot_vector(a, b, tl.zeros([T, T], tl.float32))
    else:
        return dot_float32(a, b, tl.zeros([T, T], tl.float32))


@triton.jit
def substitute_all(scratch, work, T: tl.constexpr, W: tl.constexpr):
    """All of X and of P X into `work`, as `substitute` and `merge`: W / T threads go through the same column of X, each
    for its share of the rows of P X.

    `scratch` holds columns of -A and rows of P by turns. A row of X that is done goes into all later ones at once: they
    do not wait for each other, where a row's own sum would be a chain of multiply-adds.
    """
    PARTS: tl.constexpr = W // T
    thread = tl.arange(0, W)
    column, part = thread % T, thread // T
    same = (thread // W)[:, None] * 16
    rows = ()
    for i in tl.static_range(T):
        rows = rows + (tl.where(column == i, 1.0, 0.0),)  # the compiler knows no other way
    for j in tl.static_range(T - 1):
        after = ()
        for i in tl.static_range(T):
            if i <= j:
                after = after + (rows[i],)
            else:
                if i == j + 1 or i % 4 == 0:
                    a = four(scratch + 2 * j * T + i // 4 * 4, same)
                after = after + (tl.fma(a[i % 4], rows[j], rows[i]),)
        rows = after
    for i in tl.static_range(T):
        tl.store(work + 2 * i * T + column, rows[i], mask=thread < T)
    at = work + T + part * (2 * T) + column
    for block in tl.static_range(0, T, PARTS):
        outer = tl.zeros([W], tl.float32)
        for first in tl.static_range(0, min(block + PARTS, T), 4):
            p = four(scratch + (2 * block + 1) * T + first, (part * (2 * T))[:, None])
            for j in tl.static_range(first, first + 4):
                outer = tl.fma(p[j - first], rows[j], outer)
        tl.store(at + 2 * block * T, outer, mask=block + part < T)


@triton.jit
def merge(scratch, work, T: tl.constexpr, LEVELS: tl.constexpr):
    """All of X and P X from the diagonal blocks of 16 of X, T = 2^LEVELS.

    X - X (A o M) X, M the pairs with i in the lower and j in the upper half of the same block, doubles the blocks.
    """
    i = tl.arange(0, T)[:, None]
    j = tl.arange(0, T)[None, :]
    at = i * (2 * T) + j
    inverse = tl.load(work + at, mask=i // 16 == j // 16, other=0.0)
    for level in tl.range(4, LEVELS, num_stages=1):
        pairs = (i >> (level + 1) == j >> (level + 1)) & ((i >> level) % 2 == 1) & ((j >> level) % 2 == 0)
        inverse -= square(inverse, square(tl.load(scratch + at, mask=pairs, other=0.0), inverse, T), T)
    tl.debug_barrier()
    tl.store(work + at, inverse)
    tl.store(work + T + at, square(tl.load(scratch + T + at), inverse, T))


@triton.jit
def solve(lower, outer, work, scratch, T: tl.constexpr, LEVELS: tl.constexpr, W: tl.constexpr):
    """Rows of X = (I + A)^-1 and of P X by turns into `work` [2T,T], from A and P [T,T]."""
    i, j = tl.arange(0, T)[:, None], tl.arange(0, T)[None, :]
    at = i * (2 * T) + j
    if T <= 32:
        tl.store(scratch + j * (2 * T) + i, -lower)
    else:
        tl.store(scratch + at, lower)
    tl.store(scratch + T + at, outer)
    tl.debug_barrier()
    if T <= 32:
        touch(scratch + tl.arange(0, T * T // 4) * 8)
        substitute_all(scratch, work, T, W)
    else:
        substitute(scratch, work, T, W)
        tl.debug_barrier()
        merge(scratch, work, T, LEVELS)


@triton.jit
def load_chunk(at, live, column, K: tl.constexpr, BK: tl.constexpr):
    """Rows [.., BK] from their first columns on; zeros where not `live` and beyond K."""
    if K % BK == 0:
        return tl.load(at, mask=live[:, None], other=0.0)
    else:
        return tl.load(at, mask=live[:, None] & (column < K), other=0.0)


@triton.jit
def squares(x):
    """Sums of squares of rows."""
    return tl.sum(x.to(tl.float32) * x.to(tl.float32), 1)


@triton.jit
def ask_rows(at, live, K: tl.constexpr, BK: tl.constexpr):
    """Rows of K columns from their first pointers on, as a tuple of chunks [..,BK]: loaded, not looked at."""
    parts = ()
    for first in tl.static_range(0, K, BK):
        column = tl.arange(0, BK)[None, :] + first
        parts = parts + (load_chunk(at + first, live, column, K, BK),)  # the compiler knows no other way
    return parts


@triton.jit
def asked_all(parts):
    """`asked` for every part: they travel together, whatever is done with the first of them."""
    found = ()
    for c in tl.static_range(len(parts)):
        found = found + (asked(parts[c]),)
    return found


@triton.jit
def diagonal(x, T: tl.constexpr):
    """[T] of [T,T]."""
    row = tl.arange(0, T)
    return tl.sum(tl.where(row[:, None] == row[None, :], x, 0.0), 1)


@triton.jit
def products(xk, xq, T: tl.constexpr, TENSOR: tl.constexpr):
    """(X_k X_k^T, X_q X_k^T [T,T], sums of squares of the rows [T]) of rows in chunks.

    TENSOR: the sums are diagonals, of X_k X_k^T and of a third product, which takes a third less instructions in all.
    """
    gram = tl.zeros([T, T], tl.float32)
    cross = tl.zeros([T, T], tl.float32)
    gram_q = tl.zeros([T, T], tl.float32)
    square_k = tl.zeros([T], tl.float32)
    square_q = tl.zeros([T], tl.float32)
    for c in tl.static_range(len(xk)):
        gram = dot_rows(xk[c], tl.trans(xk[c]), gram)
        cross = dot_rows(xq[c], tl.trans(xk[c]), cross)
        if TENSOR:
            gram_q = dot_rows(xq[c], tl.trans(xq[c]), gram_q)
        else:
            square_k += squares(xk[c])
            square_q += squares(xq[c])
    if TENSOR:
        square_k, square_q = diagonal(gram, T), diagonal(gram_q, T)
    return gram, cross, square_k, square_q


@triton.jit
def decay_ratios(seen, g, T: tl.constexpr):
    """e^{G_i - G_j} [T,T] over ancestors and self, 0 elsewhere.

    The difference is the sum of g over the nodes of i's path that are not on j's: nothing cancels, so that the ratio
    keeps its digits for long decays, and for siblings it is never positive, so that nothing overflows.
    """
    others = tl.trans(tl.where(seen, 0.0, 1.0)).to(tl.bfloat16)
    between = dot_pieces(tl.where(seen, g[None, :], 0.0), others, tl.zeros([T, T], tl.float32), 3)
    return tl.exp(tl.where(seen, between, float("-inf")))


@triton.jit(do_not_specialize=["N"])
def delta_tree_prepare(q, k, g, beta, mask, a_log, dt_bias, g_out, work, N, H, HV, stride_qb, stride_qt, stride_kb,
                       stride_kt, stride_gb, stride_gt, stride_bb, stride_bt,
                       K: tl.constexpr, T: tl.constexpr, LEVELS: tl.constexpr, BK: tl.constexpr, W: tl.constexpr,
                       MASK: tl.constexpr, GATE: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """Phase 1, one program per (value head, sequence): the matrix [2T,T] and its scalars into `work`. Grid (HV, B).

    q, k [B,N,H,K] and g, beta [B,N,HV] with strides for sequence and node; `g_out` [B,N,HV] gets g where the gates are
    computed here.
    """
    if PDL:
        # Phase 2 reads its own operands before it waits: they are complete when it starts.
        follow()
    hv, b = tl.program_id(0), tl.program_id(1)
    row = tl.arange(0, T)
    live = row < N
    place = tl.arange(0, BK)[None, :] + hv // (HV // H) * K
    # Whatever is moved between threads is waited for where it stands: all loads come first, the mask's as the last.
    xk = ask_rows(k + b.to(tl.int64) * stride_kb + row[:, None] * stride_kt + place, live, K, BK)
    xq = ask_rows(q + b.to(tl.int64) * stride_qb + row[:, None] * stride_qt + place, live, K, BK)
    if GATE > 0:
        rate, bias = tl.load(a_log + hv).to(tl.float32), tl.load(dt_bias + hv).to(tl.float32)
    g_rows = tl.load(g + b * stride_gb + row * stride_gt + hv, mask=live, other=0.0)
    beta_rows = tl.load(beta + b * stride_bb + row * stride_bt + hv, mask=live, other=0.0)
    seen = ancestors(mask, b, N, T, MASK).to(tl.int32)
    gram, cross, square_k, square_q = products(asked_all(xk), asked_all(xq), T, xk[0].dtype == tl.bfloat16)
    seen = asked(seen) != 0
    g_rows, beta_rows = asked(g_rows).to(tl.float32), asked(beta_rows).to(tl.float32)
    if GATE > 0:
        g_rows, beta_rows = gate_values(g_rows, beta_rows, rate, bias, GATE)
    g_rows = tl.where(live, g_rows, 0.0)
    beta_rows = tl.where(live, beta_rows, 0.0)
    norm_k, norm_q = tl.rsqrt(square_k + EPS), tl.rsqrt(square_q + EPS) * (K**-0.5)
    ratio = decay_ratios(seen, g_rows, T) * norm_k[None, :]
    lower = tl.where(row[None, :] < row[:, None], (beta_rows * norm_k)[:, None] * ratio * gram, 0.0)
    work += (b * HV + hv) * work_size(T)
    solve(lower, norm_q[:, None] * ratio * cross, work, work + work_size(T) - 2 * T * T, T, LEVELS, W)
    decay = tl.exp(tl.sum(tl.where(seen, g_rows[None, :], 0.0), 1))
    work += 2 * T * T
    tl.store(work + row, beta_rows)
    tl.store(work + T + row, beta_rows * decay * norm_k)
    tl.store(work + 2 * T + row, decay * norm_q)
    if GATE > 0:
        tl.store(g_out + (b * N + row) * HV + hv, g_rows, mask=live)
