"""Attention of a tree's nodes over a cache that holds their rows already, masked by an int8 mask (a mixed kernel).

The query heads of a group share their KV head's products: packed row r is node r // G, head r % G of the group. Columns
go in tiles of BN with an online softmax (Milakov and Gimelshein, 2018). The mask has the polarity of Ascend's fused
attention: 1 is masked out.
"""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tree_attention(q, k_cache, v_cache, masked, out, scale, N, C, HKV, G: tl.constexpr, D: tl.constexpr,
                   BM: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """Grid (HKV, B). q, out [B,N,HKV G,D]; caches [B,C,HKV,D]; `masked` int8 [B,N,C]. C is a multiple of BN, BM >= N G.

    Rows beyond N G repeat the last one and are not stored: an address is in range even where a lane is masked. A row
    that sees nothing gives zeros.
    """
    head, batch = tl.program_id(0), tl.program_id(1)
    packed = tl.arange(0, BM)
    row = tl.minimum(packed, N * G - 1)
    node = row // G
    column, d = tl.arange(0, BN), tl.arange(0, D)
    at_q = ((batch * N + node) * HKV * G + head * G + row % G)[:, None] * D + d[None, :]
    queries = tl.load(q + at_q)
    top = tl.full([BM], -1e30, tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    for first in range(0, C, BN):
        at_row = ((batch * C + first + column) * HKV + head)[:, None] * D + d[None, :]
        scores = tl.dot(queries, tl.trans(tl.load(k_cache + at_row))) * scale
        hidden = tl.load(masked + (batch * N + node)[:, None] * C + first + column[None, :]) != 0
        scores = tl.where(hidden, -1e30, scores)
        now = tl.maximum(top, tl.max(scores, 1))
        weight = tl.where(hidden, 0.0, tl.exp(scores - now[:, None]))
        shrink = tl.exp(top - now)
        total = total * shrink + tl.sum(weight, 1)
        values = tl.load(v_cache + at_row)
        acc = acc * shrink[:, None] + tl.dot(weight.to(values.dtype), values)
        top = now
    result = acc / tl.where(total > 0.0, total, 1.0)[:, None]
    tl.store(out + at_q, result.to(queries.dtype), mask=(packed < N * G)[:, None])
