"""One token through a whole recurrent layer between its projections: convolution, gates, the rule's step, head norm.

A program owns a few rows of one value head's state, as in `delta_walk`, and computes the convolution of its key head's
q and k itself: they are short, and nobody waits for somebody else. What does not need the token is read before the
kernel in front has ended: the state, the window and the weights. The last program of a key head to arrive has all
outputs of its value heads in front of it, for the norm, and moves the window of q and k on: nobody reads it any more.

Orders of operations are those of the kernels that go one by one (`conv`, `region_math`, `delta_walk`), so a token's
bits are the same.
"""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from specc.backends.triton.kernels.delta_rows import columns
from specc.backends.triton.kernels.delta_tile import load_tile, store_tile, token_step
from specc.backends.triton.kernels.dot import rounded
from specc.backends.triton.kernels.head_norm import ask_ahead, gated_norm
from specc.backends.triton.kernels.region_math import sigmoid, softplus


@triton.jit
def part(row, place, LIVE: tl.constexpr, inside):
    """Numbers of a row as float32; zeros where not `inside` (LIVE: they all are)."""
    if LIVE:
        return tl.load(row + place).to(tl.float32)
    else:
        return tl.load(row + place, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def old_taps(window, weight, channel, inside, WIDTH, W: tl.constexpr, EVEN: tl.constexpr):
    """(the convolution's sum over the window [W-1,WIDTH], the weight of the newest input) of some channels."""
    total = tl.zeros(channel.shape, tl.float32)
    for tap in tl.static_range(W - 1):
        scale = part(weight, channel * W + tap, EVEN, inside)
        total = tl.fma(part(window, tap * WIDTH + channel, EVEN, inside), scale, total)
    return total, part(weight, channel * W + (W - 1), EVEN, inside)


@triton.jit
def convolved(total, newest, scale, bias, channel, inside, like, BIAS: tl.constexpr, EVEN: tl.constexpr):
    """silu of the whole sum, rounded to the inputs' dtype."""
    total = tl.fma(newest, scale, total)
    if BIAS:
        total += part(bias, channel, EVEN, inside)
    return rounded(total / (1.0 + tl.exp(-total)), like)


@triton.jit
def next_rows(window, x, channel, place, inside, WIDTH, W: tl.constexpr, EVEN: tl.constexpr):
    """The rows of the window [W-1,WIDTH] of some channels without its oldest input and with the one at x + place."""
    rows = ()
    for tap in tl.static_range(1, W - 1):
        rows = rows + (part(window, tap * WIDTH + channel, EVEN, inside),)
    return rows + (part(x, place, EVEN, inside),)


@triton.jit
def put_rows(window, rows, channel, inside, WIDTH, W: tl.constexpr, EVEN: tl.constexpr):
    """`next_rows` to where they belong, when every thread has read its part of the window."""
    for tap in tl.static_range(W - 1):
        if EVEN:
            tl.store(window + tap * WIDTH + channel, rounded(rows[tap], window))
        else:
            tl.store(window + tap * WIDTH + channel, rounded(rows[tap], window), mask=inside)


@triton.jit
def delta_step(state, window, q, k, v, a, b, gate, weight, bias, a_log, dt_bias, norm, live, counted, o, out, arrived,
               H, HV, WIDTH, eps, stride_qb, stride_qh, stride_kb, stride_kh, stride_vb, stride_vh, stride_ab,
               stride_ah, stride_bb, stride_bh, stride_gb, stride_gh,
               K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, E: tl.constexpr,
               SHARE: tl.constexpr, W: tl.constexpr, RATE: tl.constexpr, BIAS: tl.constexpr, LIVE: tl.constexpr,
               COUNTED: tl.constexpr, DEPENDENT: tl.constexpr):  # fmt: skip
    """Grid (V / BV, HV, B): out [B,HV,V], state [B,HV,V,K] and window [B,W-1,WIDTH] of one token per sequence.

    Value head h belongs to key head h // SHARE; q, k, v, a, b and gate have strides for sequence and key head, what
    belongs to a key head lies side by side. `o` [B,HV,V] is room for the rule's outputs; arrived [B H] is 0 before and
    after. beta = RATE sigmoid(b). LIVE: rows that are not keep their window; COUNTED: rows that are not keep the state.
    DEPENDENT: started beside the kernel in front of it, which writes neither state nor window.
    """
    hv, row = tl.program_id(1), tl.program_id(2).to(tl.int64)
    head, share = hv // SHARE, hv % SHARE
    value = tl.program_id(0) * BV + tl.arange(0, BV)
    column = columns(C, E)
    even_k: tl.constexpr = C * E == K
    even_v: tl.constexpr = V % BV == 0
    window += row * (W - 1) * WIDTH
    home = state + (row * HV + hv) * (V * K)
    q_channel, k_channel, v_channel = head * K + column, (H + head) * K + column, 2 * H * K + hv * V + value
    tile = load_tile(home, value, K, V, BV, C, E)
    k_total, k_scale = old_taps(window, weight, k_channel, column < K, WIDTH, W, even_k)
    q_total, q_scale = old_taps(window, weight, q_channel, column < K, WIDTH, W, even_k)
    v_total, v_scale = old_taps(window, weight, v_channel, value < V, WIDTH, W, even_v)
    speed = -tl.exp(tl.load(a_log + hv).to(tl.float32))
    shift = tl.load(dt_bias + hv).to(tl.float32)
    ask_ahead(norm, V)
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    q += row * stride_qb + head * stride_qh
    k += row * stride_kb + head * stride_kh
    v += row * stride_vb + head * stride_vh + share * V
    gate += row * stride_gb + head * stride_gh
    newest_k, newest_q = part(k, column, even_k, column < K), part(q, column, even_k, column < K)
    newest_v = part(v, value, even_v, value < V)
    g = softplus(tl.load(a + row * stride_ab + head * stride_ah + share).to(tl.float32) + shift) * speed
    beta = sigmoid(tl.load(b + row * stride_bb + head * stride_bh + share).to(tl.float32)) * RATE
    if COUNTED:
        counts = tl.load(counted + row) != 0
        g, beta = tl.where(counts, g, 0.0), tl.where(counts, beta, 0.0)
    xk = convolved(k_total, newest_k, k_scale, bias, k_channel, column < K, k, BIAS, even_k)
    xq = convolved(q_total, newest_q, q_scale, bias, q_channel, column < K, q, BIAS, even_k)
    xv = convolved(v_total, newest_v, v_scale, bias, v_channel, value < V, v, BIAS, even_v)
    output, _, tile = token_step(tile, xk, xq, xv, g, beta, K, C, E)
    o += (row * HV + head * SHARE) * V
    tl.store(o + share * V + value, rounded(output, o), mask=value < V)
    tl.debug_barrier()
    at = arrived + row * H + head
    is_last = tl.atomic_add(at, 1, sem="acq_rel") == SHARE * tl.num_programs(0) - 1
    # Nobody waits for the new state.
    store_tile(home, tile, value, K, V, BV, C, E)
    moves = tl.load(live + row) != 0 if LIVE else True
    v_rows = next_rows(window, v, v_channel, value, value < V, WIDTH, W, even_v)
    if is_last:
        k_rows = next_rows(window, k, k_channel, column, column < K, WIDTH, W, even_k)
        q_rows = next_rows(window, q, q_channel, column, column < K, WIDTH, W, even_k)
        gated_norm(o, gate, norm, out + (row * HV + head * SHARE) * V, eps, SHARE, V)
        tl.store(at, 0)
        tl.debug_barrier()
        if moves:
            put_rows(window, k_rows, k_channel, column < K, WIDTH, W, even_k)
            put_rows(window, q_rows, q_channel, column < K, WIDTH, W, even_k)
    tl.debug_barrier()
    if moves:
        put_rows(window, v_rows, v_channel, value < V, WIDTH, W, even_v)
