"""Lossless stochastic acceptance of a drafted tree, and draws from a law.

What a walk meets at a node does not depend on how it got there: the residual after rejecting the node's first children
is a function of the node's law and of those children, and every random number is a function of the depth and the
child. So each node decides by itself, all nodes at once, which child it would accept, and which token it would draw if
none; the last one to finish follows the path. (`specc.lower.accept_rules`, "rejection".) A node's row is spread over a
group of programs, see `sampling`.
"""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.numbers import is_nan
from specc.backends.triton.kernels.sampling import counter_hash, exchange, law_part, release, unit_interval
from specc.backends.triton.kernels.vocab import is_last, ordered_bits


@triton.jit
def packed_best(p, inside, first):
    """int64 in the order of (p, -index): the largest of a part and where it is, as a float64 of the same bits."""
    best, at = tl.max(tl.where(inside, ordered_bits(p), -2147483648), 0, return_indices=True)
    packed = (best.to(tl.int64) << 31) + (0x7FFFFFFF - first - at)
    return packed.to(tl.float64, bitcast=True)


@triton.jit
def index_of(packed, parts, PARTS: tl.constexpr):
    """The index of the largest of all parts."""
    keys = tl.where(tl.arange(0, PARTS) < parts, packed.to(tl.int64, bitcast=True), -(2**63))
    return (0x7FFFFFFF - (tl.max(keys, 0) & 0x7FFFFFFF)).to(tl.int32)


@triton.jit
def draw(p, sums, column, inside, uniform, law, out, slots, counter, phase, part, parts, V, PARTS: tl.constexpr,
         SOFT: tl.constexpr, SPAN: tl.constexpr):  # fmt: skip
    """Stores the token at which the running sum of a row first exceeds uniform * its total (one program does).

    sums float64 [PARTS]: what the parts of p sum up to, by any common scale. A row without any mass draws the largest
    of `law` (the first where that is a law of logits, SOFT, that are no numbers).
    """
    number = tl.arange(0, PARTS)
    ends = tl.cumsum(tl.where(number < parts, sums, 0.0), 0)
    mass = tl.sum(tl.where(number == parts - 1, ends, 0.0), 0)
    if mass > 0.0:
        bar = uniform * mass
        place = tl.minimum(tl.sum(((ends <= bar) & (number < parts)).to(tl.int32), 0), parts - 1)
        if part == place:
            # The part's own sum and the one that all know are not rounded alike: compared are shares of each.
            weight = tl.where(inside, p, 0.0).to(tl.float64)
            inner = (bar - tl.sum(tl.where(number == part - 1, ends, 0.0), 0)) * tl.sum(weight, 0)
            running = tl.cumsum(weight, 0) * tl.sum(tl.where(number == part, sums, 0.0), 0)
            at = tl.sum(((running <= inner) & inside).to(tl.int32), 0)
            # Where the sum exceeds it first a weight is positive; rounding may leave no such place.
            if part * SPAN + at >= tl.minimum(V, (part + 1) * SPAN):
                at = tl.argmax(tl.where(inside, p, -1.0), 0)
            tl.store(out, (part * SPAN + at).to(out.dtype.element_ty))
    else:
        own = tl.load(law + column, mask=inside, other=0.0).to(tl.float32)
        best, _, _, _ = exchange(
            slots, counter, phase, part, packed_best(own, inside, part * SPAN), 0.0, 0.0, 0.0, parts, PARTS
        )
        token = index_of(best, parts, PARTS)
        if SOFT:
            token = tl.where(is_nan(mass), 0, token)
        if part == 0:
            tl.store(out, token.to(out.dtype.element_ty))


@triton.jit(do_not_specialize=["stride"])
def sample_rows(weights, uniform, out, slots, counters, V, stride, rows, parts, PARTS: tl.constexpr,
                SPAN: tl.constexpr):  # fmt: skip
    """out [R] int64: a draw from each row of weights [R,V], by uniform float64 [R]. Grid (parts, R); see `law_rows`."""
    part, row = tl.program_id(0), tl.program_id(1)
    column = part * SPAN + tl.arange(0, SPAN)
    weights += row.to(tl.int64) * stride
    p, sums, phase = law_part(weights, column, column < V, 1.0, 0, slots + row * 8 * parts, counters + row, part, parts,
                              PARTS, False, False, 32)  # fmt: skip
    draw(p, sums, column, column < V, tl.load(uniform + row), weights, out + row, slots + row * 8 * parts,
         counters + row, phase, part, parts, V, PARTS, False, SPAN)  # fmt: skip
    release(counters, row, rows, parts, PARTS)


@triton.jit
def depth_of(parent, node, N, TREE: tl.constexpr):
    """Edges between a node and the root."""
    depth = node
    if TREE:
        depth, at = 0, node
        for _ in tl.range(0, N):
            above = tl.load(parent + at, mask=at > 0, other=0).to(tl.int32)
            depth += (at > 0).to(tl.int32)
            at = above
    return depth


@triton.jit
def follow_path(chosen, picked, path, count, current, bonus, P, PP: tl.constexpr):
    """The path [P] from the root along the accepted children, and the token drawn at its end."""
    place = tl.arange(0, PP)
    at, depth, found = tl.full([], 0, tl.int32), tl.full([], 0, tl.int32), tl.zeros([PP], tl.int32)
    child = tl.load(chosen, cache_modifier=".cg")
    while child >= 0:
        depth += 1
        found = tl.where(place == depth, child, found)
        at = child
        child = tl.load(chosen + at, cache_modifier=".cg")
    tl.store(path + place, found.to(tl.int64), mask=place < P)
    tl.store(count, depth.to(tl.int64))
    tl.store(current, at.to(tl.int64))
    tl.store(bonus, tl.load(picked + at, cache_modifier=".cg").to(tl.int64))


@triton.jit
def rejected(p, q, hit, USE_Q: tl.constexpr):
    """What rejecting a token (`hit`: its column) leaves of p and q, not yet scaled to 1."""
    if USE_Q:
        return tl.maximum(p - q, 0.0), tl.where(hit, 0.0, q)
    else:
        return tl.where(hit, 0.0, p), q


@triton.jit(do_not_specialize=["k", "P"])
def reject_nodes(law, q_law, tokens, parent, valid, rng, length, slots, chosen, picked, counters,
                 path, count, current, bonus, N, V, P, parts, batch, temperature, k,
                 SOFT: tl.constexpr, TOP_K: tl.constexpr, USE_Q: tl.constexpr, TREE: tl.constexpr, NB: tl.constexpr,
                 PP: tl.constexpr, BITS: tl.constexpr, PARTS: tl.constexpr, SPAN: tl.constexpr):  # fmt: skip
    """The accepted path of a tree and the token after it. Grid (parts, N, B); see the module.

    law [B,N,V]: logits (SOFT) or probabilities; q_law float32 [B,N,V] (USE_Q: the rule true_q, else target_only);
    tokens, parent int64, valid bytes [B,N]; rng, length int64 [B]. Per node: slots float64 [B,N,2,4,parts], chosen,
    picked int32 [B,N]; counters int32 [B + B N]. Results: path int64 [B,P], count, current, bonus int64 [B].
    """
    part, node, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row = b * N + node
    tokens, parent, valid = tokens + b * N, parent + b * N, valid + b * N
    slots, counter = slots + row * 8 * parts, counters + batch + row
    place = tl.arange(0, NB)
    child = (place > 0) & (place < N) & (tl.load(valid + place, mask=place < N, other=0) != 0)
    above = place - 1
    if TREE:
        above = tl.load(parent + place, mask=place < N, other=-1).to(tl.int32)
    child = child & (above == node)
    accepted = tl.full([], -1, tl.int32)
    if (node == 0) | (tl.load(valid + node) != 0):
        column = part * SPAN + tl.arange(0, SPAN)
        inside = column < V
        p, shares, phase = law_part(law + row.to(tl.int64) * V, column, inside, temperature, k, slots, counter, part,
                                    parts, PARTS, SOFT, TOP_K, BITS)  # fmt: skip
        q = p
        if USE_Q:
            q = tl.load(q_law + row.to(tl.int64) * V + column, mask=inside, other=0.0).to(tl.float32)
        state = tl.load(rng + b)
        position = tl.load(length + b) + depth_of(parent, node, N, TREE) + 1
        at = tl.min(tl.where(child, place, NB), 0)
        while (at < NB) & (accepted < 0):
            hit = column == tl.load(tokens + at)
            left, rest = rejected(p, q, hit, USE_Q)
            sums = exchange(
                slots, counter, phase, part, tl.sum(tl.where(hit, p, 0.0), 0).to(tl.float64),
                tl.sum(tl.where(hit, q, 0.0), 0).to(tl.float64), tl.sum(left.to(tl.float64), 0),
                tl.sum(rest, 0).to(tl.float64), parts, PARTS,
            )  # fmt: skip
            phase += 1
            uniform = unit_interval(counter_hash(state, position, at.to(tl.int64) + 1))
            if USE_Q:
                uniform = uniform * tl.sum(sums[1], 0)
            if uniform < tl.sum(sums[0], 0):
                accepted = at
            shares = sums[2]
            mass = tl.sum(shares, 0).to(tl.float32)
            p = tl.math.div_rn(left, tl.where(mass > 0.0, mass, 1.0))
            if USE_Q:
                other = tl.sum(sums[3], 0).to(tl.float32)
                q = tl.math.div_rn(rest, tl.where(other > 0.0, other, 1.0))
            at = tl.min(tl.where(child & (place > at), place, NB), 0)
        if accepted < 0:
            uniform = unit_interval(counter_hash(state, position, tl.full([], 0, tl.int64)))
            draw(p, shares, column, inside, uniform, law + row.to(tl.int64) * V, picked + row, slots, counter, phase,
                 part, parts, V, PARTS, SOFT, SPAN)  # fmt: skip
    if part == 0:
        tl.store(chosen + row, accepted)
    if is_last(counters, b, N * parts):
        tl.store(counters + batch + b * N + place, tl.zeros([NB], tl.int32), mask=place < N)
        follow_path(chosen + b * N, picked + b * N, path + b * P, count + b, current + b, bonus + b, P, PP)
