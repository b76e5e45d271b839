"""Lossless acceptance of a tree whose drafts have no law of their own (target_only).

What a node decides follows from a few sums over its row: those of the tokens that are no children of it, and the
children's own weights. So no program waits for another: a first launch leaves the sum of each part of each row, in a
second one a program per node decides, and the last one of a tree follows the path. With top_k each part leaves the
largest numbers it has, too, and the node finds the k-th among them.
"""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.numbers import is_nan
from specc.backends.triton.kernels.region_math import follow
from specc.backends.triton.kernels.sampling import counter_hash, unit_interval
from specc.backends.triton.kernels.sampling_tree import depth_of, follow_path
from specc.backends.triton.kernels.vocab import is_last, ordered_bits


@triton.jit
def unsigned_key(x):
    """uint32 in the order of float32 x (NaN above all)."""
    return ordered_bits(x).to(tl.uint32, bitcast=True) ^ 0x80000000


@triton.jit
def number_of(key):
    """The float32 of a key."""
    bits = (key ^ 0x80000000).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True)


@triton.jit
def kth_key(key, inside, k, most, BITS: tl.constexpr):
    """(t, count): a number that at least k of the keys (uint32) are not below, and how many are not.

    Four bits of the k-th largest at a time, until no more than `most` are left or it is known exactly; 0 if there are
    fewer than k.
    """
    digits = tl.arange(0, 16)
    best, shift = tl.full([], 0, tl.uint32), tl.full([], 28, tl.uint32)
    above, count, left = tl.full([], 0, tl.int32), tl.sum(inside.to(tl.int32), 0), BITS // 4
    while (left > 0) & (count > most):
        digit = ((key - best) >> shift).to(tl.int32)
        numbers = tl.histogram(digit, 16, mask=inside & (key >= best) & (digit >= 0) & (digit < 16))
        reached = above + tl.cumsum(numbers, 0, reverse=True)
        taken = tl.sum(((reached >= k) & (digits > 0)).to(tl.int32), 0)
        count = tl.sum(tl.where(digits == taken, reached, 0), 0)
        above = tl.maximum(above, tl.sum(tl.where(digits == taken + 1, reached, 0), 0))
        best += taken.to(tl.uint32) << shift
        shift -= 4
        left -= 1
    return best, count


@triton.jit
def children_of(parent, valid, node, N, TREE: tl.constexpr, NB: tl.constexpr):
    """(place, mask) [NB]: which nodes are children of `node`."""
    place = tl.arange(0, NB)
    above = place - 1
    if TREE:
        above = tl.load(parent + place, mask=place < N, other=-1).to(tl.int32)
    known = (place > 0) & (place < N) & (tl.load(valid + place, mask=place < N, other=0) != 0)
    return place, known & (above == node)


@triton.jit
def part_weights(law, tokens, place, child, part, V, temperature, SOFT: tl.constexpr, NB: tl.constexpr,
                 SPAN: tl.constexpr):  # fmt: skip
    """(numbers, weights, largest, columns, drafted) of a part: weights are exp(x / temperature - largest) of logits
    (SOFT), else the numbers themselves; 0 outside. `drafted`: columns that are tokens of children."""
    column = part * SPAN + tl.arange(0, SPAN)
    raw = tl.load(law + column, mask=column < V, other=float("-inf") if SOFT else 0.0).to(tl.float32)
    largest, weight = tl.full([], 0.0, tl.float32), raw
    if SOFT:
        scaled = tl.math.div_rn(raw, temperature)
        largest = tl.max(tl.where(is_nan(scaled), float("-inf"), scaled), 0)
        weight = tl.where(column < V, tl.exp(scaled - tl.where(largest == float("-inf"), 0.0, largest)), 0.0)
    drafted = column < 0
    at = tl.min(tl.where(child, place, NB), 0)
    while at < NB:
        drafted = drafted | (column == tl.load(tokens + at))
        at = tl.min(tl.where(child & (place > at), place, NB), 0)
    return raw, weight, largest, column, drafted


@triton.jit
def first_largest(law, tokens, place, child, rest, parts, V, temperature, SOFT: tl.constexpr, NB: tl.constexpr,
                  SPAN: tl.constexpr):  # fmt: skip
    """The first column with the largest number of a row, with `rest` (not 0) among those that are not drafted."""
    best = tl.full([], -(2**63), tl.int64)
    for part in tl.range(0, parts):
        raw, _, _, column, drafted = part_weights(law, tokens, place, child, part, V, temperature, SOFT, NB, SPAN)
        key = tl.where((column < V) & ~(drafted & (rest != 0)), ordered_bits(raw), -2147483648).to(tl.int64)
        own = tl.max((key << 31) + (0x7FFFFFFF - column), 0)
        best = tl.where(own > best, own, best)
    return (0x7FFFFFFF - (best & 0x7FFFFFFF)).to(tl.int32)


@triton.jit
def leave_part(law, tokens, place, child, part, parts, V, temperature, k, sums, keys, columns, SOFT: tl.constexpr,
               TOP_K: tl.constexpr, NB: tl.constexpr, BITS: tl.constexpr, KEPT: tl.constexpr,
               SPAN: tl.constexpr):  # fmt: skip
    """What the last program of a node needs of a part: float64 sums [2,parts] (its largest number by temperature; the
    weights of what is not drafted), and with TOP_K at least its k largest keys, in order of their columns, in
    keys, columns int32 [parts,KEPT], 0 behind them; sums[1] is then where more tie than were kept, else 0."""
    raw, weight, largest, column, drafted = part_weights(
        law, tokens, place, child, part, V, temperature, SOFT, NB, SPAN
    )
    tl.store(sums + part, largest.to(tl.float64))
    if TOP_K:
        key, inside = unsigned_key(raw), column < V
        least, count = kth_key(key, inside, k, KEPT, BITS)
        step = tl.where(count > KEPT, 1 << (32 - BITS), 0).to(tl.uint32)
        inside = inside & (key >= least) & (key - least >= step)
        at = part * KEPT + tl.cumsum(inside.to(tl.int32), 0) - 1
        tl.store(keys + at, key.to(tl.int32, bitcast=True), mask=inside)
        tl.store(columns + at, column, mask=inside)
        number = tl.arange(0, KEPT)
        rest = number >= tl.sum(inside.to(tl.int32), 0)
        tl.store(keys + part * KEPT + number, tl.zeros([KEPT], tl.int32), mask=rest)
        tl.store(columns + part * KEPT + number, tl.zeros([KEPT], tl.int32), mask=rest)
        tl.store(sums + parts + part, tl.where(count > KEPT, least, 0).to(tl.float64))
    else:
        tl.store(sums + parts + part, tl.sum(tl.where(drafted, 0.0, weight).to(tl.float64), 0))


@triton.jit
def kept_weights(law, tokens, place, child, least, base, scale, held, columns, complete, parts, V, temperature,
                 NB: tl.constexpr, KEPT: tl.constexpr, PARTS: tl.constexpr, SPAN: tl.constexpr):  # fmt: skip
    """float64 [PARTS]: the weights of each part's keys that are not below `least` and not drafted.

    From the keys that the parts left (held uint32 [PARTS * KEPT]), or where those are not all (more tie than were
    kept) from the row itself.
    """
    number = tl.arange(0, PARTS)
    weights = tl.zeros([PARTS], tl.float64)
    if complete:
        column = tl.load(columns + tl.arange(0, PARTS * KEPT), mask=held > 0, other=-1, cache_modifier=".cg")
        drafted = column < 0
        at = tl.min(tl.where(child, place, NB), 0)
        while at < NB:
            drafted = drafted | (column == tl.load(tokens + at))
            at = tl.min(tl.where(child & (place > at), place, NB), 0)
        weight = tl.exp(tl.math.div_rn(number_of(held), temperature) - base)
        weight = tl.where((held >= least) & ~drafted, weight, 0.0).to(tl.float64)
        weights = tl.sum(tl.reshape(weight, [PARTS, KEPT]), 1)
    else:
        for part in tl.range(0, parts):
            raw, weight, _, column, drafted = part_weights(
                law, tokens, place, child, part, V, temperature, True, NB, SPAN
            )
            keep = (column < V) & (unsigned_key(raw) >= least) & ~drafted
            own = tl.sum(tl.where(keep, weight, 0.0).to(tl.float64), 0)
            weights = tl.where(number == part, own * scale, weights)
    return weights


@triton.jit
def pick_token(law, tokens, place, child, weights, uniform, least, parts, V, temperature, SOFT: tl.constexpr,
               TOP_K: tl.constexpr, NB: tl.constexpr, PARTS: tl.constexpr, SPAN: tl.constexpr):  # fmt: skip
    """The token at which the running sum of a row without its drafted tokens first exceeds uniform * its total.

    weights float64 [PARTS]: the sums of the parts. Where rounding leaves none it is the one of the largest weight, and
    where there is no mass at all the largest of the whole row.
    """
    number = tl.arange(0, PARTS)
    ends = tl.cumsum(weights, 0)
    mass = tl.sum(tl.where(number == parts - 1, ends, 0.0), 0)
    bar = uniform * mass
    part = tl.minimum(tl.sum(((ends <= bar) & (number < parts)).to(tl.int32), 0), parts - 1)
    raw, weight, _, column, drafted = part_weights(law, tokens, place, child, part, V, temperature, SOFT, NB, SPAN)
    keep = (column < V) & ~drafted
    if TOP_K:
        keep = keep & (unsigned_key(raw) >= least)
    weight = tl.where(keep, weight, 0.0).to(tl.float64)
    # The part's own sum and the one that it left are not rounded alike: compared are shares of each.
    inner = (bar - tl.sum(tl.where(number == part - 1, ends, 0.0), 0)) * tl.sum(weight, 0)
    running = tl.cumsum(weight, 0) * tl.sum(tl.where(number == part, weights, 0.0), 0)
    at = tl.sum(((running <= inner) & (column < V)).to(tl.int32), 0)
    # Where the sum exceeds it first a weight is positive; rounding may leave no such place.
    if (part * SPAN + at < tl.minimum(V, (part + 1) * SPAN)) & (mass > 0.0):
        found = part * SPAN + at
    else:
        found = first_largest(
            law, tokens, place, child, (mass > 0.0).to(tl.int32), parts, V, temperature, SOFT, NB, SPAN
        )
    return found


@triton.jit
def judge_node(law, tokens, place, child, state, position, sums, keys, columns, parts, V, temperature, k,
               SOFT: tl.constexpr, TOP_K: tl.constexpr, NB: tl.constexpr, BITS: tl.constexpr, KEPT: tl.constexpr,
               PARTS: tl.constexpr, SPAN: tl.constexpr):  # fmt: skip
    """(accepted, token): the first child that is accepted, -1 if none is, and the token that is drawn then.

    A child's chance is its weight over that of all tokens but the children before it: what rejecting those leaves of
    the law, scaled to 1 (`specc.lower.accept_rules`).
    """
    number = tl.arange(0, PARTS)
    maxima = tl.load(sums + number, mask=number < parts, other=float("-inf"), cache_modifier=".cg").to(tl.float32)
    second = tl.load(sums + parts + number, mask=number < parts, other=0.0, cache_modifier=".cg")
    most, least = tl.max(maxima, 0), tl.full([], 0, tl.uint32)
    base = tl.where(SOFT & (most > float("-inf")), most, 0.0)
    scale = tl.where(maxima == float("-inf"), 0.0, tl.exp(maxima - base)).to(tl.float64)
    if TOP_K:
        at = tl.arange(0, PARTS * KEPT)
        held = tl.load(keys + at, mask=at < parts * KEPT, other=0, cache_modifier=".cg").to(tl.uint32, bitcast=True)
        tied = tl.max(second, 0).to(tl.uint32)
        least, count = kth_key(held, held > 0, k, k, BITS)
        # The smallest of them: it is above all that was not left. Fewer than k are left only where more tie.
        least = tl.min(tl.where((held >= least) & (held > 0), held, 0xFFFFFFFF), 0)
        least = tl.where(count < k, 0, least).to(tl.uint32)
        complete = (least > tied) | (tied == 0)
        least = tl.maximum(least, tied)
        weights = kept_weights(law, tokens, place, child, least, base, scale, held, columns, complete, parts, V,
                               temperature, NB, KEPT, PARTS, SPAN)  # fmt: skip
    else:
        weights = second * scale if SOFT else second
    # The children's own weights; a token counts once.
    token = tl.load(tokens + place, mask=child, other=-1)
    raw = tl.load(law + token, mask=child, other=0.0).to(tl.float32)
    own = raw
    if SOFT:
        own = tl.exp(tl.math.div_rn(raw, temperature) - base)
    twice = (token[:, None] == token[None, :]) & child[None, :] & (place[None, :] < place[:, None])
    keep = child & (tl.max(twice.to(tl.int32), 1) == 0)
    if TOP_K:
        keep = keep & (unsigned_key(raw) >= least)
    own = tl.where(keep, own, 0.0).to(tl.float64)
    behind = tl.sum(tl.where(place[None, :] >= place[:, None], own[None, :], 0.0), 1)
    uniform = unit_interval(counter_hash(state, position, place.to(tl.int64) + 1))
    rest = tl.sum(weights, 0)
    first = tl.min(tl.where(child & (uniform * (rest + behind) < own), place, NB), 0)
    accepted, found = tl.where(first < NB, first, -1), tl.full([], 0, tl.int32)
    broken = is_nan(rest + tl.sum(own, 0))
    if broken:
        accepted = tl.full([], -1, tl.int32)
        if not SOFT:
            found = first_largest(law, tokens, place, child, 0, parts, V, temperature, SOFT, NB, SPAN)
    elif accepted < 0:
        drawn = unit_interval(counter_hash(state, position, tl.full([], 0, tl.int64)))
        found = pick_token(law, tokens, place, child, weights, drawn, least, parts, V, temperature, SOFT, TOP_K, NB,
                           PARTS, SPAN)  # fmt: skip
    return accepted, found


@triton.jit
def end_row(chosen, picked, counters, path, count, current, bonus, b, N, P, PP: tl.constexpr, NB: tl.constexpr):
    """Follows the path of a row, once all of its nodes have decided."""
    if is_last(counters, b, N):
        follow_path(chosen + b * N, picked + b * N, path + b * P, count + b, current + b, bonus + b, N, P, PP, NB)


@triton.jit(do_not_specialize=["k"])
def leave_parts(law, tokens, parent, valid, sums, keys, columns, N, V, parts, temperature, k, SOFT: tl.constexpr,
                TOP_K: tl.constexpr, TREE: tl.constexpr, NB: tl.constexpr, BITS: tl.constexpr, KEPT: tl.constexpr,
                SPAN: tl.constexpr):  # fmt: skip
    """What `judge_rows` needs of all parts of all nodes that count. Grid (parts, N, B); see there."""
    follow()
    part, node, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row = b * N + node
    tokens, parent, valid = tokens + b * N, parent + b * N, valid + b * N
    sums, keys, columns = sums + row * 2 * parts, keys + row * parts * KEPT, columns + row * parts * KEPT
    if (node == 0) | (tl.load(valid + node) != 0):
        place, child = children_of(parent, valid, node, N, TREE, NB)
        leave_part(law + row.to(tl.int64) * V, tokens, place, child, part, parts, V, temperature, k, sums, keys,
                   columns, SOFT, TOP_K, NB, BITS, KEPT, SPAN)  # fmt: skip


@triton.jit(do_not_specialize=["k", "P"])
def judge_rows(law, tokens, parent, valid, rng, length, sums, keys, columns, chosen, picked, counters, path, count,
               current, bonus, N, V, P, parts, batch, temperature, k, SOFT: tl.constexpr, TOP_K: tl.constexpr,
               TREE: tl.constexpr, NB: tl.constexpr, PP: tl.constexpr, BITS: tl.constexpr, KEPT: tl.constexpr,
               PARTS: tl.constexpr, SPAN: tl.constexpr):  # fmt: skip
    """The accepted path of a tree and the token after it, from what `leave_parts` left. Grid (N, B); see the module.

    law [B,N,V]: logits (SOFT) or probabilities; tokens, parent int64, valid bytes [B,N]; rng, length int64 [B]. Per
    node: sums float64 [B,N,2,parts], keys, columns int32 [B,N,parts,KEPT] (TOP_K), chosen, picked int32 [B,N];
    counters int32 [B]. Results: path int64 [B,P], count, current, bonus int64 [B].
    """
    follow()
    node, b = tl.program_id(0), tl.program_id(1)
    row = b * N + node
    tokens, parent, valid = tokens + b * N, parent + b * N, valid + b * N
    sums, keys, columns = sums + row * 2 * parts, keys + row * parts * KEPT, columns + row * parts * KEPT
    if (node == 0) | (tl.load(valid + node) != 0):
        place, child = children_of(parent, valid, node, N, TREE, NB)
        position = tl.load(length + b) + depth_of(parent, node, N, TREE) + 1
        accepted, token = judge_node(law + row.to(tl.int64) * V, tokens, place, child, tl.load(rng + b), position, sums,
                                     keys, columns, parts, V, temperature, k, SOFT, TOP_K, NB, BITS, KEPT, PARTS,
                                     SPAN)  # fmt: skip
        tl.store(chosen + row, accepted)
        tl.store(picked + row, token)
    end_row(chosen, picked, counters, path, count, current, bonus, b, N, P, PP, NB)
