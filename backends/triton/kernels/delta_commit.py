"""Commit of an accepted path from its factors, all layers in one launch."""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.delta_pending import fold, left_over, path_rows
from specc.backends.triton.kernels.delta_rows import EPS
from specc.backends.triton.kernels.delta_solve import load_chunk, squares
from specc.backends.triton.kernels.delta_tile import load_tile, store_tile
from specc.backends.triton.kernels.delta_tree import load_state, store_state
from specc.backends.triton.kernels.delta_walk import apply_pending


@triton.jit(do_not_specialize=["N", "P", "PATHS"])
def delta_commit_steps(state, after, k, u, g, path, count, N, P, PATHS, H, HV,
                       K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, E: tl.constexpr,
                       COPY: tl.constexpr):  # fmt: skip
    """Factors one by one, bit for bit what the rule did. Grid (V / BV, HV, Z).

    State, after [Z,HV,V,K]; k [Z,N,H,K], u [Z,N,HV,V], g [Z,N,HV]; sequence z of all layers has the path and count of
    z modulo PATHS. COPY: `after` is not `state`, so what does not change is written too.
    """
    hv, z = tl.program_id(1), tl.program_id(2)
    turn = z % PATHS
    if (tl.load(count + turn) > 0) | COPY:
        value = tl.program_id(0) * BV + tl.arange(0, BV)
        offset = (z.to(tl.int64) * HV + hv) * (V * K)
        rows = z.to(tl.int64) * N
        tile = apply_pending(
            load_tile(state + offset, value, K, V, BV, C, E), k + rows * H * K, u + rows * HV * V, g + rows * HV,
            path + turn * P, count + turn, 0, hv, hv // (HV // H), value, P, N, H, HV, K, V, BV, C, E, True,
        )  # fmt: skip
        store_tile(after + offset, tile, value, K, V, BV, C, E)


@triton.jit(do_not_specialize=["N", "P", "PATHS", "LANES"])
def delta_commit_rank_n(state, after, k, u, g, path, count, N, P, PATHS, LANES, H, HV,
                        K: tl.constexpr, V: tl.constexpr, R: tl.constexpr, BV: tl.constexpr, BK: tl.constexpr,
                        COPY: tl.constexpr):  # fmt: skip
    """All factors as one update. As `delta_commit_steps`; `after` [Z LANES,HV,V,K] may hold several states per
    sequence (LANES paths each, for the states of all nodes)."""
    hv, z = tl.program_id(1), tl.program_id(2)
    turn, source = z % PATHS, z // LANES
    waiting = tl.load(count + turn)
    if (waiting > 0) | COPY:
        value = tl.program_id(0) * BV + tl.arange(0, BV)
        tile = hv * (V * K) + value[:, None] * K + tl.arange(0, BK)[None, :]
        rows, keep = path_rows(path, waiting, turn, P, N, R, True)
        rows = source.to(tl.int64) * N + rows
        rates, decay = left_over(tl.load(g + rows * HV + hv, mask=keep, other=0.0).to(tl.float32), R)
        at_x = k + (rows * H + hv // (HV // H))[:, None] * K + tl.arange(0, BK)[None, :]
        square = tl.zeros([R], tl.float32)
        for first in tl.static_range(0, K, BK):
            square += squares(load_chunk(at_x + first, keep, tl.arange(0, BK)[None, :] + first, K, BK))
        at_u = u + (rows * HV * V)[None, :] + hv * V + value[:, None]
        factors = tl.load(at_u, mask=keep[None, :] & (value[:, None] < V), other=0.0)
        weighted = factors * (rates * tl.rsqrt(square + EPS))[None, :]
        come, gone = source.to(tl.int64) * (HV * V * K) + tile, z.to(tl.int64) * (HV * V * K) + tile
        for first in tl.range(0, K, BK):
            column = tl.arange(0, BK)[None, :] + first
            x = load_chunk(at_x + first, keep, column, K, BK)
            old = load_state(state + come + first, value, column, K, V, BV, BK)
            store_state(after + gone + first, fold(old, weighted, x, decay), value, column, K, V, BV, BK)
