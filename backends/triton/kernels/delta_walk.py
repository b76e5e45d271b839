"""The delta rule token by token, the state tile in registers: chains, serial and hybrid trees, replay, plain decoding.

One kernel for all of them, with one step (`delta_tile.tile_step`): they give the same bits. What a step needs that
does not depend on the state (norms, gates, x_k . x_q) is computed for a block of nodes beforehand, while the state is
on its way from memory, and lies in a small table of the program's own. For short chains that is in shared memory, with
keys, queries and values in float32: no warp converts them again, and no step waits behind the tile that another program
reads, as loads do for those in front of them. Nodes come in the order of their number or of an array. Where a node does
not follow its parent directly, the parent's tile has been kept: one at a time in registers, others in a table in memory
(SpecLA, hybrid schedule; `heavy_order` leaves few of those).
"""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.delta_rows import gates, prefetch, touch
from specc.backends.triton.kernels.delta_tile import (
    factor_step,
    get,
    get_near,
    get_six,
    get_six_near,
    get_values,
    load_row,
    load_rows,
    load_tile,
    own_rows,
    put,
    put_near,
    put_row_near,
    room,
    row_near,
    store_tile,
    store_values,
    tile_rows,
    tile_step,
    token_numbers,
    token_sums,
    wide_rows,
)
from specc.backends.triton.kernels.dot import INTERPRETED, rounded
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
def opaque(x):
    """x < 2^30 as each thread's own number. A compiler that knew that it counts would carry a pointer for every operand
    of a step, two additions each, and of a number that is equal in all threads make copies: 10 of 350 instructions."""
    if INTERPRETED:
        return x
    else:
        return tl.inline_asm_elementwise(
            "{.reg .b32 t; mov.u32 t, %tid.x; or.b32 t, t, 0x40000000; min.s32 $0, $1, t;}", "=r,r", [x], tl.int32,
            True, 1,
        )  # fmt: skip


@triton.jit
def ask(q, k, g, beta, first, N, stride_qt, stride_kt, stride_gt, stride_bt, K: tl.constexpr, T: tl.constexpr,
        W: tl.constexpr, C: tl.constexpr, E: tl.constexpr):  # fmt: skip
    """What `prepare` needs of nodes first .. first + T as stored, tensors of W nodes: (keys, queries, g, beta)."""
    keys, queries, decays, betas = (), (), (), ()
    for at in tl.static_range(0, T, W):
        node = tl.minimum(first + at + tl.arange(0, W)[:, None] + tl.arange(0, E // 4)[None, :] * 0, N - 1)
        decays, betas = decays + (get(g + node * stride_gt),), betas + (get(beta + node * stride_bt),)
    for at in tl.static_range(0, T, W):
        keys = keys + load_rows(k, first + at, N, stride_kt, K, W, C, E)
        queries = queries + load_rows(q, first + at, N, stride_qt, K, W, C, E)
    return keys, queries, decays, betas


@triton.jit
def prepare(asked, a_log, dt_bias, g_out, work, near, first, block: tl.constexpr, b, hv, N, HV, K: tl.constexpr,
            NT: tl.constexpr, T: tl.constexpr, W: tl.constexpr, C: tl.constexpr, E: tl.constexpr, NEAR: tl.constexpr,
            GATE: tl.constexpr):  # fmt: skip
    """The numbers of nodes first + block .. + T, and with NEAR their keys and queries, to where `delta_walk` has them;
    `g_out` gets the log decays (GATE)."""
    keys, queries, decays, betas = asked
    for at in tl.static_range(0, T, W):
        row = block + at + tl.arange(0, W)[:, None] + tl.arange(0, E // 4)[None, :] * 0
        node = first + row
        xk, xq = wide_rows(keys, at // W * C, C), wide_rows(queries, at // W * C, C)
        if NEAR:
            place = near + row * (C * E * 4) + tl.arange(0, E // 4)[None, :] * 16
            put_row_near(place, xk, C, E)
            put_row_near(place + NT * C * E * 4, xq, C, E)
        square_k, square_q, shared = token_sums(xk, xq, C, W, E // 4)
        g_rows, beta_rows = gates(decays[at // W], betas[at // W], a_log, dt_bias, hv, GATE)
        numbers = token_numbers(square_k, square_q, shared, g_rows, beta_rows, K)
        for i in tl.static_range(6):
            if NEAR:
                put_near(near + 2 * NT * C * E * 4 + row * (NUMBERS * 4) + i * 4, numbers[i])
            else:
                put(work + row * NUMBERS + i, numbers[i])
        if GATE > 0:
            tl.store(g_out + (b * N + node) * HV + hv, g_rows, mask=(node < N) & (tl.program_id(0) == 0))


@triton.jit
def ask_values(v, first, top, N, stride_vt, V: tl.constexpr, NT: tl.constexpr, ROWS: tl.constexpr):
    """[NT,ROWS]: the values of nodes first .. first + NT from place `top` on, as stored."""
    node, value = tl.minimum(first + tl.arange(0, NT), N - 1)[:, None], top + tl.arange(0, ROWS)[None, :]
    if V % ROWS == 0:
        return tl.load(v + node * stride_vt + value)
    else:
        return tl.load(v + node * stride_vt + value, mask=value < V, other=0.0)


@triton.jit
def ask_early(q, k, v, g, beta, top, N, stride_qt, stride_kt, stride_vt, stride_gt, stride_bt, K: tl.constexpr,
              V: tl.constexpr, NT: tl.constexpr, TB: tl.constexpr, W: tl.constexpr, ROWS: tl.constexpr,
              C: tl.constexpr, E: tl.constexpr, NEAR: tl.constexpr):  # fmt: skip
    """What `make_ready` needs, asked for before the tile: (`ask` of the first TB nodes, `ask_values` or nothing)."""
    values = ()
    if NEAR:
        values = ask_values(v, 0, top, N, stride_vt, V, NT, ROWS)
    else:
        prefetch(v + top + tl.minimum(tl.arange(0, NT), N - 1) * stride_vt)
    asked = ask(q, k, g, beta, 0, N, stride_qt, stride_kt, stride_gt, stride_bt, K, TB, W, C, E)
    tl.debug_barrier()  # loads do not pass it, so these come before the tile's
    return asked, values


@triton.jit
def make_ready(asked, values, q, k, v, g, beta, a_log, dt_bias, g_out, work, near, first, top, b, hv, N, HV, stride_qt,
               stride_kt, stride_vt, stride_gt, stride_bt, K: tl.constexpr, V: tl.constexpr, NT: tl.constexpr,
               TB: tl.constexpr, W: tl.constexpr, R: tl.constexpr, C: tl.constexpr, E: tl.constexpr,
               NEAR: tl.constexpr, GATE: tl.constexpr, EARLY: tl.constexpr):  # fmt: skip
    """`prepare` for nodes first .. first + NT, TB at once; values and numbers come near. EARLY: `asked` has the first
    TB, `values` all (NEAR). Nothing that a step loads may come from far: loads return in their order, and keys would
    wait behind values."""
    if not EARLY:
        tl.debug_barrier()
    if N > 0:  # a branch, which sums do not pass: ptxas would put them, and their wait, before the tile's loads
        for block in tl.static_range(0, NT, TB):
            at = first + block
            if block == 0 and EARLY:
                rows = asked
            else:
                rows = ask(q, k, g, beta, at, N, stride_qt, stride_kt, stride_gt, stride_bt, K, TB, W, C, E)
            prepare(rows, a_log, dt_bias, g_out, work, near, first, block, b, hv, N, HV, K, NT, TB, W, C, E, NEAR,
                    GATE)  # fmt: skip
    if NEAR:
        if not EARLY:
            values = ask_values(v, first, top, N, stride_vt, V, NT, R * W)
        place = tl.arange(0, NT)[:, None] * (R * W) + tl.arange(0, R * W)[None, :]
        put_near(near + NT * (2 * C * E + NUMBERS) * 4 + place * 4, values.to(tl.float32))
        tl.debug_barrier()
        return
    node, sector = tl.minimum(first + tl.arange(0, NT), N - 1), tl.arange(0, (R * W + 7) // 8)
    touch(v + node[:, None] * stride_vt + tl.minimum(top + sector * 8, V - 1)[None, :])
    tl.debug_barrier()
    touch(work + tl.arange(0, NT) * NUMBERS)


@triton.jit
def farthest(above, node, axis: tl.constexpr, NT: tl.constexpr):
    """Of each step's node, along the other axis than `axis`: the last step of a child that does not follow it; -1."""
    step = tl.arange(0, NT)
    i, j = (step[:, None], step[None, :]) if axis == 1 else (step[None, :], step[:, None])
    return tl.max(tl.where((above == node + 1) & (j != i + 1), j, -1), axis)


@triton.jit
def plan(order, parent, work, b, N, STEPS, NT: tl.constexpr, ORDER: tl.constexpr):
    """What each step of a walk over a tree has to do, into `work` [NT,NUMBERS] as integers: the parent's row (6; 0 the
    context, node i is i + 1), and what becomes of the tile (7). 0: only the next node, if any, hangs on the step's. 2:
    it is kept beside, since until the last node that hangs on it no other tile has to be; 1: it goes to the table."""
    step = tl.arange(0, NT)
    node = step
    if ORDER:
        node = tl.load(order + step, mask=step < STEPS, other=-1)
    inside = (node >= 0) & (step < STEPS)
    above = tl.load(parent + b * N + node, mask=inside, other=-1).to(tl.int32)
    node = tl.where(inside, node, -2)
    at = work.to(tl.pointer_type(tl.int32)) + step * NUMBERS
    last = farthest(above[None, :], node[:, None], 1, NT)
    others = farthest(above[:, None], node[None, :], 0, NT)[None, :]
    between = (others >= 0) & (step[None, :] > step[:, None]) & (step[None, :] < last[:, None])
    tl.store(at + 6, above)
    tl.store(at + 7, tl.where(last >= 0, 2 - tl.max(between.to(tl.int32), 1), 0))


@triton.jit
def single(tile, q, k, v, g, beta, a_log, dt_bias, g_out, o, u, hv, own, K: tl.constexpr, V: tl.constexpr,
           W: tl.constexpr, R: tl.constexpr, C: tl.constexpr, E: tl.constexpr, GATE: tl.constexpr):  # fmt: skip
    """The tile after a sequence's only token: the sums of `prepare` in their order, by the threads of each row for
    themselves."""
    value = get_values(v + own, own, V, W * R)
    xk, xq = load_row(k + tl.arange(0, E), K, C, E), load_row(q + tl.arange(0, E), K, C, E)
    square_k, square_q, shared = token_sums(xk, xq, C, W, E // 4)
    g_row, beta_row = gates(tl.load(g), tl.load(beta), a_log, dt_bias, hv, GATE)
    if GATE > 0:
        tl.store(g_out, g_row, mask=tl.program_id(0) == 0)
    numbers = token_numbers(square_k, square_q, shared, g_row, beta_row, K)
    output, factor, tile = tile_step(tile, xk, xq, value, numbers, W, R, C, E // 4)
    store_values(u + own, own, factor, V, W * R)
    store_values(o + own, own, rounded(output, o), V, W * R)
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
        xk = load_row(pending_k + (at.to(tl.int64) * H + head) * K + tl.arange(0, E), K, C, E)
        factors = ()
        for r in tl.static_range(R):
            value = tile_rows(first, r, W, R, E // 4, E // 4)
            factors = factors + (get_values(pending_u + (at.to(tl.int64) * HV + hv) * V + value, value, V, W * R),)
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


@triton.jit
def fetched(kept, beside, far, first, K: tl.constexpr, V: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
            C: tl.constexpr, E: tl.constexpr):  # fmt: skip
    """The kept tile if the wanted one is `beside`; else that which this program has written to `far`."""
    if beside:
        tile = kept
    else:
        tl.debug_barrier()
        tile = load_tile(far, first, K, V, W, R, C, E)
    return tile


@triton.jit
def step_numbers(at_work, at_v, near, node, own, top, V: tl.constexpr, NT: tl.constexpr, ROWS: tl.constexpr,
                 C: tl.constexpr, E: tl.constexpr, NEAR: tl.constexpr):  # fmt: skip
    """A node's numbers and its values of a program's own rows, in float32."""
    if NEAR:
        numbers = near + 2 * NT * C * E * 4
        values = numbers + NT * NUMBERS * 4 + (own - top) * 4
        return get_six_near(numbers + node * (NUMBERS * 4)), get_near(values + node * (ROWS * 4))
    else:
        return get_six(at_work), get_values(at_v, own, V, ROWS)


@triton.jit
def step_rows(at_k, at_q, near, node, K: tl.constexpr, NT: tl.constexpr, C: tl.constexpr, E: tl.constexpr,
              NEAR: tl.constexpr):  # fmt: skip
    """A node's key and query as 4 C tensors [1,L] float32."""
    if NEAR:
        at = near + tl.arange(0, E // 4)[None, :] * 16 + node * (C * E * 4)
        return row_near(at, 0, C, E), row_near(at, NT * C * E * 4, C, E)
    else:
        return load_row(at_k, K, C, E), load_row(at_q, K, C, E)


@triton.jit(do_not_specialize=["N", "STEPS", "P", "ROWS", "window"])
def delta_walk(state, q, k, v, g, beta, order, parent, a_log, dt_bias, g_out, work, table, after, o, u,
               pending_k, pending_u, pending_g, path, count, window, N, STEPS, LANES: tl.constexpr, P, ROWS,
               H: tl.constexpr, HV: tl.constexpr, stride_qb, stride_qt: tl.constexpr, stride_kb,
               stride_kt: tl.constexpr, stride_vb, stride_vt: tl.constexpr, stride_gb, stride_gt: tl.constexpr,
               stride_bb, stride_bt: tl.constexpr, K: tl.constexpr, V: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
               C: tl.constexpr, E: tl.constexpr, NT: tl.constexpr, TB: tl.constexpr, ORDER: tl.constexpr,
               TREE: tl.constexpr, GATE: tl.constexpr, STATES: tl.constexpr, AFTER: tl.constexpr, PENDING: tl.constexpr,
               PATH: tl.constexpr, ONE: tl.constexpr, SHORT: tl.constexpr, NEAR: tl.constexpr,
               DEPENDENT: tl.constexpr):  # fmt: skip
    """Grid (V / (R W), HV, B * LANES): o, u [B,N,HV,V]; `after` [B,HV,V,K] gets the last tile (AFTER).

    `order` int32 [B,LANES,STEPS], -1 behind the last node (ORDER; else node = step); `parent` int64 [B,N] (TREE: 0 the
    context, node i is i + 1). NT >= N and STEPS with an order or a tree, else nodes are prepared NT at a time, TB of
    them at once. `work` [programs,NT,NUMBERS] float32 is room for that. `table` [B,N+1,HV,V,K] holds tiles of nodes
    with a far child (row 0: the context's, with PENDING), or with STATES [B,N,HV,V,K] every node's. A due sequence's
    pending factors are written to `state`. ONE: N is 1, without `work`. SHORT: N <= NT. NEAR: not `work` but shared
    memory holds what a step needs: keys, queries [NT,C E], numbers [NT,NUMBERS], values [NT,R W]. DEPENDENT: `follow`.
    """
    EARLY: tl.constexpr = SHORT and not (ONE or PENDING or DEPENDENT)
    hv, b = tl.program_id(1), tl.program_id(2) // LANES
    head, top = hv // (HV // H), tl.program_id(0) * (R * W)
    own = own_rows(top, W, R, E // 4)
    home = state + (b.to(tl.int64) * HV + hv) * (V * K)
    shelf = table + (b.to(tl.int64) * (N + 1 - STATES) * HV + hv) * (V * K)
    work += ((tl.program_id(2) * HV + hv) * tl.num_programs(0) + tl.program_id(0)) * (NT * NUMBERS)
    order += tl.program_id(2) * STEPS
    q, k = q + b.to(tl.int64) * stride_qb + head * K, k + b.to(tl.int64) * stride_kb + head * K
    v, g, beta = v + b.to(tl.int64) * stride_vb + hv * V, g + b * stride_gb + hv, beta + b * stride_bb + hv
    o, u = o + (b.to(tl.int64) * N * HV + hv) * V, u + (b.to(tl.int64) * N * HV + hv) * V
    if LANES > 1:
        steps = steps_of(order, STEPS, NT, ORDER)
        if steps == 0:
            return
    near, asked, values = room(NT * (2 * C * E + NUMBERS + R * W) * 4) if NEAR else 0, (), ()
    if EARLY:
        asked, values = ask_early(q, k, v, g, beta, top, N, stride_qt, stride_kt, stride_vt, stride_gt, stride_bt, K, V,
                                  NT, TB, W, R * W, C, E, NEAR)  # fmt: skip
    tile = load_tile(home, top, K, V, W, R, C, E)
    if DEPENDENT:
        follow()
    if LANES == 1:
        steps = steps_of(order, STEPS, NT, ORDER)
    if TREE:
        plan(order, parent, work, b, N, steps, NT, ORDER)
    if PENDING:
        tile = settle(tile, home, pending_k, pending_u, pending_g, path, count, window, b, hv, head, top, P, ROWS,
                      H, HV, K, V, W, R, C, E, PATH)  # fmt: skip
        if TREE:
            store_tile(shelf, tile, top, K, V, W, R, C, E)
    if ONE:
        at_g = g_out + b * HV + hv
        tile = single(tile, q, k, v, g, beta, a_log, dt_bias, at_g, o, u, hv, own, K, V, W, R, C, E, GATE)
    last, keeper, kept, wide, lane = -1, -1, tile, tl.full([], 0, tl.int64), tl.arange(0, E)  # kept: of `keeper`
    at_q, at_k, at_v, at_u, at_o = q + lane, k + lane, v + own, u + own, o + own
    for first in range(0, 0 if ONE else (NT if SHORT else N), NT):
        make_ready(asked, values, q, k, v, g, beta, a_log, dt_bias, g_out, work, near, first, top, b, hv, N, HV,
                   stride_qt, stride_kt, stride_vt, stride_gt, stride_bt, K, V, NT, TB, W, R, C, E, NEAR, GATE,
                   EARLY)  # fmt: skip
        coming = tl.load(order) if ORDER else -1
        for step in range(first, steps if SHORT else tl.minimum(steps, first + NT)):
            node = opaque(step)
            if ORDER:
                node = coming
                coming = tl.load(order + step + 1, mask=step + 1 < steps, other=-1)
            at = wide + node
            token, value = step_numbers(work + (at - first) * NUMBERS, at_v + at * stride_vt, near, node - first, own,
                                        top, V, NT, R * W, C, E, NEAR)  # fmt: skip
            if TREE:
                at_plan = work.to(tl.pointer_type(tl.int32)) + step * NUMBERS
                above, fate = tl.load(at_plan + 6), tl.load(at_plan + 7)
                if above != last + 1:
                    far = shelf + (above - STATES).to(tl.int64) * HV * V * K
                    far = far if PENDING else tl.where(above > 0, far, home)
                    tile = fetched(kept, above == keeper + 1, far, top, K, V, W, R, C, E)
            # Behind the tile's own load: keys in registers across it would leave room for fewer programs at once.
            xk, xq = step_rows(at_k + at * stride_kt, at_q + at * stride_qt, near, node - first, K, NT, C, E, NEAR)
            output, factor, tile = tile_step(tile, xk, xq, value, token, W, R, C, E // 4)
            store_values(at_u + at * (HV * V), own, factor, V, R * W)
            store_values(at_o + at * (HV * V), own, rounded(output, o), V, R * W)
            if STATES:
                store_tile(shelf + at * HV * V * K, tile, top, K, V, W, R, C, E)
            elif TREE and fate == 1:
                store_tile(shelf + (at + 1) * HV * V * K, tile, top, K, V, W, R, C, E)
            if TREE and fate == 2:
                tl.debug_barrier()  # keeps the branch: without it every step would select every number
                kept, keeper = tile, node
            last = node
    if AFTER:
        store_tile(after + (b.to(tl.int64) * HV + hv) * (V * K), tile, top, K, V, W, R, C, E)
