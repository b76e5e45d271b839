"""The gated delta rule over a tree, serially, on a state tile of BV values by K keys (a vector kernel).

    S_i = e^g_i S_p(i) + u_i k_i^T,   u_i = beta_i (v_i - e^g_i S_p(i) k_i),   o_i = S_i q_i        (Yang et al., 2025)

The tile and what its products need lie in the unified buffer of a vector core: 192 KiB on a 910B3. Compiled with double
buffering a tile of 64 x 128 floats fits and one of 128 x 128 does not.
"""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def gdn_tile(states, parent_row, q, k, v, g, beta, out, N, H, HV, K: tl.constexpr, V: tl.constexpr,
             BV: tl.constexpr):  # fmt: skip
    """Grid (V / BV, HV, B). `states` [B,N+1,HV,V,K]: row 0 is the committed state, row i + 1 is written by node i.

    `parent_row` [B,N] is a row of `states`: 0 for the root, never negative. q, k [B,N,H,K]; v, out [B,N,HV,V]; g, beta
    [B,N,HV]; all float32. V is a multiple of BV: no lane is masked, since masked lanes may load all the same.
    """
    head, batch = tl.program_id(1), tl.program_id(2)
    key_head = head // (HV // H)
    value = tl.program_id(0) * BV + tl.arange(0, BV)
    column = tl.arange(0, K)
    size = HV * V * K
    tile = states + batch * (N + 1) * size + head * V * K + value[:, None] * K + column[None, :]
    for node in range(N):
        row = batch * N + node
        state = tl.load(tile + tl.load(parent_row + row) * size)
        key = tl.load(k + (row * H + key_head) * K + column)
        query = tl.load(q + (row * H + key_head) * K + column)
        new = tl.load(v + (row * HV + head) * V + value)
        state = state * tl.exp(tl.load(g + row * HV + head))
        update = tl.load(beta + row * HV + head) * (new - tl.sum(state * key[None, :], 1))
        state = state + update[:, None] * key[None, :]
        tl.store(tile + (node + 1) * size, state)
        tl.store(out + (row * HV + head) * V + value, tl.sum(state * query[None, :], 1))
