"""Counter-based random numbers, the law that a sampler draws from, and draws.

A row's law is p(x) = exp(logit(x) / temperature - largest) / total where logit(x) is among the top k, read from the
logits again wherever it is needed: one program has a row, so a law takes no memory.
"""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.vocab import ordered_bits

GOLDEN = tl.constexpr(0x9E3779B97F4A7C15 - 2**64)
MIX_1 = tl.constexpr(0xBF58476D1CE4E5B9 - 2**64)
MIX_2 = tl.constexpr(0x94D049BB133111EB - 2**64)


@triton.jit
def shifted(x, BITS: tl.constexpr):
    """Logical right shift of int64."""
    return (x >> BITS) & ((1 << (64 - BITS)) - 1)


@triton.jit
def mix(x):
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014) on int64."""
    x = (x ^ shifted(x, 30)) * MIX_1
    x = (x ^ shifted(x, 27)) * MIX_2
    return x ^ shifted(x, 31)


@triton.jit
def counter_hash(rng, position, draw):
    """int64 hash of three int64 counters."""
    state = mix(rng + GOLDEN)
    state = mix(state + (position + 1) * GOLDEN)
    return mix(state + (draw + 1) * GOLDEN)


@triton.jit
def unit_interval(x):
    """float64 in [0, 1) from the upper 53 bits."""
    return shifted(x, 11).to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def uniform_rows(rng, position, draw, out, rows, size, BLOCK: tl.constexpr):
    """out float64 [B,M,size]: column j of row (b, m) from (rng[b], position[b,m], draw[b,m], j). Grid (blocks, B M)."""
    row = tl.program_id(1)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    base = counter_hash(tl.load(rng + row // rows), tl.load(position + row), tl.load(draw + row))
    value = unit_interval(mix(base + (column.to(tl.int64) + 1) * GOLDEN))
    tl.store(out + row.to(tl.int64) * size + column, value, mask=column < size)


@triton.jit
def uniforms(rng, position, out, draw, size, BLOCK: tl.constexpr):
    """out float64 [size]: a number for each (rng, position) and this draw."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = place < size
    state = tl.load(rng + place, mask=keep, other=0)
    at = tl.load(position + place, mask=keep, other=0)
    tl.store(out + place, unit_interval(counter_hash(state, at, draw.to(tl.int64))), mask=keep)


@triton.jit
def scaled_logits(logits, column, inside, temperature):
    """logit / temperature in float32, -inf outside."""
    return tl.math.div_rn(tl.load(logits + column, mask=inside, other=float("-inf")).to(tl.float32), temperature)


@triton.jit
def threshold(logits, V, k, BITS: tl.constexpr, BLOCK: tl.constexpr):
    """The k-th largest of a row of logits, as `ordered_bits`, or a number between it and the next one.

    Two bits are found per pass over the row, from the top: the largest t with at least k keys >= t. Done early if
    there are exactly k.
    """
    best = tl.full([], -2147483648, tl.int64)
    step = tl.full([], 1 << 30, tl.int64)
    exact = False
    while (step >= (1 << (32 - BITS))) & (exact == 0):
        one, two, three = tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK], tl.int32)
        for first in tl.range(0, V, BLOCK):
            column = first + tl.arange(0, BLOCK)
            key = ordered_bits(tl.load(logits + column, mask=column < V, other=float("-inf")).to(tl.float32))
            key = tl.where(column < V, key, -2147483648).to(tl.int64)
            one += (key >= best + step).to(tl.int32)
            two += (key >= best + 2 * step).to(tl.int32)
            three += (key >= best + 3 * step).to(tl.int32)
        low, middle, high = tl.sum(one, 0), tl.sum(two, 0), tl.sum(three, 0)
        exact = (low == k) | (middle == k) | (high == k)
        more = (low >= k).to(tl.int64) + (middle >= k).to(tl.int64) + (high >= k).to(tl.int64)
        best += more * step
        step = step >> 2
    return best


@triton.jit
def row_law(logits, V, temperature, k, TOP_K: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr):
    """(largest, total, least) of a row: see the module; `least` is the smallest key (`ordered_bits`) that is kept."""
    largest = tl.full([BLOCK], float("-inf"), tl.float32)
    for first in tl.range(0, V, BLOCK):
        column = first + tl.arange(0, BLOCK)
        largest = tl.maximum(largest, tl.load(logits + column, mask=column < V, other=float("-inf")).to(tl.float32))
    most = tl.math.div_rn(tl.max(largest, 0), temperature)
    least = tl.full([], -2147483648, tl.int64)
    if TOP_K:
        least = threshold(logits, V, k, BITS, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for first in tl.range(0, V, BLOCK):
        column = first + tl.arange(0, BLOCK)
        total += weight(logits, column, column < V, temperature, most, least, TOP_K)
    return most, tl.sum(total, 0), least


@triton.jit
def weight(logits, column, inside, temperature, most, least, TOP_K: tl.constexpr):
    """exp(logit / temperature - most) of what is kept, 0 elsewhere."""
    raw = tl.load(logits + column, mask=inside, other=float("-inf")).to(tl.float32)
    value = tl.exp(tl.math.div_rn(raw, temperature) - most)
    if TOP_K:
        inside = inside & (ordered_bits(raw).to(tl.int64) >= least)
    return tl.where(inside, value, 0.0)


@triton.jit(do_not_specialize=["stride", "k"])
def law_rows(logits, probs, V, stride, temperature, k, TOP_K: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr):
    """probs float32 [R,V] = the law of each row of logits. Grid (R,)."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    most, total, least = row_law(logits, V, temperature, k, TOP_K, BITS, BLOCK)
    for first in tl.range(0, V, BLOCK):
        column = first + tl.arange(0, BLOCK)
        value = weight(logits, column, column < V, temperature, most, least, TOP_K)
        tl.store(probs + row * V + column, tl.math.div_rn(value, total), mask=column < V)
