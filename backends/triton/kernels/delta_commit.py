"""Commit of an accepted path from its factors, all layers in one launch."""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.delta_pending import fold, left_over
from specc.backends.triton.kernels.delta_rows import EPS
from specc.backends.triton.kernels.delta_solve import ask_rows, load_chunk, squares
from specc.backends.triton.kernels.delta_tile import load_tile, store_tile
from specc.backends.triton.kernels.delta_tree import load_state, store_state
from specc.backends.triton.kernels.delta_walk import apply_pending
from specc.backends.triton.kernels.linear_once import asked


@triton.jit(do_not_specialize=["N", "P", "PATHS"])
def delta_commit_steps(state, after, k, u, g, path, count, N, P, PATHS, H, HV,
                       K: tl.constexpr, V: tl.constexpr, W: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
                       E: tl.constexpr, COPY: tl.constexpr):  # fmt: skip
    """Factors one by one, bit for bit what the rule did. Grid (V / (R W), HV, Z).

    State, after [Z,HV,V,K]; k [Z,N,H,K], u [Z,N,HV,V], g [Z,N,HV]; sequence z of all layers has the path and count of
    z modulo PATHS. COPY: `after` is not `state`, so what does not change is written too.
    """
    hv, z = tl.program_id(1), tl.program_id(2)
    turn = z % PATHS
    if (tl.load(count + turn) > 0) | COPY:
        first = tl.program_id(0) * (R * W)
        offset = (z.to(tl.int64) * HV + hv) * (V * K)
        rows = z.to(tl.int64) * N
        tile = apply_pending(
            load_tile(state + offset, first, K, V, W, R, C, E), k + rows * H * K, u + rows * HV * V, g + rows * HV,
            path + turn * P, count + turn, 0, hv, hv // (HV // H), first, P, N, H, HV, K, V, W, R, C, E, True,
        )  # fmt: skip
        store_tile(after + offset, tile, first, K, V, W, R, C, E)


@triton.jit(do_not_specialize=["N", "P", "PATHS", "LANES"])
def delta_commit_rank_n(state, after, k, u, g, path, count, N, P, PATHS, LANES, H, HV,
                        K: tl.constexpr, V: tl.constexpr, R: tl.constexpr, BV: tl.constexpr, BK: tl.constexpr,
                        STAGES: tl.constexpr, COPY: tl.constexpr):  # fmt: skip
    """All factors as one update. As `delta_commit_steps`; `after` [Z LANES,HV,V,K] may hold several states per
    sequence (LANES paths each, for the states of all nodes)."""
    hv, z = tl.program_id(1), tl.program_id(2)
    turn, source = z % PATHS, z // LANES
    j = tl.arange(0, R)
    waiting = tl.load(count + turn)
    rows = tl.load(path + turn * P + j, mask=j < P, other=0).to(tl.int32)  # does not wait for the count
    if (waiting > 0) | COPY:
        keep = (j < waiting) & (j < P)
        at_row = source.to(tl.int64) * N + tl.minimum(tl.maximum(rows, 0), N - 1)
        value = tl.program_id(0) * BV + tl.arange(0, BV)
        at_x = k + (at_row * H + hv // (HV // H))[:, None] * K + tl.arange(0, BK)[None, :]
        parts = ask_rows(at_x, keep, K, BK)
        g_rows = tl.load(g + at_row * HV + hv, mask=keep, other=0.0)
        at_u = u + (at_row * HV * V)[None, :] + hv * V + value[:, None]
        factors = tl.load(at_u, mask=keep[None, :] & (value[:, None] < V), other=0.0)
        square = tl.zeros([R], tl.float32)
        for c in tl.static_range(len(parts)):
            square += squares(asked(parts[c]))
        rates, decay = left_over(asked(g_rows).to(tl.float32), R)
        weighted = asked(factors) * (rates * tl.rsqrt(square + EPS))[None, :]
        tile = hv * (V * K) + value[:, None] * K + tl.arange(0, BK)[None, :]
        come, gone = source.to(tl.int64) * (HV * V * K) + tile, z.to(tl.int64) * (HV * V * K) + tile
        for first in tl.range(0, K, BK, num_stages=STAGES):
            column = tl.arange(0, BK)[None, :] + first
            x = load_chunk(at_x + first, keep, column, K, BK)
            old = load_state(state + come + first, value, column, K, V, BV, BK)
            store_state(after + gone + first, fold(old, weighted, x, decay), value, column, K, V, BV, BK)
