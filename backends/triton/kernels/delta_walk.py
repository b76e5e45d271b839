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
    row_scalars,
    row_values,
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
    """(x_k, x_q [C,1,LANES,E], v [R,LANES], g, beta) of a node as stored; pointers are those of its sequence and head.

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
def fetch_scalars(scalars, node, H):
    """What `delta_row_scalars` wrote of a node; pointer of its sequence and head."""
    at = scalars + tl.maximum(node, 0) * H * 4
    return tl.load(at), tl.load(at + 1), tl.load(at + 2)


@triton.jit
def delta_row_scalars(q, k, scalars, N, H, stride_qb, stride_qt, stride_kb, stride_kt,
                      K: tl.constexpr, C: tl.constexpr, E: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """`row_scalars` of every row, float32 [B,N,H,4]: a walk over several tokens has them ready. Grid (N, H, B).

    In a kernel of its own since a step of the walk waits for whatever stands in front of its products.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    node, head, b = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    column = columns(C, E)
    norm, scale, shared = row_scalars(
        load_row(k + b * stride_kb + node * stride_kt + head * K, column, K, C * E),
        load_row(q + b * stride_qb + node * stride_qt + head * K, column, K, C * E),
        K,
    )
    at = scalars + ((b * N + node) * H + head) * 4
    tl.store(at, norm)
    tl.store(at + 1, scale)
    tl.store(at + 2, shared)


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
def has_far_child(parents, nodes, row, follower):
    """Whether a node other than `follower` hangs on `row` (0: the context, node i is i + 1)."""
    return tl.max(tl.where((parents == row) & (nodes != follower), 1, 0), 0) > 0


@triton.jit(do_not_specialize=["N", "STEPS", "P", "ROWS", "window"])
def delta_walk(state, q, k, v, g, beta, scalars, order, parent, a_log, dt_bias, g_out, table, after, o, u,
               pending_k, pending_u, pending_g, path, count, window, N, STEPS, LANES, P, ROWS, H, HV,
               stride_qb, stride_qt, stride_kb, stride_kt, stride_vb, stride_vt, stride_gb, stride_gt,
               stride_bb, stride_bt,
               K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr, R: tl.constexpr, C: tl.constexpr, E: tl.constexpr,
               NT: tl.constexpr, SCALARS: tl.constexpr, ORDER: tl.constexpr, TREE: tl.constexpr, GATE: tl.constexpr,
               STATES: tl.constexpr, AFTER: tl.constexpr, PENDING: tl.constexpr, PATH: tl.constexpr,
               PDL: tl.constexpr):  # fmt: skip
    """Grid (V / BV, HV, B * LANES), BV = 4 R: o, u [B,N,HV,V]; `after` [B,HV,V,K] gets the last tile (AFTER).

    `order` int32 [B,LANES,STEPS], -1 behind the last node (ORDER; else node = step); `parent` int64 [B,N] (TREE: 0 the
    context, node i is i + 1). NT >= N and STEPS with an order or a tree.
    `table` [B,N+1,HV,V,K] holds tiles of nodes with a far child (row 0: the context's, with PENDING), or with STATES
    [B,N,HV,V,K] every node's. A due sequence's pending factors are written to `state`. SCALARS: `scalars` holds what
    `delta_row_scalars` makes of the rows, else each step makes it; with PDL this kernel starts beside that one.
    """
    hv, b = tl.program_id(1), tl.program_id(2) // LANES
    head = hv // (HV // H)
    value = tl.program_id(0) * BV + row_values(R)
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
    scalars += (b.to(tl.int64) * N * H + head) * 4
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
    if SCALARS:
        if PDL:
            tl.extra.cuda.gdc_wait()
        norm, scale, shared = fetch_scalars(scalars, node, H)
    for step in range(steps):
        follower = node_at(order, step + 1, steps, ORDER)
        next_k, next_q, next_row, next_g, next_beta = fetch(
            q, k, v, g, beta, follower, column, value, stride_qt, stride_kt, stride_vt, stride_gt, stride_bt,
            K, V, BV, C * E,
        )  # fmt: skip
        if SCALARS:
            next_norm, next_scale, next_shared = fetch_scalars(scalars, follower, H)
        else:
            norm, scale, shared = row_scalars(xk, xq, K)
        if TREE:
            above = tl.load(parent + b * N + node, mask=node >= 0, other=0).to(tl.int32)
            if (node >= 0) & (above != last + 1):
                tl.debug_barrier()
                far = shelf + (above - STATES).to(tl.int64) * HV * size
                tile = load_tile(far if PENDING else tl.where(above > 0, far, home), value, K, V, BV, C, E)
        decay, rate = gates(g_raw, beta_raw, a_log, dt_bias, hv, GATE)
        output, factor, tile = token_step(tile, xk, xq, norm, scale, shared, row, decay, rate, C, R, E)
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
        if SCALARS:
            norm, scale, shared = next_norm, next_scale, next_shared
        xk, xq, row, g_raw, beta_raw = next_k, next_q, next_row, next_g, next_beta
    if AFTER:
        store_tile(after + (b.to(tl.int64) * HV + hv) * size, tile, value, K, V, BV, C, E)
