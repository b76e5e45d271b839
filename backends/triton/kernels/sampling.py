"""Counter-based random numbers, the law that a sampler draws from, and draws.

A row is spread over a group of programs, each with a part of it in registers; what they need of each other (sums,
maxima, counts) goes through `exchange`, where they wait for one another. The programs of a group have neighbouring
numbers, so that they are started together; in the interpreter, which runs programs one after the other, a group is one
program. All of a group read the same numbers in the same order, so they decide alike.

Every word that a program leaves for the others carries the number of the exchange that it is for (32 bits of value, 32
of number), so that those who wait for it see at once that it is there: no counter, and no fence in front of it. Numbers
go on from launch to launch, each row's from where it left `turns`.
"""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.numbers import is_nan
from specc.backends.triton.kernels.region_math import follow
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
def leave_word(box, value, tag, mask):
    """Leaves the lower 32 bits of int64 `value` for another program."""
    tl.atomic_xchg(box, (tag.to(tl.int64) << 32) | (value & 0xFFFFFFFF), mask=mask, sem="relaxed")


@triton.jit
def collect_word(box, tag, mask):
    """(value, late): an int32 that another program has left, 0 where `mask` is not; 1 where it is not there yet."""
    word = tl.load(box, mask=mask, other=0, volatile=True)
    return word.to(tl.int32), (((word >> 32).to(tl.int32) != tag) & mask).to(tl.int32)


@triton.jit
def leave(box, value, tag, parts):
    """Leaves a float64 for the others of a group: two words, `parts` words apart."""
    bits = value.to(tl.float64).to(tl.int64, bitcast=True)
    leave_word(box, bits, tag, None)
    leave_word(box + parts, shifted(bits, 32), tag, None)


@triton.jit
def collect(box, tag, number, parts):
    """(value, late): what each of a group has left, float64, 0 behind the last part; 1 where it is not there yet."""
    low, late = collect_word(box + number, tag, number < parts)
    high, more = collect_word(box + parts + number, tag, number < parts)
    bits = (high.to(tl.int64) << 32) | (low.to(tl.int64) & 0xFFFFFFFF)
    return bits.to(tl.float64, bitcast=True), late | more


@triton.jit
def exchange(boxes, tag, part, a, b, c, parts, PARTS: tl.constexpr, COUNT: tl.constexpr):
    """COUNT (1 to 3) numbers of each program of a group, float64 [PARTS] each, 0 behind the last part.

    boxes int64 [2,16,parts]: an exchange must not overwrite what another program still reads of the one before. `tag`:
    the exchange's number, one more than that of the one before.
    """
    number = tl.arange(0, PARTS)
    if PARTS > 1:
        boxes += (tag & 1) * 16 * parts
        leave(boxes + part, a, tag, parts)
        if COUNT > 1:
            leave(boxes + 2 * parts + part, b, tag, parts)
        if COUNT > 2:
            leave(boxes + 4 * parts + part, c, tag, parts)
        one = tl.zeros([PARTS], tl.float64)
        two, three = one, one
        waiting = tl.full([], 1, tl.int32)
        while waiting > 0:
            one, late = collect(boxes, tag, number, parts)
            if COUNT > 1:
                two, more = collect(boxes + 2 * parts, tag, number, parts)
                late = late | more
            if COUNT > 2:
                three, more = collect(boxes + 4 * parts, tag, number, parts)
                late = late | more
            waiting = tl.max(late, 0)
        return one, two, three
    else:
        return (
            tl.where(number == 0, a, 0.0).to(tl.float64),
            tl.where(number == 0, b, 0.0).to(tl.float64),
            tl.where(number == 0, c, 0.0).to(tl.float64),
        )


@triton.jit
def first_tag(turns, row, PARTS: tl.constexpr):
    """The number of a row's first exchange in this launch."""
    tag = tl.full([], 0, tl.int32)
    if PARTS > 1:
        tag = tl.load(turns + row, cache_modifier=".cg") + 1
    return tag


@triton.jit
def last_tag(turns, row, tag, part, PARTS: tl.constexpr):
    """Keeps a number that no exchange of a row in this launch is behind; all of the group have come by the first."""
    if PARTS > 1:
        tl.store(turns + row, tag, mask=part == 0)


@triton.jit
def sum_counts(counts, boxes, tag, part, parts, PARTS: tl.constexpr):
    """The sums of int32 [16] over a group; the exchange `tag`, see `exchange`."""
    if PARTS > 1:
        number, place = tl.arange(0, PARTS), tl.arange(0, 16)
        boxes += (tag & 1) * 16 * parts
        leave_word(boxes + part * 16 + place, counts.to(tl.int64), tag, None)
        all_counts = tl.zeros([PARTS, 16], tl.int32)
        waiting = tl.full([], 1, tl.int32)
        while waiting > 0:
            box = boxes + number[:, None] * 16 + place[None, :]
            all_counts, late = collect_word(box, tag, (number < parts)[:, None] & (place >= 0)[None, :])
            waiting = tl.max(tl.max(late, 1), 0)
        counts = tl.sum(all_counts, 0)
    return counts


@triton.jit
def threshold(key, inside, k, boxes, tag, part, parts, PARTS: tl.constexpr, BITS: tl.constexpr):
    """(t, tag): a number that exactly the k largest keys (uint32) of a row, and those equal to the k-th, are not
    below.

    Four bits of the k-th largest per exchange, from the top; done early if there are exactly k.
    """
    digits = tl.arange(0, 16)
    best, shift = tl.full([], 0, tl.uint32), tl.full([], 28, tl.uint32)
    above, count, left = tl.full([], 0, tl.int32), tl.full([], 0x7FFFFFFF, tl.int32), BITS // 4
    while (left > 0) & (count > k):
        digit = ((key - best) >> shift).to(tl.int32)
        own = tl.histogram(digit, 16, mask=inside & (key >= best) & (digit >= 0) & (digit < 16))
        reached = above + tl.cumsum(sum_counts(own, boxes, tag, part, parts, PARTS), 0, reverse=True)
        tag += 1
        taken = tl.sum(((reached >= k) & (digits > 0)).to(tl.int32), 0)
        count = tl.sum(tl.where(digits == taken, reached, 0), 0)
        above = tl.maximum(above, tl.sum(tl.where(digits == taken + 1, reached, 0), 0))
        best += taken.to(tl.uint32) << shift
        shift -= 4
        left -= 1
    return best, tag


@triton.jit
def part_of_law(law, column, inside, temperature, k, boxes, tag, part, parts, PARTS: tl.constexpr, SOFT: tl.constexpr,
                TOP_K: tl.constexpr, BITS: tl.constexpr):  # fmt: skip
    """(weights, largest, least, tag) of a part of a row, 0 outside: the numbers themselves, or exp(x / temperature -
    largest) of logits (SOFT) that are not below `least` (uint32, TOP_K); the next exchange's number."""
    largest, least = tl.full([], 0.0, tl.float32), tl.full([], 0, tl.uint32)
    raw = tl.load(law + column, mask=inside, other=0.0).to(tl.float32)
    if SOFT:
        keep = inside
        if TOP_K:
            key = ordered_bits(raw).to(tl.uint32, bitcast=True) ^ 0x80000000
            least, tag = threshold(key, inside, k, boxes, tag, part, parts, PARTS, BITS)
            # Read again: the search needs the registers.
            raw = tl.load(law + column, mask=inside, other=0.0).to(tl.float32)
            keep = inside & (ordered_bits(raw).to(tl.uint32, bitcast=True) ^ 0x80000000 >= least)
        scaled = tl.math.div_rn(raw, temperature)
        largest = tl.max(tl.where(inside & ~is_nan(scaled), scaled, float("-inf")), 0)
        largest = tl.where(largest == float("-inf"), -3.0e38, largest)
        raw = tl.where(keep, tl.exp(scaled - largest), 0.0)
    return raw, largest, least, tag


@triton.jit
def joined_sums(largest, sums, parts, PARTS: tl.constexpr, SOFT: tl.constexpr):
    """(sums float64 [PARTS], most, their total): sums of all parts by a common scale, exp(-most)."""
    most = tl.full([], 0.0, tl.float32)
    if SOFT:
        largest = tl.where(tl.arange(0, PARTS) < parts, largest, -3.0e38).to(tl.float32)
        most = tl.max(largest, 0)
        # A NaN stays one, whatever its part is worth.
        sums = tl.where(sums > 0.0, sums * tl.exp(largest - most).to(tl.float64), sums)
    return sums, most, tl.sum(sums, 0)


@triton.jit
def law_rows(logits, probs, boxes, turns, V, stride, parts, temperature, k, TOP_K: tl.constexpr, BITS: tl.constexpr,
             PARTS: tl.constexpr, SPAN: tl.constexpr):  # fmt: skip
    """probs float32 [R,V] = the law of each row of logits. Grid (parts, R).

    turns int32 [R], boxes int64 [R,2,16,parts]: see the module.
    """
    follow()
    part, row = tl.program_id(0), tl.program_id(1)
    column = part * SPAN + tl.arange(0, SPAN)
    logits += row.to(tl.int64) * stride
    boxes += row * 32 * parts
    weight, largest, _, tag = part_of_law(logits, column, column < V, temperature, k, boxes,
                                          first_tag(turns, row, PARTS), part, parts, PARTS, True, TOP_K,
                                          BITS)  # fmt: skip
    own = tl.sum(weight.to(tl.float64), 0)
    maxima, sums, _ = exchange(boxes, tag, part, largest, own, 0.0, parts, PARTS, 2)
    _, most, total = joined_sums(maxima, sums, parts, PARTS, True)
    p = tl.math.div_rn(weight * tl.exp(largest - most), total.to(tl.float32))
    tl.store(probs + row.to(tl.int64) * V + column, p, mask=column < V)
    last_tag(turns, row, tag, part, PARTS)
