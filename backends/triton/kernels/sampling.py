"""Counter-based random numbers, the law that a sampler draws from, and draws.

A row is spread over a group of programs, each with a part of it in registers; what they need of each other (sums,
maxima, counts) goes through `exchange`, where they wait for one another. The programs of a group have neighbouring
numbers, so that they are started together; in the interpreter, which runs programs one after the other, a group is one
program. All of a group read the same numbers in the same order, so they decide alike.
"""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.numbers import is_nan
from specc.backends.triton.kernels.vocab import is_last, ordered_bits

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
def exchange(slots, counter, phase, part, a, b, c, d, parts, PARTS: tl.constexpr):
    """Four numbers of each program of a group, float64 [PARTS] each, 0 behind the last part.

    slots float64 [2,4,parts] (a phase must not overwrite what another program still reads of the one before); `counter`
    counts up, `phase` is how often it was called before.
    """
    number = tl.arange(0, PARTS)
    if PARTS > 1:
        slots += (phase % 2) * 4 * parts
        tl.store(slots + part, a)
        tl.store(slots + parts + part, b)
        tl.store(slots + 2 * parts + part, c)
        tl.store(slots + 3 * parts + part, d)
        tl.debug_barrier()
        tl.atomic_add(counter, 1, sem="release")
        seen = tl.atomic_add(counter, 0, sem="acquire")
        while seen < (phase + 1) * parts:
            seen = tl.atomic_add(counter, 0, sem="acquire")
        tl.debug_barrier()
        mask = number < parts
        return (
            tl.load(slots + number, mask=mask, other=0.0, cache_modifier=".cg"),
            tl.load(slots + parts + number, mask=mask, other=0.0, cache_modifier=".cg"),
            tl.load(slots + 2 * parts + number, mask=mask, other=0.0, cache_modifier=".cg"),
            tl.load(slots + 3 * parts + number, mask=mask, other=0.0, cache_modifier=".cg"),
        )
    else:
        return (
            tl.where(number == 0, a, 0.0).to(tl.float64),
            tl.where(number == 0, b, 0.0).to(tl.float64),
            tl.where(number == 0, c, 0.0).to(tl.float64),
            tl.where(number == 0, d, 0.0).to(tl.float64),
        )


@triton.jit
def packed_counts(digit, first, PER: tl.constexpr):
    """How many digits are above first, first + 1, … (PER of them, 4 or 1): counts of up to 4096 as one float64."""
    low = (digit > first).to(tl.int32)
    if PER == 1:
        return tl.sum(low, 0).to(tl.float64)
    else:
        low += (digit > first + 1).to(tl.int32) << 13
        high = (digit > first + 2).to(tl.int32) + ((digit > first + 3).to(tl.int32) << 13)
        return tl.sum(low, 0).to(tl.float64) + tl.sum(high, 0).to(tl.float64) * 67108864.0


@triton.jit
def threshold(key, inside, k, slots, counter, phase, part, parts, PARTS: tl.constexpr, BITS: tl.constexpr):
    """(t, phase): a number that exactly the k largest keys (uint32) of a row, and those equal to the k-th, are not
    below.

    The largest t with at least k keys >= t, from the top four bits of it per exchange; done early if there are exactly
    k. Four counts travel in one number; a part of more than 4096 has two bits per exchange, one count in each.
    """
    DIGIT: tl.constexpr = 4 if key.shape[0] <= 4096 else 2
    PER: tl.constexpr = 4 if key.shape[0] <= 4096 else 1
    best = tl.full([], 0, tl.uint32)
    shift = tl.full([], 32 - DIGIT, tl.uint32)
    exact, left = False, BITS // DIGIT
    while (left > 0) & (exact == 0):
        digit = tl.where(inside & (key >= best), ((key - best) >> shift).to(tl.int32), -1)
        one, two = packed_counts(digit, 0, PER), packed_counts(digit, PER, PER)
        three, four = packed_counts(digit, 2 * PER, PER), packed_counts(digit, 3 * PER, PER)
        sums = exchange(slots, counter, phase, part, one, two, three, four, parts, PARTS)
        phase += 1
        taken = tl.full([], 0, tl.uint32)
        hit = taken != 0
        for slot in tl.static_range(4):
            whole = sums[slot].to(tl.int64)
            for place in tl.static_range(PER):
                if slot * PER + place + 1 < (1 << DIGIT):
                    there = tl.sum(((whole >> (13 * place)) & (8191 if PER > 1 else 0x7FFFFFFF)).to(tl.int32), 0)
                    taken += (there >= k).to(tl.uint32)
                    hit = hit | (there == k)
        exact = hit
        best += taken << shift
        shift -= DIGIT
        left -= 1
    return best, phase


@triton.jit
def law_part(law, column, inside, temperature, k, slots, counter, part, parts, PARTS: tl.constexpr,
             SOFT: tl.constexpr, TOP_K: tl.constexpr, BITS: tl.constexpr):  # fmt: skip
    """(p, sums, phase): a part of a row's law, from logits (SOFT: temperature, top k) or as it is given, 0 outside; the
    sums of all parts, float64 [PARTS]."""
    phase = tl.full([], 0, tl.int32)
    raw = tl.load(law + column, mask=inside, other=0.0).to(tl.float32)
    if SOFT:
        keep = inside
        if TOP_K:
            key = ordered_bits(raw).to(tl.uint32, bitcast=True) ^ 0x80000000
            least, phase = threshold(key, inside, k, slots, counter, phase, part, parts, PARTS, BITS)
            # Read again: the search needs the registers.
            raw = tl.load(law + column, mask=inside, other=0.0).to(tl.float32)
            keep = inside & (ordered_bits(raw).to(tl.uint32, bitcast=True) ^ 0x80000000 >= least)
        scaled = tl.math.div_rn(raw, temperature)
        own = tl.max(tl.where(inside & ~is_nan(scaled), scaled, float("-inf")), 0)
        own = tl.where(own == float("-inf"), -3.0e38, own)
        weight = tl.sum(tl.where(keep, tl.exp(scaled - own), 0.0).to(tl.float64), 0)
        largest, sums, _, _ = exchange(slots, counter, phase, part, own.to(tl.float64), weight, 0.0, 0.0, parts, PARTS)
        phase += 1
        largest = tl.where(tl.arange(0, PARTS) < parts, largest, -3.0e38).to(tl.float32)
        most = tl.max(largest, 0)
        # A NaN stays one, whatever its part is worth.
        sums = tl.where(sums > 0.0, sums * tl.exp(largest - most).to(tl.float64), sums)
        total = tl.sum(sums, 0)
        sums = sums / total
        raw = tl.where(keep, tl.exp(scaled - most), 0.0)
        raw = tl.where(inside, tl.math.div_rn(raw, total.to(tl.float32)), 0.0)
    else:
        sums, _, _, _ = exchange(
            slots,
            counter,
            phase,
            part,
            tl.sum(tl.where(inside, raw, 0.0).to(tl.float64), 0),
            0.0,
            0.0,
            0.0,
            parts,
            PARTS,
        )
        phase += 1
    return raw, sums, phase


@triton.jit
def release(counters, row, rows, parts, PARTS: tl.constexpr):
    """Clears the counter that a group waited at, once all of it have come by."""
    if PARTS > 1:
        last = is_last(counters + rows, row, parts)
        if last:
            tl.store(counters + row, 0)


@triton.jit
def law_rows(logits, probs, slots, counters, V, stride, rows, parts, temperature, k, TOP_K: tl.constexpr,
             BITS: tl.constexpr, PARTS: tl.constexpr, SPAN: tl.constexpr):  # fmt: skip
    """probs float32 [R,V] = the law of each row of logits. Grid (parts, R).

    counters int32 [2,R], slots float64 [R,2,4,parts].
    """
    part, row = tl.program_id(0), tl.program_id(1)
    column = part * SPAN + tl.arange(0, SPAN)
    p, _, _ = law_part(
        logits + row.to(tl.int64) * stride, column, column < V, temperature, k, slots + row * 8 * parts, counters + row,
        part, parts, PARTS, True, TOP_K, BITS,
    )  # fmt: skip
    tl.store(probs + row.to(tl.int64) * V + column, p, mask=column < V)
    release(counters, row, rows, parts, PARTS)
