"""What a program leaves of an attention: all of it, or a part that `attention_merge` joins with the others."""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.dot import rounded


@triton.jit
def leave_part(acc, total, top, partial, lse, out, wide, head, tile, part, M, HKV, S, tiles, G: tl.constexpr,
               D: tl.constexpr, BM: tl.constexpr, SPLIT: tl.constexpr):  # fmt: skip
    """Writes what a program has found for its part of the columns: acc [BM,DP] and the sum of weights total [BM] (0:
    nothing seen), both relative to 2^top [BM].

    Without SPLIT there is one part, and it is all of `out`.
    """
    DP: tl.constexpr = acc.shape[1]
    d = tl.arange(0, DP)
    packed = tile * BM + tl.arange(0, BM)
    token = packed // G
    seen = total > 0
    total = tl.where(seen, total, 1.0)
    result = acc * (1.0 / total)[:, None]
    inside = (d < D)[None, :]
    if SPLIT:
        at = ((wide * HKV + head) * tiles * BM + packed) * S + part
        tl.store(lse + at, tl.where(seen, top + tl.log2(total), float("-inf")), mask=token < M)
        tl.store(partial + at[:, None] * D + d[None, :], result, mask=(seen & (token < M))[:, None] & inside)
    else:
        at = (wide * M + token) * HKV * G + head * G + packed % G
        tl.store(out + at[:, None] * D + d[None, :], rounded(result, out), mask=(token < M)[:, None] & inside)
