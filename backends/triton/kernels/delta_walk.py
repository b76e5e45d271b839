"""The delta rule token by token, the state tile in registers: chains, serial and hybrid trees, replay, plain decoding.

One kernel for all of them, with one step (`delta_tile.tile_step`): they give the same bits. What a step needs that
does not depend on the state (norms, gates, x_k . x_q) is computed for a block of nodes beforehand, while the state is
on its way from memory, and lies in a small table of the program's own. Nodes come in the order of their number or of an
array. Where a node does not follow its parent directly, the parent's tile has been written to a table in memory and is
fetched again; heavy-light order makes that as rare as it can be (SpecLA, hybrid schedule).
"""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.delta_rows import gates
from specc.backends.triton.kernels.delta_tile import (
    factor_step,
    get_values,
    load_parts,
    load_tile,
    nothing_like,
    put,
    store_tile,
    store_values,
    tile_step,
    token_numbers,
    token_sums,
    wide,
)
from specc.backends.triton.kernels.dot import rounded
from specc.backends.triton.kernels.region_math import follow

NUMBERS = tl.constexpr(8)
"""Floats per node in a program's table: one sector. Six are a token's numbers, two say where it stands in a tree."""


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
def load_block(at, live, K: tl.constexpr, C: tl.constexpr, E: tl.constexpr):
    """Rows of K numbers at pointers `at` [T,1] as a tuple of C tensors [T,E]; zeros where not `live` and beyond K."""
    parts = ()
    for c in tl.static_range(C):
        column = tl.arange(0, E)[None, :] + c * E
        inside = live[:, None] if (c + 1) * E <= K else live[:, None] & (column < K)
        parts = parts + (tl.load(at + column, mask=inside, other=0.0),)
    return parts


@triton.jit
def prepare(q, k, g, beta, a_log, dt_bias, g_out, work, first, b, hv, N, HV, stride_qt, stride_kt, stride_gt,
            stride_bt, K: tl.constexpr, C: tl.constexpr, E: tl.constexpr, TB: tl.constexpr,
            GATE: tl.constexpr):  # fmt: skip
    """The numbers of nodes first .. first + TB into `work` [TB,NUMBERS]; `g_out` gets the log decays (GATE)."""
    row = tl.arange(0, TB)
    node = first + row
    live = node < N
    g_rows = tl.load(g + node * stride_gt, mask=live, other=0.0)
    beta_rows = tl.load(beta + node * stride_bt, mask=live, other=0.0)
    xk = load_block(k + node[:, None] * stride_kt, live, K, C, E)
    xq = load_block(q + node[:, None] * stride_qt, live, K, C, E)
    square_k, square_q, shared = token_sums(xk, xq, tl.zeros([TB, E], tl.float32), C)
    g_rows, beta_rows = gates(g_rows, beta_rows, a_log, dt_bias, hv, GATE)
    numbers = token_numbers(square_k, square_q, shared, g_rows, beta_rows, K)
    for i in tl.static_range(6):
        put(work + row * NUMBERS + i, numbers[i])
    if GATE > 0:
        tl.store(g_out + (b * N + node) * HV + hv, g_rows, mask=live & (tl.program_id(0) == 0))


@triton.jit
def plan(order, parent, work, b, N, STEPS, NT: tl.constexpr, ORDER: tl.constexpr):
    """What each step of a walk over a tree has to do, into `work` [NT,NUMBERS] as integers: the parent's row (6; 0 the
    context, node i is i + 1), and whether a node other than the next one hangs on the step's node (7)."""
    step = tl.arange(0, NT)
    if ORDER:
        node = tl.load(order + step, mask=step < STEPS, other=-1)
        follower = tl.load(order + step + 1, mask=step + 1 < STEPS, other=-1)
    else:
        node = step
        follower = step + 1
    inside = (node >= 0) & (node < N)
    above = tl.load(parent + b * N + node, mask=inside, other=0).to(tl.int32)
    child = tl.arange(0, NT)[None, :]
    hangs = tl.load(parent + b * N + child, mask=child < N, other=-1).to(tl.int32) == (node + 1)[:, None]
    at = work.to(tl.pointer_type(tl.int32)) + step * NUMBERS
    tl.store(at + 6, above)
    tl.store(at + 7, tl.max((hangs & (child != follower[:, None])).to(tl.int32), 1))


@triton.jit
def single(tiles, q, k, v, g, beta, a_log, dt_bias, g_out, o, u, hv, value, K: tl.constexpr, V: tl.constexpr,
           BV: tl.constexpr, C: tl.constexpr, E: tl.constexpr, GATE: tl.constexpr):  # fmt: skip
    """The tile after a sequence's only token, without a table and its barriers: the sums of `prepare` in its order, by
    the threads of each row for themselves."""
    row = get_values(v, value, V, BV)
    xk, xq = wide(load_parts(k, K, C, E), C), wide(load_parts(q, K, C, E), C)
    rows_k, rows_q = (), ()
    for c in tl.static_range(C):
        rows_k = rows_k + (tl.broadcast_to(xk[c][None, :], [BV, E]),)
        rows_q = rows_q + (tl.broadcast_to(xq[c][None, :], [BV, E]),)
    square_k, square_q, shared = token_sums(rows_k, rows_q, nothing_like(tiles[0]), C)
    g_row, beta_row = gates(tl.load(g), tl.load(beta), a_log, dt_bias, hv, GATE)
    if GATE > 0:
        tl.store(g_out, g_row, mask=tl.program_id(0) == 0)
    numbers = token_numbers(square_k, square_q, shared, g_row, beta_row, K)
    output, factor, tiles = tile_step(tiles, xk, xq, row, numbers, C)
    store_values(u, value, factor, V, BV)
    store_values(o, value, rounded(output, o), V, BV)
    return tiles


@triton.jit
def fetch_keys(q, k, at, stride_qt, stride_kt, K: tl.constexpr, C: tl.constexpr, E: tl.constexpr):
    """(x_k, x_q) of a node as tuples of C tensors [E] as stored."""
    return load_parts(k + at * stride_kt, K, C, E), load_parts(q + at * stride_qt, K, C, E)


@triton.jit
def fetch(v, work, at, first, value, stride_vt, V: tl.constexpr, BV: tl.constexpr):
    """(v [BV], six numbers) of a node. Both come from far, whatever was read before: v from the memory, the numbers
    from the L2 cache, since a program's stores go past its own."""
    work += (at - first) * NUMBERS
    numbers = ()
    for i in tl.static_range(6):
        numbers = numbers + (tl.load(work + i),)
    return get_values(v + at * stride_vt, value, V, BV), numbers


@triton.jit
def apply_pending(tiles, pending_k, pending_u, pending_g, path, count, b, hv, head, value, P, ROWS, H, HV,
                  K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, E: tl.constexpr,
                  PATH: tl.constexpr):  # fmt: skip
    """The tile after the pending factors of sequence b, one by one in the order of the path."""
    for j in tl.range(0, tl.minimum(tl.load(count + b), P)):
        row = j
        if PATH:
            row = tl.load(path + b * P + j).to(tl.int32)
        at = b * ROWS + tl.minimum(tl.maximum(row, 0), ROWS - 1)
        xk = wide(load_parts(pending_k + (at.to(tl.int64) * H + head) * K, K, C, E), C)
        u = get_values(pending_u + (at.to(tl.int64) * HV + hv) * V, value, V, BV)
        tiles = factor_step(tiles, xk, u, tl.load(pending_g + at * HV + hv).to(tl.float32), C)
    return tiles


@triton.jit
def settle(tiles, home, pending_k, pending_u, pending_g, path, count, window, b, hv, head, value, P, ROWS, H, HV,
           K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, E: tl.constexpr,
           PATH: tl.constexpr):  # fmt: skip
    """The tile after its pending factors; written to `home` where they are due."""
    tiles = apply_pending(
        tiles, pending_k, pending_u, pending_g, path, count, b, hv, head, value, P, ROWS, H, HV, K, V, BV, C, E, PATH
    )
    if tl.load(count + b) >= tl.maximum(window, 1):
        store_tile(home, tiles, value, K, V, BV, C, E)
    return tiles


@triton.jit(do_not_specialize=["N", "STEPS", "P", "ROWS", "window"])
def delta_walk(state, q, k, v, g, beta, order, parent, a_log, dt_bias, g_out, work, table, after, o, u,
                pending_k, pending_u, pending_g, path, count, window, N, STEPS, LANES, P, ROWS, H, HV, stride_qb,
                stride_qt, stride_kb, stride_kt, stride_vb, stride_vt, stride_gb, stride_gt, stride_bb, stride_bt,
                K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, E: tl.constexpr,
                NT: tl.constexpr, TB: tl.constexpr, ORDER: tl.constexpr, TREE: tl.constexpr, GATE: tl.constexpr,
                STATES: tl.constexpr, AFTER: tl.constexpr, PENDING: tl.constexpr, PATH: tl.constexpr,
                ONE: tl.constexpr, AHEAD: tl.constexpr, DEPENDENT: tl.constexpr):  # fmt: skip
    """Grid (V / BV, HV, B * LANES): o, u [B,N,HV,V]; `after` [B,HV,V,K] gets the last tile (AFTER).

    `order` int32 [B,LANES,STEPS], -1 behind the last node (ORDER; else node = step); `parent` int64 [B,N] (TREE: 0 the
    context, node i is i + 1). NT >= N and STEPS with an order or a tree, else nodes are prepared NT at a time, TB of
    them at once. `work` [programs,NT,NUMBERS] float32 is room for that. `table` [B,N+1,HV,V,K] holds tiles of nodes
    with a far child (row 0: the context's, with PENDING), or with STATES [B,N,HV,V,K] every node's. A due sequence's
    pending factors are written to `state`. ONE: N is 1, `work` is not used. AHEAD: loaded one step ahead are (1) values
    and numbers, (2) keys too. DEPENDENT: started beside the kernel in front of it, but for the state.
    """
    hv, b = tl.program_id(1), tl.program_id(2) // LANES
    head = hv // (HV // H)
    value = tl.program_id(0) * BV + tl.arange(0, BV)
    home = state + (b.to(tl.int64) * HV + hv) * (V * K)
    shelf = table + (b.to(tl.int64) * (N + 1 - STATES) * HV + hv) * (V * K)
    work += ((tl.program_id(2) * HV + hv) * tl.num_programs(0) + tl.program_id(0)) * (NT * NUMBERS)
    order += tl.program_id(2) * STEPS
    q += b.to(tl.int64) * stride_qb + head * K
    k += b.to(tl.int64) * stride_kb + head * K
    v += b.to(tl.int64) * stride_vb + hv * V
    o += (b.to(tl.int64) * N * HV + hv) * V
    u += (b.to(tl.int64) * N * HV + hv) * V
    g += b * stride_gb + hv
    beta += b * stride_bb + hv
    steps = steps_of(order, STEPS, NT, ORDER)
    if steps == 0:
        return
    tiles = load_tile(home, value, K, V, BV, C, E)
    if DEPENDENT:
        follow()
    last = -1
    if TREE:
        plan(order, parent, work, b, N, steps, NT, ORDER)
    if PENDING:
        tiles = settle(tiles, home, pending_k, pending_u, pending_g, path, count, window, b, hv, head, value, P, ROWS,
                       H, HV, K, V, BV, C, E, PATH)  # fmt: skip
        if TREE:
            store_tile(shelf, tiles, value, K, V, BV, C, E)
    if ONE:
        g_out += b * HV + hv
        tiles = single(tiles, q, k, v, g, beta, a_log, dt_bias, g_out, o, u, hv, value, K, V, BV, C, E, GATE)
    for first in range(0, 0 if ONE else N, NT):
        tl.debug_barrier()
        for block in tl.static_range(0, NT, TB):
            prepare(q, k, g, beta, a_log, dt_bias, g_out, work + block * NUMBERS, first + block, b, hv, N, HV,
                    stride_qt, stride_kt, stride_gt, stride_bt, K, C, E, TB, GATE)  # fmt: skip
        tl.debug_barrier()
        end = steps if ORDER or TREE else tl.minimum(steps, first + NT)
        node = node_at(order, first, end, ORDER)
        row, numbers = fetch(v, work, tl.maximum(node, first), first, value, stride_vt, V, BV)
        if AHEAD > 1:
            xk, xq = fetch_keys(q, k, tl.maximum(node, first), stride_qt, stride_kt, K, C, E)
            xk, xq = wide(xk, C), wide(xq, C)
        for step in range(first, end):
            follower = node_at(order, step + 1, end, ORDER)
            coming = tl.maximum(follower, first)
            next_row, next_numbers = fetch(v, work, coming if AHEAD > 0 else node, first, value, stride_vt, V, BV)
            next_k, next_q = fetch_keys(q, k, coming if AHEAD > 1 else node, stride_qt, stride_kt, K, C, E)
            if AHEAD == 0:
                row, numbers = next_row, next_numbers
            if AHEAD < 2:
                xk, xq = wide(next_k, C), wide(next_q, C)
            if TREE:
                at_plan = work.to(tl.pointer_type(tl.int32)) + step * NUMBERS
                above = tl.load(at_plan + 6)
                if above != last + 1:
                    tl.debug_barrier()
                    far = shelf + (above - STATES).to(tl.int64) * HV * V * K
                    tiles = load_tile(far if PENDING else tl.where(above > 0, far, home), value, K, V, BV, C, E)
            output, factor, tiles = tile_step(tiles, xk, xq, row, numbers, C)
            store_values(u + node * (HV * V), value, factor, V, BV)
            store_values(o + node * (HV * V), value, rounded(output, o), V, BV)
            if STATES:
                store_tile(shelf + node.to(tl.int64) * HV * V * K, tiles, value, K, V, BV, C, E)
            elif TREE and tl.load(at_plan + 7) > 0:
                store_tile(shelf + (node + 1).to(tl.int64) * HV * V * K, tiles, value, K, V, BV, C, E)
            last = node
            node = follower
            row, numbers = next_row, next_numbers
            if AHEAD > 1:
                xk, xq = wide(next_k, C), wide(next_q, C)
    if AFTER:
        store_tile(after + (b.to(tl.int64) * HV + hv) * (V * K), tiles, value, K, V, BV, C, E)
