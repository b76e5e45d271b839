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
def steps_of(order, STEPS, NT: tl.constexpr, ORDER: tl.constexpr):
    """How many steps there are: those of an order end with the first -1."""
    if ORDER:
        place = tl.arange(0, NT)
        return tl.sum((tl.load(order + place, mask=place < STEPS, other=-1) >= 0).to(tl.int32), 0)
    else:
        return STEPS


@triton.jit
def fetch(q, k, v, g, beta, node, column, value, stride_qt, stride_kt, stride_vt, stride_gt, stride_bt,
          K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr, KP: tl.constexpr):  # fmt: skip
    """(x_k, x_q [C,E], v [R], g, beta) of a node as stored; pointers are those of its sequence and head.

    Behind the last node (-1) those of the first: no step uses them.
    """
    at = tl.maximum(node, 0)
    return (
        load_row(k + at * stride_kt, column, K, KP),
        load_row(q + at * stride_qt, column, K, KP),
        load_values(v + at * stride_vt, value, V, BV),
        tl.load(g + at * stride_gt),
        tl.load(beta + at * stride_bt),
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
        xk = load_row(pending_k + (at.to(tl.int64) * H + head) * K, column, K, KP)
        u = load_values(pending_u + (at.to(tl.int64) * HV + hv) * V, value, V, BV)
        tile = factor_step(tile, xk, u, tl.load(pending_g + at * HV + hv).to(tl.float32))
    return tile


@triton.jit
def settle(tile, home, pending_k, pending_u, pending_g, path, count, window, b, hv, head, column, value, P, ROWS, H, HV,
           K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, E: tl.constexpr,
           PATH: tl.constexpr):  # fmt: skip
    """The tile after its pending factors; written to `home` where they are due."""
    tile = apply_pending(
        tile, pending_k, pending_u, pending_g, path, count, b, hv, head, column, value, P, ROWS, H, HV,
        K, V, BV, C * E, PATH,
    )  # fmt: skip
    if tl.load(count + b) >= tl.maximum(window, 1):
        store_tile(home, tile, value, K, V, BV, C, E)
    return tile


@triton.jit
def has_far_child(parents, nodes, row, follower):
    """Whether a node other than `follower` hangs on `row` (0: the context, node i is i + 1)."""
    return tl.max(tl.where((parents == row) & (nodes != follower), 1, 0), 0) > 0


@triton.jit(do_not_specialize=["N", "STEPS", "P", "ROWS", "window"])
def delta_walk(state, q, k, v, g, beta, order, parent, a_log, dt_bias, g_out, table, after, o, u,
               pending_k, pending_u, pending_g, path, count, window, N, STEPS, LANES, P, ROWS, H, HV, stride_qb,
               stride_qt, stride_kb, stride_kt, stride_vb, stride_vt, stride_gb, stride_gt, stride_bb, stride_bt,
               K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, E: tl.constexpr, NT: tl.constexpr,
               ORDER: tl.constexpr, TREE: tl.constexpr, GATE: tl.constexpr, STATES: tl.constexpr,
               AFTER: tl.constexpr, PENDING: tl.constexpr, PATH: tl.constexpr, DEEP: tl.constexpr):  # fmt: skip
    """Grid (V / BV, HV, B * LANES): o, u [B,N,HV,V]; `after` [B,HV,V,K] gets the last tile (AFTER).

    `order` int32 [B,LANES,STEPS], -1 behind the last node (ORDER; else node = step); `parent` int64 [B,N] (TREE: 0 the
    context, node i is i + 1). NT >= N and STEPS with an order or a tree. `table` [B,N+1,HV,V,K] holds tiles of nodes
    with a far child (row 0: the context's, with PENDING), or with STATES [B,N,HV,V,K] every node's. A due sequence's
    pending factors are written to `state`. DEEP: rows are loaded two steps ahead, not one.
    """
    hv, b = tl.program_id(1), tl.program_id(2) // LANES
    head = hv // (HV // H)
    value = tl.program_id(0) * BV + tl.arange(0, BV)
    column = columns(C, E)
    home = state + (b.to(tl.int64) * HV + hv) * (V * K)
    shelf = table + (b.to(tl.int64) * (N + 1 - STATES) * HV + hv) * (V * K)
    order += tl.program_id(2) * STEPS
    q += b.to(tl.int64) * stride_qb + head * K
    k += b.to(tl.int64) * stride_kb + head * K
    v += b.to(tl.int64) * stride_vb + hv * V
    g += b * stride_gb + hv
    beta += b * stride_bb + hv
    steps = steps_of(order, STEPS, NT, ORDER)
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
        last = -1
    if PENDING:
        tile = settle(
            tile, home, pending_k, pending_u, pending_g, path, count, window, b, hv, head, column, value, P, ROWS,
            H, HV, K, V, BV, C, E, PATH,
        )  # fmt: skip
        if TREE and has_far_child(parents, nodes, 0, node):
            store_tile(shelf, tile, value, K, V, BV, C, E)
    if DEEP:
        next_node = node_at(order, 1, steps, ORDER)
        next_k, next_q, next_row, next_g, next_beta = fetch(
            q, k, v, g, beta, next_node, column, value, stride_qt, stride_kt, stride_vt, stride_gt, stride_bt,
            K, V, BV, C * E,
        )  # fmt: skip
    for step in range(steps):
        far_node = node_at(order, step + 1 + DEEP, steps, ORDER)
        far_k, far_q, far_row, far_g, far_beta = fetch(
            q, k, v, g, beta, far_node, column, value, stride_qt, stride_kt, stride_vt, stride_gt, stride_bt,
            K, V, BV, C * E,
        )  # fmt: skip
        follower = next_node if DEEP else far_node
        if TREE:
            above = tl.load(parent + b * N + node, mask=node >= 0, other=0).to(tl.int32)
            if (node >= 0) & (above != last + 1):
                tl.debug_barrier()
                far = shelf + (above - STATES).to(tl.int64) * HV * V * K
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
                store_tile(shelf + node.to(tl.int64) * HV * V * K, tile, value, K, V, BV, C, E)
        elif TREE and has_far_child(parents, nodes, node + 1, follower):
            store_tile(shelf + (node + 1).to(tl.int64) * HV * V * K, tile, value, K, V, BV, C, E)
        if TREE:
            last = node
        node = follower
        if DEEP:
            xk, xq, row, g_raw, beta_raw = next_k, next_q, next_row, next_g, next_beta
            next_node, next_k, next_q, next_row, next_g, next_beta = far_node, far_k, far_q, far_row, far_g, far_beta
        else:
            xk, xq, row, g_raw, beta_raw = far_k, far_q, far_row, far_g, far_beta
    if AFTER:
        store_tile(after + (b.to(tl.int64) * HV + hv) * (V * K), tile, value, K, V, BV, C, E)
