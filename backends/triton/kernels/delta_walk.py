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

from specc.backends.triton.kernels.delta_rows import (
    columns,
    factor_step,
    gates,
    load_row,
    load_tile,
    load_values,
    prefetch,
    store_tile,
    token_step,
)
from specc.backends.triton.kernels.dot import rounded


@triton.jit
def node_at(order, step, steps, ORDER: tl.constexpr):
    """The node of a step; -1 behind the last one and where the order has none."""
    if ORDER:
        return tl.load(order + step, mask=step < steps, other=-1)
    else:
        return tl.where(step < steps, step, -1)


@triton.jit
def fetch(q, k, v, g, beta, node, column, value, stride_qt, stride_kt, stride_vt, stride_gt, stride_bt,
          K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr, KP: tl.constexpr):  # fmt: skip
    """(x_k, x_q [C,E], v [R], g, beta) of a node as stored; pointers are those of its sequence and head.

    All zero where there is no node: such a step leaves a tile as it is.
    """
    live = node >= 0
    return (
        load_row(k + node * stride_kt, column, live, K, KP),
        load_row(q + node * stride_qt, column, live, K, KP),
        load_values(v + node * stride_vt, value, live, V, BV),
        tl.load(g + node * stride_gt, mask=live, other=0.0),
        tl.load(beta + node * stride_bt, mask=live, other=0.0),
    )


@triton.jit
def prefetch_rows(q, k, v, g, beta, N, stride_qt, stride_kt, stride_vt, stride_gt, stride_bt, K: tl.constexpr,
                  BV: tl.constexpr, AHEAD: tl.constexpr):  # fmt: skip
    """The first rows into the L2 cache: a step is shorter than the way from memory."""
    node = tl.minimum(tl.arange(0, AHEAD), N - 1)
    line = tl.arange(0, max(triton.next_power_of_2(K) // 64, 1))[None, :] * 64
    prefetch(k + node[:, None] * stride_kt + line)
    prefetch(q + node[:, None] * stride_qt + line)
    prefetch(v + node * stride_vt + tl.program_id(0) * BV)
    prefetch(g + node * stride_gt)
    prefetch(beta + node * stride_bt)


@triton.jit
def apply_pending(tile, pending_k, pending_u, pending_g, path, count, b, hv, head, column, value, P, ROWS, H, HV,
                  K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr, KP: tl.constexpr,
                  PATH: tl.constexpr):  # fmt: skip
    """The tile after the pending factors of sequence b, one by one in the order of the path."""
    for j in tl.range(0, tl.minimum(tl.load(count + b), P)):
        row = j
        if PATH:
            row = tl.load(path + b * P + j).to(tl.int32)
        at = b * ROWS + tl.minimum(tl.maximum(row, 0), ROWS - 1)
        xk = load_row(pending_k + (at.to(tl.int64) * H + head) * K, column, True, K, KP)
        u = load_values(pending_u + (at.to(tl.int64) * HV + hv) * V, value, True, V, BV)
        tile = factor_step(tile, xk, u, tl.load(pending_g + at * HV + hv).to(tl.float32))
    return tile


@triton.jit
def has_far_child(parents, nodes, row, follower):
    """Whether a node other than `follower` hangs on `row` (0: the context, node i is i + 1)."""
    return tl.max(tl.where((parents == row) & (nodes != follower), 1, 0), 0) > 0


@triton.jit(do_not_specialize=["N", "STEPS", "P", "ROWS", "window"])
def delta_walk(state, q, k, v, g, beta, order, parent, a_log, dt_bias, g_out, table, after, o, u,
               pending_k, pending_u, pending_g, path, count, window, N, STEPS, LANES, P, ROWS, H, HV,
               stride_qb, stride_qt, stride_kb, stride_kt, stride_vb, stride_vt, stride_gb, stride_gt,
               stride_bb, stride_bt,
               K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, E: tl.constexpr, NT: tl.constexpr,
               ORDER: tl.constexpr, TREE: tl.constexpr, GATE: tl.constexpr, STATES: tl.constexpr,
               AFTER: tl.constexpr, PENDING: tl.constexpr, PATH: tl.constexpr):  # fmt: skip
    """Grid (V / BV, HV, B * LANES): o, u [B,N,HV,V]; `after` [B,HV,V,K] gets the last tile (AFTER).

    `order` int32 [B,LANES,STEPS], -1 behind the last node (ORDER; else node = step); `parent` int64 [B,N] (TREE: 0 the
    context, node i is i + 1). NT >= N and STEPS with an order or a tree.
    `table` [B,N+1,HV,V,K] holds tiles of nodes with a far child (row 0: the context's, with PENDING), or with STATES
    [B,N,HV,V,K] every node's. A due sequence's pending factors are written to `state`.
    """
    hv, b = tl.program_id(1), tl.program_id(2) // LANES
    head = hv // (HV // H)
    value = tl.program_id(0) * BV + tl.arange(0, BV)
    column = columns(C, E)
    size = V * K
    home = state + (b.to(tl.int64) * HV + hv) * size
    shelf = table + (b.to(tl.int64) * (N + 1 - STATES) * HV + hv) * size
    order += tl.program_id(2) * STEPS
    q += b.to(tl.int64) * stride_qb + head * K
    k += b.to(tl.int64) * stride_kb + head * K
    v += b.to(tl.int64) * stride_vb + hv * V
    g += b * stride_gb + hv
    beta += b * stride_bb + hv
    steps = STEPS
    if ORDER:
        places = tl.arange(0, NT)
        steps = tl.sum((tl.load(order + places, mask=places < STEPS, other=-1) >= 0).to(tl.int32), 0)
        if steps == 0:
            return
    node = node_at(order, 0, steps, ORDER)
    prefetch_rows(q, k, v, g, beta, N, stride_qt, stride_kt, stride_vt, stride_gt, stride_bt, K, BV, min(NT, 32))
    xk, xq, row, g_raw, beta_raw = fetch(
        q, k, v, g, beta, node, column, value, stride_qt, stride_kt, stride_vt, stride_gt, stride_bt, K, V, BV, C * E
    )
    tile = load_tile(home, value, K, V, BV, C, E)
    if TREE:
        nodes = tl.arange(0, NT)
        parents = tl.load(parent + b * N + nodes, mask=nodes < N, other=-1)
    if PENDING:
        tile = apply_pending(
            tile, pending_k, pending_u, pending_g, path, count, b, hv, head, column, value, P, ROWS, H, HV,
            K, V, BV, C * E, PATH,
        )  # fmt: skip
        if tl.load(count + b) >= tl.maximum(window, 1):
            store_tile(home, tile, value, K, V, BV, C, E)
        if TREE and has_far_child(parents, nodes, 0, node):
            store_tile(shelf, tile, value, K, V, BV, C, E)
    last = -1
    for step in range(steps):
        follower = node_at(order, step + 1, steps, ORDER)
        next_k, next_q, next_row, next_g, next_beta = fetch(
            q, k, v, g, beta, follower, column, value, stride_qt, stride_kt, stride_vt, stride_gt, stride_bt,
            K, V, BV, C * E,
        )  # fmt: skip
        if TREE:
            above = tl.load(parent + b * N + node, mask=node >= 0, other=0).to(tl.int32)
            if (node >= 0) & (above != last + 1):
                tl.debug_barrier()
                far = shelf + (above - STATES).to(tl.int64) * HV * size
                tile = load_tile(far if PENDING else tl.where(above > 0, far, home), value, K, V, BV, C, E)
        decay, rate = gates(g_raw, beta_raw, a_log, dt_bias, hv, GATE)
        output, factor, tile = token_step(tile, xk, xq, row, decay, rate, K, BV, C, E)
        out = ((b * N + node).to(tl.int64) * HV + hv) * V
        inside = value < V if V % BV else True
        tl.store(u + out + value, factor, mask=(node >= 0) & inside)
        tl.store(o + out + value, rounded(output, o), mask=(node >= 0) & inside)
        if GATE > 0:
            tl.store(g_out + (b * N + node) * HV + hv, decay, mask=(node >= 0) & (tl.program_id(0) == 0))
        if STATES:
            if node >= 0:
                store_tile(shelf + node.to(tl.int64) * HV * size, tile, value, K, V, BV, C, E)
        elif TREE and has_far_child(parents, nodes, node + 1, follower):
            store_tile(shelf + (node + 1).to(tl.int64) * HV * size, tile, value, K, V, BV, C, E)
        last, node = node, follower
        xk, xq, row, g_raw, beta_raw = next_k, next_q, next_row, next_g, next_beta
    if AFTER:
        store_tile(after + (b.to(tl.int64) * HV + hv) * size, tile, value, K, V, BV, C, E)
