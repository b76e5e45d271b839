"""The delta rule token by token, the state tile in registers: chains, serial and hybrid trees, replay, plain decoding.

One kernel for all of them, with one step (`delta_rows.token_step`): they give the same bits. Nodes come in the order of
their number or of an array. Where a node does not follow its parent directly, the parent's tile has been written to a
table in memory and is fetched again; heavy-light order makes that as rare as it can be (SpecLA, hybrid schedule).
"""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.delta_rows import columns, factor_step, gates, prefetch, tile_offsets, token_step
from specc.backends.triton.kernels.dot import rounded


@triton.jit
def node_at(order, step, steps, ORDER: tl.constexpr):
    """The node of a step; -1 behind the last one and where the order has none."""
    if ORDER:
        return tl.load(order + step, mask=step < steps, other=-1)
    else:
        return tl.where(step < steps, step, -1)


@triton.jit
def fetch(q, k, v, g, beta, valid, node, column, value, stride_qt, stride_kt, stride_vt, stride_gt,
          VALID: tl.constexpr):  # fmt: skip
    """(x_k, x_q [C,E], v [R], g, beta, live) of a node as stored; pointers are those of its sequence and head.

    All zero where there is no node or it is padding: such a step leaves a tile as it is.
    """
    live = node >= 0
    if VALID:
        live = live & (tl.load(valid + node, mask=live, other=0) != 0)
    xk = tl.load(k + node * stride_kt + column, mask=live, other=0.0)
    xq = tl.load(q + node * stride_qt + column, mask=live, other=0.0)
    row = tl.load(v + node * stride_vt + value, mask=live, other=0.0)
    return (
        xk,
        xq,
        row,
        tl.load(g + node * stride_gt, mask=live, other=0.0),
        tl.load(beta + node * stride_gt, mask=live, other=0.0),
        live,
    )


@triton.jit
def prefetch_rows(q, k, v, g, beta, N, stride_qt, stride_kt, stride_vt, stride_gt, K: tl.constexpr, BV: tl.constexpr,
                  NT: tl.constexpr):  # fmt: skip
    """Rows of all nodes into the L2 cache: a step is shorter than the way from memory."""
    node = tl.minimum(tl.arange(0, NT), N - 1)
    line = tl.arange(0, max(K // 64, 1))[None, :] * 64
    prefetch(k + node[:, None] * stride_kt + line)
    prefetch(q + node[:, None] * stride_qt + line)
    prefetch(v + node * stride_vt + tl.program_id(0) * BV)
    prefetch(g + node * stride_gt)
    prefetch(beta + node * stride_gt)


@triton.jit
def apply_pending(tile, pending_k, pending_u, pending_g, path, count, b, hv, head, column, value, P, ROWS, H, HV,
                  K: tl.constexpr, V: tl.constexpr, PATH: tl.constexpr):  # fmt: skip
    """The tile after the pending factors of sequence b, one by one in the order of the path."""
    for j in tl.range(0, tl.minimum(tl.load(count + b), P)):
        row = j
        if PATH:
            row = tl.load(path + b * P + j).to(tl.int32)
        at = b * ROWS + tl.minimum(tl.maximum(row, 0), ROWS - 1)
        xk = tl.load(pending_k + (at.to(tl.int64) * H + head) * K + column)
        u = tl.load(pending_u + (at.to(tl.int64) * HV + hv) * V + value)
        tile = factor_step(tile, xk, u, tl.load(pending_g + at * HV + hv))
    return tile


@triton.jit
def has_far_child(parents, nodes, row, follower):
    """Whether a node other than `follower` hangs on `row` (0: the context, node i is i + 1)."""
    return tl.max(tl.where((parents == row) & (nodes != follower), 1, 0), 0) > 0


@triton.jit(do_not_specialize=["N", "STEPS", "P", "window"])
def delta_walk(state, q, k, v, g, beta, order, parent, valid, a_log, dt_bias, g_out, table, after, o, u,
               pending_k, pending_u, pending_g, path, count, window, N, STEPS, LANES, P, ROWS, H, HV,
               stride_qb, stride_qt, stride_kb, stride_kt, stride_vb, stride_vt, stride_gb, stride_gt,
               K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr, E: tl.constexpr, NT: tl.constexpr,
               ORDER: tl.constexpr, TREE: tl.constexpr, VALID: tl.constexpr, GATE: tl.constexpr,
               STATES: tl.constexpr, AFTER: tl.constexpr, PENDING: tl.constexpr, PATH: tl.constexpr):  # fmt: skip
    """Grid (V / BV, HV, B * LANES): o, u [B,N,HV,V]; `after` [B,HV,V,K] gets the last tile (AFTER).

    `order` int32 [B,LANES,STEPS], -1 behind the last node (ORDER; else node = step); `parent` int64 [B,N] (TREE: 0 the
    context, node i is i + 1).
    `table` [B,N+1,HV,V,K] holds tiles of nodes with a far child (row 0: the context's, with PENDING), or with STATES
    [B,N,HV,V,K] every node's. A due sequence's pending factors are written to `state`.
    """
    C: tl.constexpr = K // E
    hv, b = tl.program_id(1), tl.program_id(2) // LANES
    head = hv // (HV // H)
    value = tl.program_id(0) * BV + tl.arange(0, BV)
    column = columns(C, E)
    offsets = tile_offsets(value, K, C, E)
    home = state + (b.to(tl.int64) * HV + hv) * (V * K) + offsets
    shelf = table + (b.to(tl.int64) * (N + 1 - STATES) * HV + hv) * (V * K) + offsets
    order += tl.program_id(2) * STEPS
    q += b.to(tl.int64) * stride_qb + head * K
    k += b.to(tl.int64) * stride_kb + head * K
    v += b.to(tl.int64) * stride_vb + hv * V
    g += b * stride_gb + hv
    beta += b * stride_gb + hv
    valid += b * N
    steps = STEPS
    if ORDER:
        places = tl.arange(0, NT)
        steps = tl.sum((tl.load(order + places, mask=places < STEPS, other=-1) >= 0).to(tl.int32), 0)
        if steps == 0:
            return
    node = node_at(order, 0, steps, ORDER)
    prefetch_rows(q, k, v, g, beta, N, stride_qt, stride_kt, stride_vt, stride_gt, K, BV, NT)
    xk, xq, row, g_raw, beta_raw, live = fetch(
        q, k, v, g, beta, valid, node, column, value, stride_qt, stride_kt, stride_vt, stride_gt, VALID
    )
    tile = tl.load(home)
    if TREE:
        nodes = tl.arange(0, NT)
        parents = tl.load(parent + b * N + nodes, mask=nodes < N, other=-1)
    if PENDING:
        tile = apply_pending(
            tile, pending_k, pending_u, pending_g, path, count, b, hv, head, column, value, P, ROWS, H, HV, K, V, PATH
        )
        if tl.load(count + b) >= tl.maximum(window, 1):
            tl.store(home, tile)
        if TREE and has_far_child(parents, nodes, 0, node):
            tl.store(shelf, tile)
    last = -1
    for step in range(steps):
        follower = node_at(order, step + 1, steps, ORDER)
        next_k, next_q, next_row, next_g, next_beta, next_live = fetch(
            q, k, v, g, beta, valid, follower, column, value, stride_qt, stride_kt, stride_vt, stride_gt, VALID
        )
        if TREE:
            above = tl.load(parent + b * N + node, mask=live, other=0).to(tl.int32)
            if live & (above != last + 1):
                tl.debug_barrier()
                far = shelf + (above - STATES).to(tl.int64) * HV * V * K
                tile = tl.load(far if PENDING else tl.where(above > 0, far, home))
        decay, rate = gates(g_raw, beta_raw, a_log, dt_bias, hv, GATE)
        output, factor, tile = token_step(
            tile, xk, xq, row, tl.where(live, decay, 0.0), tl.where(live, rate, 0.0), K, BV, E
        )
        out = ((b * N + node).to(tl.int64) * HV + hv) * V + value
        tl.store(u + out, factor, mask=node >= 0)
        tl.store(o + out, rounded(output, o), mask=node >= 0)
        if GATE > 0:
            tl.store(g_out + (b * N + node) * HV + hv, decay, mask=(node >= 0) & (tl.program_id(0) == 0))
        if STATES:
            tl.store(shelf + node.to(tl.int64) * HV * V * K, tile, mask=node >= 0)
        elif TREE and has_far_child(parents, nodes, node + 1, follower):
            tl.store(shelf + (node + 1).to(tl.int64) * HV * V * K, tile, mask=node >= 0)
        last, node, live = node, follower, next_live
        xk, xq, row, g_raw, beta_raw = next_k, next_q, next_row, next_g, next_beta
    if AFTER:
        tl.store(after + (b.to(tl.int64) * HV + hv) * (V * K) + offsets, tile)
