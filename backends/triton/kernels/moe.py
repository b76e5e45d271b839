"""A mixture of experts for few tokens: routing, and each chosen expert's weights read where they lie.

Every sum runs in the same order for each token, however many there are.
"""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.dot import rounded
from specc.backends.triton.kernels.vocab import pick_best


@triton.jit(do_not_specialize=["K"])
def route_rows(logits, chosen, weight, E, K, EP: tl.constexpr, KP: tl.constexpr, NORM: tl.constexpr):
    """The K most probable of E experts for each row of logits, ties to the lower number. Grid (T,).

    chosen int32 [T,K]; weight [T,K]: their softmax over all experts in float32, scaled to sum 1 with NORM.
    """
    token = tl.program_id(0)
    expert, turn = tl.arange(0, EP), tl.arange(0, KP)
    x = tl.load(logits + token * E + expert, mask=expert < E, other=float("-inf")).to(tl.float32)
    exponential = tl.exp(x - tl.max(x, 0))
    probability = tl.math.div_rn(exponential, tl.sum(exponential, 0))
    found = pick_best(tl.where(expert < E, probability, float("-inf")), K, KP)
    own = tl.where(turn < K, tl.gather(probability, found, 0), 0.0)
    if NORM:
        own = tl.math.div_rn(own, tl.sum(own, 0))
    tl.store(chosen + token * K + turn, found, mask=turn < K)
    tl.store(weight + token * K + turn, rounded(own, weight), mask=turn < K)


@triton.jit(do_not_specialize=["K"])
def expert_gates(x, gate_up, chosen, inner, hidden, width, K, x_stride,
                 BI: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """inner [T,K,width] = silu(x gate^T) * (x up^T) of each token's chosen experts. Grid (width / BI, K, T).

    x [T,hidden]; gate_up [E,2,width,hidden].
    """
    turn, token = tl.program_id(1), tl.program_id(2)
    feature, column = tl.program_id(0) * BI + tl.arange(0, BI), tl.arange(0, BK)
    expert = tl.load(chosen + token * K + turn).to(tl.int64)
    rows = gate_up + expert * 2 * width * hidden + feature[:, None].to(tl.int64) * hidden
    gate, up = tl.zeros([BI, BK], tl.float32), tl.zeros([BI, BK], tl.float32)
    for first in tl.range(0, hidden, BK):
        at = first + column
        mask = (feature < width)[:, None] & (at < hidden)[None, :]
        value = tl.load(x + token.to(tl.int64) * x_stride + at, mask=at < hidden, other=0.0).to(tl.float32)[None, :]
        gate += tl.load(rows + at[None, :], mask=mask, other=0.0).to(tl.float32) * value
        up += tl.load(rows + width * hidden + at[None, :], mask=mask, other=0.0).to(tl.float32) * value
    opened = tl.sum(gate, 1)
    opened = opened / (1.0 + tl.exp(-opened)) * tl.sum(up, 1)
    tl.store(inner + (token * K + turn).to(tl.int64) * width + feature, rounded(opened, inner), mask=feature < width)


@triton.jit(do_not_specialize=["K"])
def expert_sums(inner, down, chosen, weight, y, hidden, width, K, BH: tl.constexpr, BK: tl.constexpr):
    """y [T,hidden] = sum over a token's experts of weight * (inner down^T); down [E,hidden,width].

    Grid (hidden / BH, T).
    """
    token = tl.program_id(1).to(tl.int64)
    feature, column = tl.program_id(0) * BH + tl.arange(0, BH), tl.arange(0, BK)
    total = tl.zeros([BH], tl.float32)
    for turn in tl.range(0, K):
        expert = tl.load(chosen + token * K + turn).to(tl.int64)
        rows = down + expert * hidden * width + feature[:, None].to(tl.int64) * width
        part = tl.zeros([BH, BK], tl.float32)
        for first in tl.range(0, width, BK):
            at = first + column
            mask = (feature < hidden)[:, None] & (at < width)[None, :]
            value = tl.load(inner + (token * K + turn) * width + at, mask=at < width, other=0.0).to(tl.float32)
            part += tl.load(rows + at[None, :], mask=mask, other=0.0).to(tl.float32) * value[None, :]
        total += tl.sum(part, 1) * tl.load(weight + token * K + turn).to(tl.float32)
    tl.store(y + token * hidden + feature, rounded(total, y), mask=feature < hidden)
