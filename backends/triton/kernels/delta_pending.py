"""Factors that wait to be folded into a state: how kernels read them, and the fold itself as one rank-n update.

S* = e^G S + sum_j e^{G - G_j} u_j k_j^T over the rows that count, in the order of the path (design 04, "commit").
"""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.dot import dot_pieces


@triton.jit
def path_rows(path, count, b, P, ROWS, R: tl.constexpr, PATH: tl.constexpr):
    """(rows [R], keep [R] bool): a path's rows, held inside [0, ROWS), and which of them count. They do not wait for
    it."""
    j = tl.arange(0, R)
    keep = (j < count) & (j < P)
    rows = j
    if PATH:
        rows = tl.load(path + b * P + j, mask=j < P, other=0).to(tl.int32)
    return tl.minimum(tl.maximum(rows, 0), ROWS - 1), keep


@triton.jit
def left_over(g, R: tl.constexpr):
    """(e^{G - G_j} [R], e^G): the decay behind each row, as sums of what comes after it (nothing cancels)."""
    after = tl.arange(0, R)[None, :] > tl.arange(0, R)[:, None]
    return tl.exp(tl.sum(tl.where(after, g[None, :], 0.0), 1)), tl.exp(tl.sum(g, 0))


@triton.jit
def fold(state, weighted, rows, decay):
    """e^G S + (w r u) x^T for one chunk: state [BV,BK], weighted [BV,R], rows [R,BK]."""
    return dot_pieces(weighted, rows, state * decay, 3)
