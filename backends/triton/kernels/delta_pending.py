"""Factors that wait to be folded into a state: how kernels read them, and the fold itself as one rank-n update.

S* = e^G S + sum_j e^{G - G_j} u_j k_j^T over the rows that count, in the order of the path (design 04, "commit").
"""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.delta_rows import EPS
from specc.backends.triton.kernels.dot import dot_pieces


@triton.jit
def path_rows(path, count, b, P, ROWS, R: tl.constexpr, PATH: tl.constexpr):
    """(rows [R], keep [R] bool): the rows of a path that count, held inside [0, ROWS)."""
    j = tl.arange(0, R)
    keep = (j < count) & (j < P)
    rows = tl.where(keep, j, 0)
    if PATH:
        rows = tl.load(path + b * P + j, mask=keep, other=0).to(tl.int32)
    return tl.minimum(tl.maximum(rows, 0), ROWS - 1), keep


@triton.jit
def left_over(g, R: tl.constexpr):
    """(e^{G - G_j} [R], e^G): the decay behind each row, as sums of what comes after it (nothing cancels)."""
    after = tl.arange(0, R)[None, :] > tl.arange(0, R)[:, None]
    return tl.exp(tl.sum(tl.where(after, g[None, :], 0.0), 1)), tl.exp(tl.sum(g, 0))


@triton.jit
def pending_rows(pending_g, path, count, window, b, hv, P, ROWS, HV, R: tl.constexpr, PATH: tl.constexpr):
    """(rows, keep, e^{G - G_j} [R], e^G, due) of a sequence's pending factors."""
    waiting = tl.load(count + b)
    rows, keep = path_rows(path, waiting, b, P, ROWS, R, PATH)
    g = tl.load(pending_g + (b * ROWS + rows) * HV + hv, mask=keep, other=0.0)
    rates, decay = left_over(g, R)
    return rows, keep, rates, decay, waiting >= tl.maximum(window, 1)


@triton.jit
def weighted_factors(at_x, at_u, keep, rates, K: tl.constexpr, R: tl.constexpr, BK: tl.constexpr):
    """e^{G - G_j} r_j u_j [BV,R]; at_x [R,BK] points to the raw keys' first columns, at_u [BV,R] to u."""
    square = tl.zeros([R], tl.float32)
    for first in tl.static_range(0, K, BK):
        x = tl.load(at_x + first, mask=keep[:, None], other=0.0).to(tl.float32)
        square += tl.sum(x * x, 1)
    u = tl.load(at_u, mask=keep[None, :], other=0.0)
    return u * (rates * tl.rsqrt(square + EPS))[None, :]


@triton.jit
def fold(state, weighted, rows, decay):
    """e^G S + (w r u) x^T for one chunk: state [BV,BK], weighted [BV,R], rows [R,BK]."""
    return dot_pieces(weighted, rows, state * decay, 3)
