"""Joining the parts of an attention within the launch that makes them: by the last program of a tile to arrive."""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.dot import rounded


@triton.jit
def merge_rows(partial, lse, out, place, row, shown, live, S, D: tl.constexpr, DP: tl.constexpr, SP: tl.constexpr,
               STEP: tl.constexpr):  # fmt: skip
    """out[row] from the first `live` of S parts of packed rows `place` [MR] (int64), STEP parts at a time, in order.

    Others have written the parts: they are read past the L1. Which program joins them changes no bit.
    """
    MR: tl.constexpr = place.shape[0]
    d = tl.arange(0, DP)
    part = tl.arange(0, SP)
    levels = lse + place[None, :] * S
    every = (part < live)[:, None] & shown[None, :]
    top = tl.max(tl.load(levels + part[:, None], mask=every, other=float("-inf"), cache_modifier=".cg"), 0)
    top = tl.where(top == float("-inf"), 0.0, top)
    total, acc = tl.zeros([STEP, MR], tl.float32), tl.zeros([MR, DP], tl.float32)
    for begin in tl.range(0, live, STEP):
        some = begin + tl.arange(0, STEP)
        here = (some < live)[:, None] & shown[None, :]
        level = tl.load(levels + some[:, None], mask=here, other=float("-inf"), cache_modifier=".cg")
        at = (place[None, :] * S + some[:, None]) * D
        rows = tl.load(partial + at[:, :, None] + d[None, None, :], mask=here[:, :, None] & (d < D)[None, None, :],
                       other=0.0, cache_modifier=".cg")  # fmt: skip
        share = tl.exp2(level - top[None, :])
        total += share
        acc += tl.sum(rows * share[:, :, None], 0)
    whole = tl.sum(total, 0)
    result = acc * (1.0 / tl.where(whole > 0, whole, 1.0))[:, None]
    tl.store(out + row[:, None] * D + d[None, :], rounded(result, out), mask=shown[:, None] & (d < D)[None, :])


@triton.jit
def leave_part(acc, total, top, partial, lse, out, arrived, wide, head, tile, part, live, M, HKV, S, tiles,
               G: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, MR: tl.constexpr, SP: tl.constexpr,
               STEP: tl.constexpr, JOIN: tl.constexpr):  # fmt: skip
    """Writes what a program has found for its part of the columns: acc [BM,DP] and the sum of weights total [BM] (0:
    nothing seen), both relative to 2^top [BM].

    JOIN 0: all of `out`, there is one part. 1: the last of the `live` programs of a tile to arrive joins them; arrived
    int32 [B,HKV,tiles] is 0 before and after each launch; MR: rows of a tile that exist, at most. 2: `attention_merge`
    joins all S.
    """
    DP: tl.constexpr = acc.shape[1]
    d = tl.arange(0, DP)
    packed = tile * BM + tl.arange(0, BM)
    token = packed // G
    seen = total > 0
    total = tl.where(seen, total, 1.0)
    result = acc * (1.0 / total)[:, None]
    whole = (token < M)[:, None] & (d < D)[None, :]
    alone = JOIN == 0
    if JOIN == 1:
        alone = live == 1
    if alone:
        at = (wide * M + token) * HKV * G + head * G + packed % G
        mine = whole
        if JOIN == 1:
            mine = whole & (part == 0)
        tl.store(out + at[:, None] * D + d[None, :], rounded(result, out), mask=mine)
    else:
        group = wide * HKV + head
        at = (group * tiles * BM + packed) * S + part
        tl.store(lse + at, tl.where(seen, top + tl.log2(total), float("-inf")), mask=token < M)
        # Also where it has seen nothing, which is 0: the last program does not look before it loads.
        tl.store(partial + at[:, None] * D + d[None, :], result, mask=whole)
        if JOIN == 1:
            tl.debug_barrier()
            counter = arrived + group * tiles + tile
            if part < live:  # noqa: SIM102 - Triton's `and` evaluates both
                if tl.atomic_add(counter, 1, sem="acq_rel") == live - 1:
                    some = tile * BM + tl.arange(0, MR)
                    row = (wide * M + some // G) * HKV * G + head * G + some % G
                    place = group * tiles * BM + some
                    merge_rows(partial, lse, out, place, row, some // G < M, live, S, D, DP, SP, STEP)
                    tl.store(counter, 0)
