"""The short causal convolution with SiLU in front of the delta rule: chains, trees and the commit of its window.

One multiply-add per tap in a fixed order (oldest input first), spelled out with `fma`, so that a token's result does
not depend on how many others there are or on the tree around it.
"""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.delta_rows import gates
from specc.backends.triton.kernels.dot import rounded
from specc.backends.triton.kernels.region_math import follow


@triton.jit
def node_gates(a, b, a_log, dt_bias, live, g_out, beta_out, sequence, node, N, HV, stride_ab, stride_at, stride_bb,
               stride_bt, BH: tl.constexpr, LIVE: tl.constexpr, GATE: tl.constexpr):  # fmt: skip
    """The gates (see `gates`) of rows `node` [BN,1] of a sequence into g_out and beta_out [B,N,HV] float32; rows that
    are not `live` [B,N] (LIVE) get zeros. They need nothing of the convolution, so a program of its launch makes them.
    """
    head = tl.arange(0, BH)[None, :]
    inside = (node < N) & (head < HV)
    raw_g = tl.load(a + sequence * stride_ab + node * stride_at + head, mask=inside, other=0.0)
    raw_beta = tl.load(b + sequence * stride_bb + node * stride_bt + head, mask=inside, other=0.0)
    g, beta = gates(raw_g, raw_beta, a_log, dt_bias, tl.minimum(head, HV - 1), GATE)
    if LIVE:
        counts = tl.load(live + sequence * N + node, mask=node < N, other=0) != 0
        g, beta = tl.where(counts, g, 0.0), tl.where(counts, beta, 0.0)
    at = (sequence * N + node) * HV + head
    tl.store(g_out + at, g, mask=inside)
    tl.store(beta_out + at, beta, mask=inside)


@triton.jit
def input_rows(x, window, row, channel, inside, stride_xt, C, W: tl.constexpr):
    """Inputs [BN,BC] in float32: rows >= 0 [BN,1] of x, or rows -1, -2, … of the window from its end."""
    new = tl.load(x + row * stride_xt + channel, mask=inside & (row >= 0), other=0.0)
    old = tl.load(window + (W - 1 + row) * C + channel, mask=inside & (row < 0) & (row > -W), other=0.0)
    return tl.where(row >= 0, new.to(tl.float32), old.to(tl.float32))


@triton.jit
def tree_conv_nodes(window, x, weight, bias, parent, y, N, C, stride_xb, stride_xt,
                    kept, a, b_raw, a_log, dt_bias, g, beta, HV, stride_ab, stride_at, stride_bb, stride_bt,
                    W: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr, BIAS: tl.constexpr, TREE: tl.constexpr,
                    DEPENDENT: tl.constexpr, KEEP: tl.constexpr, GATE: tl.constexpr, BH: tl.constexpr):  # fmt: skip
    """y [B,N,C] = silu(taps along each node's path, then the window [B,W-1,C]). Grid (C / BC, N / BN, B).

    x [B,N,C] with strides, weight [C,1,W]; `parent` int64 [B,N] (TREE; else a chain): 0 the context, node i is i + 1.
    DEPENDENT: started beside the kernel in front of it, but for the weights. KEEP: `kept` [B,N,C] gets x. GATE > 0: one
    column of programs more in the grid makes the gates of the nodes (see `node_gates`).
    """
    node = tl.program_id(1) * BN + tl.arange(0, BN)[:, None]
    b = tl.program_id(2).to(tl.int64)
    if GATE > 0 and tl.program_id(0) == tl.num_programs(0) - 1:
        if DEPENDENT:
            follow()
        node_gates(
            a, b_raw, a_log, dt_bias, a, g, beta, b, node, N, HV, stride_ab, stride_at, stride_bb, stride_bt, BH,
            False, GATE,
        )  # fmt: skip
        return
    channel = tl.program_id(0) * BC + tl.arange(0, BC)[None, :]
    inside = (channel < C) & (node < N)
    x += b * stride_xb
    window += b * (W - 1) * C
    total = tl.zeros([BN, BC], tl.float32)
    scales = ()
    for tap in tl.static_range(W):
        scales = scales + (tl.load(weight + channel * W + tap, mask=channel < C, other=0.0).to(tl.float32),)
    if DEPENDENT:
        follow()
    # Rows from the newest to the oldest; the sum runs the other way round, so they are found twice.
    for tap in tl.static_range(W):
        row = node
        for _ in tl.static_range(W - 1 - tap):
            if TREE:
                above = tl.load(parent + b * N + row, mask=(row >= 0) & (row < N), other=0).to(tl.int32) - 1
                row = tl.where(row >= 0, above, row - 1)
            else:
                row -= 1
        taken = input_rows(x, window, row, channel, inside, stride_xt, C, W)
        total = tl.fma(taken, tl.broadcast_to(scales[tap], [BN, BC]), total)
        if KEEP and tap == W - 1:
            tl.store(kept + (b * N + node) * C + channel, taken.to(kept.dtype.element_ty), mask=inside)
    if BIAS:
        total += tl.load(bias + channel, mask=channel < C, other=0.0).to(tl.float32)
    out = total / (1.0 + tl.exp(-total))
    tl.store(y + (b * N + node) * C + channel, rounded(out, y), mask=inside)


@triton.jit
def conv_one(window, x, weight, bias, live, y, C, stride_xb, a, b_raw, a_log, dt_bias, g, beta, HV, stride_ab,
             stride_bb, W: tl.constexpr, BW: tl.constexpr, BC: tl.constexpr, BIAS: tl.constexpr, LIVE: tl.constexpr,
             DEPENDENT: tl.constexpr, GATE: tl.constexpr, BH: tl.constexpr):  # fmt: skip
    """y [B,1,C] of one token x [B,1,C], and the window [B,W-1,C] moved on by it, in place. Grid (C / BC, B).

    The sum runs as in `tree_conv_nodes`, so a token's bits are the same. LIVE: a row that is not keeps its window.
    DEPENDENT: started beside the kernel in front of it, but for the weights. GATE > 0: one program more for each
    sequence makes the token's gates (see `node_gates`), zeros for a row that is not live.
    """
    b = tl.program_id(1).to(tl.int64)
    if GATE > 0 and tl.program_id(0) == tl.num_programs(0) - 1:
        if DEPENDENT:
            follow()
        node_gates(
            a, b_raw, a_log, dt_bias, live, g, beta, b, tl.zeros([1, 1], tl.int32), 1, HV, stride_ab, 0, stride_bb,
            0, BH, LIVE, GATE,
        )  # fmt: skip
        return
    channel = tl.program_id(0) * BC + tl.arange(0, BC)
    inside = channel < C
    window += b * (W - 1) * C
    scales = ()
    for tap in tl.static_range(W):
        scales = scales + (tl.load(weight + channel * W + tap, mask=inside, other=0.0).to(tl.float32),)
    if DEPENDENT:
        follow()
    newest = tl.load(x + b * stride_xb + channel, mask=inside, other=0.0)
    moves = tl.load(live + b) != 0 if LIVE else True
    total = tl.zeros([BC], tl.float32)
    for tap in tl.static_range(W):
        taken = newest if tap == W - 1 else tl.load(window + tap * C + channel, mask=inside, other=0.0)
        total = tl.fma(taken.to(tl.float32), scales[tap], total)
    if BIAS:
        total += tl.load(bias + channel, mask=inside, other=0.0).to(tl.float32)
    out = total / (1.0 + tl.exp(-total))
    tl.store(y + b * C + channel, rounded(out, y), mask=inside)
    place = tl.arange(0, BW)[:, None]
    at = window + place * C + channel[None, :]
    old = tl.load(at + C, mask=(place < W - 2) & inside[None, :], other=0.0)
    moved = tl.where(place == W - 2, newest[None, :].to(window.dtype.element_ty), old)
    # Every thread has read its part of the window by now.
    tl.debug_barrier()
    tl.store(at, moved, mask=(place < W - 1) & inside[None, :] & moves)


@triton.jit
def last_inputs(window, x, path, count, after, N, P, C, stride_xb, stride_xt,
                W: tl.constexpr, BW: tl.constexpr, BC: tl.constexpr, PATH: tl.constexpr, COUNT: tl.constexpr,
                BATCH: tl.constexpr):  # fmt: skip
    """after [Z,W-1,C]: the last W - 1 rows of cat(window, rows of x along the path[:count]). Grid (C / BC, Z).

    All rows are read before one is written, so `after` may be `window`. Layers stack in front of the batch: sequence z
    has the path and count of z modulo BATCH. Without COUNT all N rows count.
    """
    follow()
    z = tl.program_id(1)
    turn = z % BATCH
    channel = tl.program_id(0) * BC + tl.arange(0, BC)[None, :]
    place = tl.arange(0, BW)[:, None]
    count = tl.load(count + turn) if COUNT else N
    row = place - (W - 1) + count
    inside = (place < W - 1) & (channel < C)
    index = row
    if PATH:
        index = tl.load(path + turn * P + row, mask=(row >= 0) & (row < P) & (place < W - 1), other=0)
    x += z.to(tl.int64) * stride_xb
    new = tl.load(x + index * stride_xt + channel, mask=inside & (row >= 0), other=0.0)
    at = z.to(tl.int64) * (W - 1) * C + place * C + channel
    old = tl.load(window + at + count * C, mask=inside & (row < 0), other=0.0)
    tl.debug_barrier()
    tl.store(after + at, tl.where(row >= 0, new, old), mask=inside)
