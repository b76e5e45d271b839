"""A recurrent layer's projection with its short convolution and its gates behind the product, in one launch.

A program of the product owns features of all tokens, and the convolution goes feature by feature: so what it needs are
earlier inputs of the program's own features, which come while the product runs. Sums and roundings are those of the
launches apart (`linear`, `conv_one`, `tree_conv_nodes`), so that a token has the same bits.
"""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from specc.backends.triton.kernels.delta_rows import gate_values
from specc.backends.triton.kernels.dot import bfloat16, dot_exact, dot_vector, rounded
from specc.backends.triton.kernels.linear import finished, products, weight_rows


@triton.jit
def convolved(raw, projected, y, scales, bias, beside, sequence, token, channel, inside, N, C, features,
              BF: tl.constexpr, BM: tl.constexpr, W: tl.constexpr, BIAS: tl.constexpr, TREE: tl.constexpr):  # fmt: skip
    """silu of the convolution of the newest inputs `raw` [BF,BM] and those before them into y [rows,C]; scales [BF,1].

    Inputs of this launch are read from `projected` [rows,features], where the program has written its own.
    """
    total = tl.zeros([BF, BM], tl.float32)
    for tap in tl.static_range(W):
        if tap == W - 1:
            taken = raw.to(tl.float32)
        else:
            taken = beside[1 + tap].to(tl.float32)
            if TREE:
                row = beside[W + tap]
                at = projected + (sequence * N + row).to(tl.int64) * features + channel
                new = tl.load(at, mask=inside & (row >= 0), other=0.0, cache_modifier=".cg")
                taken = tl.where(row >= 0, new.to(tl.float32), taken)
        total = tl.fma(taken, tl.broadcast_to(scales[tap].to(tl.float32), [BF, BM]), total)
    if BIAS:
        total += tl.load(bias + channel, mask=channel < C, other=0.0).to(tl.float32)
    out = total / (1.0 + tl.exp(-total))
    tl.store(y + token.to(tl.int64) * C + channel, rounded(out, y), mask=inside)


@triton.jit
def move_window(window, raw, beside, sequence, channel, inside, C, W: tl.constexpr, LIVE: tl.constexpr):
    """The window [B,W-1,C] of one token each, moved on by it; where a sequence does not move, it stays."""
    at = window + sequence.to(tl.int64) * ((W - 1) * C) + channel
    moves = inside & (beside[0] != 0) if LIVE else inside
    for place in tl.static_range(W - 1):
        if place == W - 2:
            tl.store(at + place * C, raw.to(window.dtype.element_ty), mask=moves)
        else:
            tl.store(at + place * C, beside[2 + place], mask=moves)


@triton.jit
def make_gates(raw, scales, g_out, beta_out, beside, token, live, first, a_at, b_at, HV, BF: tl.constexpr,
               BM: tl.constexpr, BH: tl.constexpr, LIVE: tl.constexpr, GATE: tl.constexpr):  # fmt: skip
    """g and beta [rows,HV] float32 from the features that hold raw a and b; zeros for rows that are not live.

    raw [BF,BM] of the features from `first` on; scales: (a_log, dt_bias) [2 BH,1] of the heads, twice. Raw a and then b
    are picked by a product with ones and zeros: gates of a whole tile would take as long as a launch.
    """
    place = tl.arange(0, 2 * BH)[:, None]
    head = place % BH
    row = tl.where(place < BH, head + a_at, head + b_at) - first
    picks = tl.where((row == tl.arange(0, BF)[None, :]) & (head < HV), 1.0, 0.0)
    nothing = tl.zeros([2 * BH, BM], tl.float32)
    if raw.dtype == tl.bfloat16:
        picked = dot_exact(bfloat16(picks), raw, nothing)
    else:
        picked = dot_vector(picks.to(raw.dtype), raw, nothing)
    g, beta = gate_values(picked, picked, scales[0].to(tl.float32), scales[1].to(tl.float32), GATE)
    made = tl.where(place < BH, g, beta)
    if LIVE:
        made = tl.where(beside[0] != 0, made, 0.0)
    at = tl.where(place < BH, g_out + token.to(tl.int64) * HV + head, beta_out + token.to(tl.int64) * HV + head)
    tl.store(at, made, mask=live & (head < HV) & (row >= 0) & (row < BF))


@triton.jit(do_not_specialize=["rows"])
def linear_conv(x, weight, boxes, norm, projected, window, taps, bias, parent, moves, kept, y, a_log, dt_bias, g, beta,
                rows, features, hidden, x_stride, pair_stride, eps, N, C, a_at, b_at, HV, BF: tl.constexpr,
                BM: tl.constexpr, BK: tl.constexpr, W: tl.constexpr, EARLY: tl.constexpr, BOXES: tl.constexpr,
                BH: tl.constexpr, BIAS: tl.constexpr, NORM: tl.constexpr, TREE: tl.constexpr, LIVE: tl.constexpr,
                KEEP: tl.constexpr, GATE: tl.constexpr, EVEN: tl.constexpr, DEPENDENT: tl.constexpr,
                LATE: tl.constexpr):  # fmt: skip
    """`linear` of BF features of all tokens into `projected` [rows,features], then the convolution of its first C
    features into y [rows,C] and the gates from those at a_at and b_at into g, beta [rows,HV].

    Without TREE every token is a sequence of its own (N is 1), whose window [B,W-1,C] moves on where `moves` [B] (LIVE)
    says so. With TREE, sequences have N nodes each with `parent` [B,N], and `kept` [rows,C] (KEEP) gets the
    convolution's inputs. All rows, BM at most, are in one program.
    """
    tile = tl.program_id(0)
    row = weight_rows(tile, features, BF, False)
    token = tl.arange(0, BM)
    feature = tile * BF + tl.arange(0, BF)
    column, pair = tl.arange(0, BK)[None, :], tl.arange(0, BK // 2)[None, :]
    w_at = (weight + row.to(tl.int64) * hidden)[:, None] + column
    x_at = (x + token.to(tl.int64) * x_stride)[:, None] + column
    pairs_at = x.to(tl.pointer_type(tl.int32)) + tl.minimum(token, rows - 1).to(tl.int64) * pair_stride
    live, known = (token < rows)[None, :], tl.minimum(token, rows - 1)[None, :]
    sequence, node = known // N, known % N
    channel, inside = feature[:, None], live & (feature < C)[:, None]
    old, above = tl.zeros([BF, BM], window.dtype.element_ty), tl.zeros([1, BM], tl.int32)
    beside = (above,)
    for _ in tl.static_range(W - 1):
        beside = beside + (old,)
    for _ in tl.static_range(W - 1):
        beside = beside + (above,)
    scales = ()  # weights, so that they may come before the kernel in front has ended
    for tap in tl.static_range(W):
        scales = scales + (tl.load(taps + channel * W + tap, mask=channel < C, other=0.0),)
    head = tl.arange(0, 2 * BH)[:, None] % BH
    for_g = (tl.load(a_log + head, mask=head < HV, other=0.0), tl.load(dt_bias + head, mask=head < HV, other=0.0))
    given = (window, parent, moves, sequence, node, channel, inside, N, C)
    acc, squares, beside = products(
        boxes, w_at, tile * BF, x_at, pairs_at[:, None] + pair, column, pair, norm, (token < rows)[:, None], given,
        beside, tl.zeros([BF, BM], tl.float32), tl.zeros([BM, BK], tl.float32), hidden, 0, tl.cdiv(hidden, BK), BK,
        EARLY, BOXES, NORM, False, W, TREE, False, EVEN, DEPENDENT, LATE)  # fmt: skip
    if DEPENDENT and LATE:
        gdc_launch_dependents()
    out = finished(acc, tl.sum(squares, 1), norm, row, hidden, eps, BF, BM, False, NORM, False)
    raw = rounded(out, projected)
    token = token[None, :]
    tl.store(projected + token.to(tl.int64) * features + channel, raw, mask=live & (channel < features))
    if tile * BF < C:
        if TREE:
            if KEEP:
                tl.store(kept + token.to(tl.int64) * C + channel, raw.to(kept.dtype.element_ty), mask=inside)
            tl.debug_barrier()  # the program's inputs are in memory
        convolved(raw, projected, y, scales, bias, beside, sequence, token, channel, inside, N, C, features, BF, BM, W,
                  BIAS, TREE)  # fmt: skip
        if not TREE:
            move_window(window, raw, beside, sequence, channel, inside, C, W, LIVE)
    if (tile + 1) * BF > tl.minimum(a_at, b_at) and tile * BF < tl.maximum(a_at, b_at) + HV:
        make_gates(raw, for_g, g, beta, beside, token, live, tile * BF, a_at, b_at, HV, BF, BM, BH, LIVE, GATE)
