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

from specc.backends.triton.kernels.delta_rows import gates, touch
from specc.backends.triton.kernels.delta_tile import (
    factor_step,
    get,
    get_six,
    get_values,
    load_row,
    load_rows,
    load_tile,
    own_rows,
    put,
    store_tile,
    store_values,
    tile_rows,
    tile_step,
    token_numbers,
    token_sums,
    wide_rows,
)
from specc.backends.triton.kernels.dot import rounded
from specc.backends.triton.kernels.region_math import follow

NUMBERS = tl.constexpr(8)
"""Words per node in a program's table: one sector. Six are a token's numbers, two say where it stands in a tree."""


@triton.jit
def steps_of(order, STEPS, NT: tl.constexpr, ORDER: tl.constexpr):
    """How many steps there are: those of an order end with the first -1."""
    if ORDER:
        place = tl.arange(0, NT)
        return tl.sum((tl.load(order + place, mask=place < STEPS, other=-1) >= 0).to(tl.int32), 0)
    else:
        return STEPS


@triton.jit
def prepare(q, k, g, beta, a_log, dt_bias, g_out, work, first, b, hv, N, HV, stride_qt, stride_kt, stride_gt,
            stride_bt, K: tl.constexpr, T: tl.constexpr, W: tl.constexpr, C: tl.constexpr, E: tl.constexpr,
            GATE: tl.constexpr):  # fmt: skip
    """The numbers of nodes first .. first + T into `work` [T,NUMBERS]; `g_out` gets the log decays (GATE).

    W nodes per tensor: with more of them a thread would have other columns, and lanes other sums. All loads come first.
    """
    keys, queries = (), ()
    for at in tl.static_range(0, T, W):
        keys = keys + load_rows(k, first + at, N, stride_kt, K, W, C, E)
        queries = queries + load_rows(q, first + at, N, stride_qt, K, W, C, E)
    for at in tl.static_range(0, T, W):
        row = at + tl.arange(0, W)[:, None] + tl.arange(0, E // 4)[None, :] * 0
        node = first + row
        inside = tl.minimum(node, N - 1)
        g_rows, beta_rows = get(g + inside * stride_gt), get(beta + inside * stride_bt)
        xk, xq = wide_rows(keys, at // W * C, C), wide_rows(queries, at // W * C, C)
        square_k, square_q, shared = token_sums(xk, xq, C, W, E // 4)
        g_rows, beta_rows = gates(g_rows, beta_rows, a_log, dt_bias, hv, GATE)
        numbers = token_numbers(square_k, square_q, shared, g_rows, beta_rows, K)
        for i in tl.static_range(6):
            put(work + row * NUMBERS + i, numbers[i])
        if GATE > 0:
            tl.store(g_out + (b * N + node) * HV + hv, g_rows, mask=(node < N) & (tl.program_id(0) == 0))


@triton.jit
def make_ready(q, k, v, g, beta, a_log, dt_bias, g_out, work, first, b, hv, N, HV, stride_qt, stride_kt, stride_vt,
               stride_gt, stride_bt, K: tl.constexpr, NT: tl.constexpr, TB: tl.constexpr, W: tl.constexpr,
               C: tl.constexpr, E: tl.constexpr, GATE: tl.constexpr):  # fmt: skip
    """`prepare` for nodes first .. first + NT, TB at once; what their steps read comes near."""
    tl.debug_barrier()
    for block in tl.static_range(0, NT, TB):
        prepare(q, k, g, beta, a_log, dt_bias, g_out, work + block * NUMBERS, first + block, b, hv, N, HV, stride_qt,
                stride_kt, stride_gt, stride_bt, K, TB, W, C, E, GATE)  # fmt: skip
    tl.debug_barrier()
    near = tl.arange(0, NT)
    touch(work + near * NUMBERS)
    touch(v + tl.minimum(first + near, N - 1) * stride_vt)


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
def single(tile, q, k, v, g, beta, a_log, dt_bias, g_out, o, u, hv, own, K: tl.constexpr, V: tl.constexpr,
           W: tl.constexpr, R: tl.constexpr, C: tl.constexpr, E: tl.constexpr, GATE: tl.constexpr):  # fmt: skip
    """The tile after a sequence's only token: the sums of `prepare` in their order, by the threads of each row for
    themselves."""
    value = get_values(v, own, V, W * R)
    xk, xq = load_row(k, K, C, E), load_row(q, K, C, E)
    square_k, square_q, shared = token_sums(xk, xq, C, W, E // 4)
    g_row, beta_row = gates(tl.load(g), tl.load(beta), a_log, dt_bias, hv, GATE)
    if GATE > 0:
        tl.store(g_out, g_row, mask=tl.program_id(0) == 0)
    numbers = token_numbers(square_k, square_q, shared, g_row, beta_row, K)
    output, factor, tile = tile_step(tile, xk, xq, value, numbers, W, R, C, E // 4)
    store_values(u, own, factor, V, W * R)
    store_values(o, own, rounded(output, o), V, W * R)
    return tile


@triton.jit
def apply_pending(tile, pending_k, pending_u, pending_g, path, count, b, hv, head, first, P, ROWS, H, HV,
                  K: tl.constexpr, V: tl.constexpr, W: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
                  E: tl.constexpr, PATH: tl.constexpr):  # fmt: skip
    """The tile after the pending factors of sequence b, one by one in the order of the path."""
    for j in tl.range(0, tl.minimum(tl.load(count + b), P)):
        row = j
        if PATH:
            row = tl.load(path + b * P + j).to(tl.int32)
        at = b * ROWS + tl.minimum(tl.maximum(row, 0), ROWS - 1)
        xk = load_row(pending_k + (at.to(tl.int64) * H + head) * K, K, C, E)
        factors = ()
        for r in tl.static_range(R):
            value = tile_rows(first, r, W, R, E // 4, E // 4)
            factors = factors + (get_values(pending_u + (at.to(tl.int64) * HV + hv) * V, value, V, W * R),)
        decay = tl.load(pending_g + at * HV + hv).to(tl.float32)
        tile = factor_step(tile, xk, factors, decay, W, R, C, E // 4)
    return tile


@triton.jit
def settle(tile, home, pending_k, pending_u, pending_g, path, count, window, b, hv, head, first, P, ROWS, H, HV,
           K: tl.constexpr, V: tl.constexpr, W: tl.constexpr, R: tl.constexpr, C: tl.constexpr, E: tl.constexpr,
           PATH: tl.constexpr):  # fmt: skip
    """The tile after its pending factors; written to `home` where they are due."""
    tile = apply_pending(
        tile, pending_k, pending_u, pending_g, path, count, b, hv, head, first, P, ROWS, H, HV, K, V, W, R, C, E, PATH
    )
    if tl.load(count + b) >= tl.maximum(window, 1):
        store_tile(home, tile, first, K, V, W, R, C, E)
    return tile


@triton.jit(do_not_specialize=["N", "STEPS", "P", "ROWS", "window"])
def delta_walk(state, q, k, v, g, beta, order, parent, a_log, dt_bias, g_out, work, table, after, o, u,
               pending_k, pending_u, pending_g, path, count, window, N, STEPS, LANES, P, ROWS, H, HV, stride_qb,
               stride_qt, stride_kb, stride_kt, stride_vb, stride_vt, stride_gb, stride_gt, stride_bb, stride_bt,
               K: tl.constexpr, V: tl.constexpr, W: tl.constexpr, R: tl.constexpr, C: tl.constexpr, E: tl.constexpr,
               NT: tl.constexpr, TB: tl.constexpr, ORDER: tl.constexpr, TREE: tl.constexpr, GATE: tl.constexpr,
               STATES: tl.constexpr, AFTER: tl.constexpr, PENDING: tl.constexpr, PATH: tl.constexpr,
               ONE: tl.constexpr, DEPENDENT: tl.constexpr):  # fmt: skip
    """Grid (V / (R W), HV, B * LANES): o, u [B,N,HV,V]; `after` [B,HV,V,K] gets the last tile (AFTER).

    `order` int32 [B,LANES,STEPS], -1 behind the last node (ORDER; else node = step); `parent` int64 [B,N] (TREE: 0 the
    context, node i is i + 1). NT >= N and STEPS with an order or a tree, else nodes are prepared NT at a time, TB of
    them at once. `work` [programs,NT,NUMBERS] float32 is room for that. `table` [B,N+1,HV,V,K] holds tiles of nodes
    with a far child (row 0: the context's, with PENDING), or with STATES [B,N,HV,V,K] every node's. A due sequence's
    pending factors are written to `state`. ONE: N is 1, `work` is not used. DEPENDENT: started beside the kernel in
    front of it, but for the state.
    """
    hv, b = tl.program_id(1), tl.program_id(2) // LANES
    head = hv // (HV // H)
    top = tl.program_id(0) * (R * W)
    own = own_rows(top, W, R, E // 4)
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
    tile = load_tile(home, top, K, V, W, R, C, E)
    if DEPENDENT:
        follow()
    last, coming, wide = -1, -1, tl.full([], 0, tl.int64)
    if TREE:
        plan(order, parent, work, b, N, steps, NT, ORDER)
    if PENDING:
        tile = settle(tile, home, pending_k, pending_u, pending_g, path, count, window, b, hv, head, top, P, ROWS,
                      H, HV, K, V, W, R, C, E, PATH)  # fmt: skip
        if TREE:
            store_tile(shelf, tile, top, K, V, W, R, C, E)
    if ONE:
        g_out += b * HV + hv
        tile = single(tile, q, k, v, g, beta, a_log, dt_bias, g_out, o, u, hv, own, K, V, W, R, C, E, GATE)
    for first in range(0, 0 if ONE else N, NT):
        make_ready(q, k, v + top, g, beta, a_log, dt_bias, g_out, work, first, b, hv, N, HV, stride_qt, stride_kt,
                   stride_vt, stride_gt, stride_bt, K, NT, TB, W, C, E, GATE)  # fmt: skip
        end = steps if ORDER or TREE else tl.minimum(steps, first + NT)
        at_q, at_k, at_v, number = q + first * stride_qt, k + first * stride_kt, v + first * stride_vt, work
        if ORDER:
            coming = tl.load(order)
        for step in range(first, end):
            node = step
            if ORDER:
                node = coming
                coming = tl.load(order + step + 1, mask=step + 1 < end, other=-1)
                at_q, at_k, at_v = q + node * stride_qt, k + node * stride_kt, v + node * stride_vt
                number = work + node * NUMBERS
            token = get_six(number)
            value = get_values(at_v, own, V, R * W)
            if TREE:
                at_plan = work.to(tl.pointer_type(tl.int32)) + step * NUMBERS
                above = tl.load(at_plan + 6)
                if above != last + 1:
                    tl.debug_barrier()
                    far = shelf + (above - STATES).to(tl.int64) * HV * V * K
                    tile = load_tile(far if PENDING else tl.where(above > 0, far, home), top, K, V, W, R, C, E)
            # Behind the tile's own load: keys in registers across it would leave room for fewer programs at once.
            xk, xq = load_row(at_k, K, C, E), load_row(at_q, K, C, E)
            output, factor, tile = tile_step(tile, xk, xq, value, token, W, R, C, E // 4)
            store_values(u + node * (HV * V), own, factor, V, R * W)
            store_values(o + node * (HV * V), own, rounded(output, o), V, R * W)
            if STATES:
                store_tile(shelf + (wide + node) * HV * V * K, tile, top, K, V, W, R, C, E)
            elif TREE and tl.load(at_plan + 7) > 0:
                store_tile(shelf + (wide + node + 1) * HV * V * K, tile, top, K, V, W, R, C, E)
            last = node
            at_q, at_k, at_v, number = at_q + stride_qt, at_k + stride_kt, at_v + stride_vt, number + NUMBERS
    if AFTER:
        store_tile(after + (b.to(tl.int64) * HV + hv) * (V * K), tile, top, K, V, W, R, C, E)
