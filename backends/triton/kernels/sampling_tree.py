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
from specc.backends.triton.kernels.region_math import follow
from specc.backends.triton.kernels.sampling import (
    counter_hash,
    exchange,
    first_tag,
    joined_sums,
    last_tag,
    part_of_law,
    unit_interval,
)
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
def place_in(weight, bar, whole, SPAN: tl.constexpr):
    """Where the running sum of weight float32 [SPAN], scaled to `whole` in all, first exceeds `bar`: by chunks, so that
    few numbers have to be in float64 at a time."""
    CHUNKS: tl.constexpr = 16 if SPAN > 16 else 1
    chunk, place = tl.arange(0, CHUNKS), tl.arange(0, SPAN // CHUNKS)
    chunks = tl.reshape(weight, [CHUNKS, SPAN // CHUNKS])
    sums = tl.sum(chunks.to(tl.float64), 1)
    ends, inner = tl.cumsum(sums, 0), bar * tl.sum(sums, 0)
    found = tl.minimum(tl.sum((ends * whole <= inner).to(tl.int32), 0), CHUNKS - 1)
    own = tl.sum(tl.where(chunk[:, None] == found, chunks, 0.0), 0)
    running = tl.sum(tl.where(chunk == found - 1, ends, 0.0), 0) + tl.cumsum(own.to(tl.float64), 0)
    at = tl.sum((running * whole <= inner).to(tl.int32), 0)
    picked = tl.sum(tl.where(place == at, own, 0.0), 0)
    # Where the sum exceeds it first a weight is positive; rounding may leave no such place.
    return tl.where(picked > 0.0, found * (SPAN // CHUNKS) + at, tl.argmax(weight, 0))


@triton.jit
def draw(p, sums, column, inside, uniform, law, boxes, tag, part, parts, V, PARTS: tl.constexpr, SOFT: tl.constexpr,
         SPAN: tl.constexpr):  # fmt: skip
    """(token, part): the token at which the running sum of a row first exceeds uniform * its total, and whose program
    knows it.

    sums float64 [PARTS]: what the parts of p sum up to, by any common scale. A row without any mass draws the largest
    of `law` (the first where that is a law of logits, SOFT, that are no numbers).
    """
    number = tl.arange(0, PARTS)
    ends = tl.cumsum(tl.where(number < parts, sums, 0.0), 0)
    mass = tl.sum(tl.where(number == parts - 1, ends, 0.0), 0)
    token, place = tl.full([], 0, tl.int32), tl.full([], 0, tl.int32)
    if mass > 0.0:
        bar = uniform * mass
        place = tl.minimum(tl.sum(((ends <= bar) & (number < parts)).to(tl.int32), 0), parts - 1)
        if part == place:
            # The part's own sum and the one that all know are not rounded alike: compared are shares of each.
            inner = bar - tl.sum(tl.where(number == part - 1, ends, 0.0), 0)
            at = place_in(tl.where(inside, p, 0.0), inner, tl.sum(tl.where(number == part, sums, 0.0), 0), SPAN)
            token = part * SPAN + at
    else:
        own = tl.load(law + column, mask=inside, other=0.0).to(tl.float32)
        best, _, _ = exchange(boxes, tag, part, packed_best(own, inside, part * SPAN), 0.0, 0.0, parts, PARTS, 1)
        token = index_of(best, parts, PARTS)
        if SOFT:
            token = tl.where(is_nan(mass), 0, token)
    return token, place


@triton.jit(do_not_specialize=["stride"])
def sample_rows(weights, uniform, out, boxes, turns, V, stride, parts, PARTS: tl.constexpr, SPAN: tl.constexpr):
    """out [R] int64: a draw from each row of weights [R,V], by uniform float64 [R]. Grid (parts, R); see `law_rows`."""
    follow()
    part, row = tl.program_id(0), tl.program_id(1)
    column = part * SPAN + tl.arange(0, SPAN)
    weights += row.to(tl.int64) * stride
    boxes += row * 32 * parts
    p, _, _, tag = part_of_law(weights, column, column < V, 1.0, 0, boxes, first_tag(turns, row, PARTS), part, parts,
                               PARTS, False, False, 32)  # fmt: skip
    sums, _, _ = exchange(boxes, tag, part, tl.sum(p.to(tl.float64), 0), 0.0, 0.0, parts, PARTS, 1)
    token, place = draw(p, sums, column, column < V, tl.load(uniform + row), weights, boxes, tag + 1, part, parts, V,
                        PARTS, False, SPAN)  # fmt: skip
    if part == place:
        tl.store(out + row, token.to(tl.int64))
    last_tag(turns, row, tag + 1, part, PARTS)


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
def follow_path(chosen, picked, path, count, current, bonus, N, P, PP: tl.constexpr, NB: tl.constexpr):
    """The path [P] from the root along the accepted children, and the token drawn at its end."""
    place, node = tl.arange(0, PP), tl.arange(0, NB)
    # All at once: a load for each step of the path would wait for the one before.
    child_of = tl.load(chosen + node, mask=node < N, other=-1, cache_modifier=".cg")
    token_of = tl.load(picked + node, mask=node < N, other=0, cache_modifier=".cg")
    at, depth, found = tl.full([], 0, tl.int32), tl.full([], 0, tl.int32), tl.zeros([PP], tl.int32)
    child = tl.sum(tl.where(node == 0, child_of, 0), 0)
    while child >= 0:
        depth += 1
        found = tl.where(place == depth, child, found)
        at = child
        child = tl.sum(tl.where(node == at, child_of, 0), 0)
    tl.store(path + place, found.to(tl.int64), mask=place < P)
    tl.store(count, depth.to(tl.int64))
    tl.store(current, at.to(tl.int64))
    tl.store(bonus, tl.sum(tl.where(node == at, token_of, 0), 0).to(tl.int64))


@triton.jit
def rest_of(q, token, column, at, child, place, NB: tl.constexpr):
    """What q sums up to in a part without all drafted tokens."""
    while at < NB:
        q = tl.where(column == tl.sum(tl.where(place == at, token, 0), 0), 0.0, q)
        at = tl.min(tl.where(child & (place > at), place, NB), 0)
    return tl.sum(q, 0)


@triton.jit
def judged(p, q, p_of, q_of, rest, shares, uniform_of, token, column, child, place, boxes, tag, part, parts,
           USE_Q: tl.constexpr, PARTS: tl.constexpr, NB: tl.constexpr):  # fmt: skip
    """(accepted child or -1, what is left of p, what its parts sum up to, tag) of a node.

    After some rejections the law is (p - a q)+ / M (USE_Q; p where no child of before was drafted, else) and q is what
    no child of before was drafted of it, / R: the next rejection's a is a + M / R. Only M asks for all of the row.
    """
    mass, share = tl.full([], 1.0, tl.float32), tl.full([], 1.0, tl.float32)
    a, accepted = tl.full([], 0.0, tl.float32), tl.full([], -1, tl.int32)
    left = p
    at = tl.min(tl.where(child, place, NB), 0)
    while (at < NB) & (accepted < 0):
        uniform = tl.sum(tl.where(place == at, uniform_of, 0.0), 0) * mass.to(tl.float64)
        p_at, q_at = tl.sum(tl.where(place == at, p_of, 0.0), 0), tl.sum(tl.where(place == at, q_of, 0.0), 0)
        bar = p_at
        if USE_Q:
            uniform = uniform * q_at.to(tl.float64)
            bar = tl.maximum(p_at - a * q_at, 0.0) * share
        if uniform < bar.to(tl.float64):
            accepted = at
        else:
            if USE_Q:
                a += tl.math.div_rn(mass, share)
                left = tl.maximum(p - a * q, 0.0, propagate_nan=tl.PropagateNan.ALL)
                share = rest + tl.sum(tl.where(place > at, q_of, 0.0), 0)
                share = tl.where(share > 0.0, share, 1.0)
            else:
                drafted = tl.sum(tl.where(place == at, token, 0), 0)
                left = tl.where(column == drafted, 0.0, left)
            shares, _, _ = exchange(boxes, tag, part, tl.sum(left, 0), 0.0, 0.0, parts, PARTS, 1)
            mass = tl.sum(shares, 0).to(tl.float32)
            tag += 1
            at = tl.min(tl.where(child & (place > at), place, NB), 0)
    return accepted, left, shares, tag


@triton.jit(do_not_specialize=["k", "P"])
def reject_nodes(law, q_law, tokens, parent, valid, rng, length, boxes, turns, chosen, picked, counters,
                 path, count, current, bonus, N, V, P, parts, temperature, k,
                 SOFT: tl.constexpr, TOP_K: tl.constexpr, USE_Q: tl.constexpr, TREE: tl.constexpr, NB: tl.constexpr,
                 PP: tl.constexpr, BITS: tl.constexpr, PARTS: tl.constexpr, SPAN: tl.constexpr):  # fmt: skip
    """The accepted path of a tree and the token after it. Grid (parts, N, B); see the module.

    law [B,N,V]: logits (SOFT) or probabilities; q_law float32 [B,N,V] (USE_Q: the rule true_q, else target_only);
    tokens, parent int64, valid bytes [B,N]; rng, length int64 [B]. Per node: boxes int64 [B,N,2,16,parts], turns,
    chosen, picked int32 [B,N]; counters int32 [B]. Results: path int64 [B,P], count, current, bonus int64 [B].
    """
    follow()
    part, node, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row = b * N + node
    tokens, parent, valid = tokens + b * N, parent + b * N, valid + b * N
    boxes += row * 32 * parts
    place = tl.arange(0, NB)
    child = (place > 0) & (place < N) & (tl.load(valid + place, mask=place < N, other=0) != 0)
    above = place - 1
    if TREE:
        above = tl.load(parent + place, mask=place < N, other=-1).to(tl.int32)
    child = child & (above == node)
    accepted, found, place_of = tl.full([], -1, tl.int32), tl.full([], 0, tl.int32), tl.full([], 0, tl.int32)
    if (node == 0) | (tl.load(valid + node) != 0):
        column = part * SPAN + tl.arange(0, SPAN)
        inside = column < V
        own_law, own_q = law + row.to(tl.int64) * V, q_law + row.to(tl.int64) * V
        # What does not depend on the law comes first: behind an exchange nothing is asked for ahead of its use.
        at = tl.min(tl.where(child, place, NB), 0)
        token = tl.load(tokens + place, mask=child, other=-1)
        raw_of = tl.load(own_law + token, mask=child, other=0.0).to(tl.float32)
        if USE_Q:
            q_of = tl.load(own_q + token, mask=child, other=0.0).to(tl.float32)
            q = tl.load(own_q + column, mask=inside & (at < NB), other=0.0).to(tl.float32)
        state = tl.load(rng + b)
        position = tl.load(length + b) + depth_of(parent, node, N, TREE) + 1
        uniform_of = unit_interval(counter_hash(state, position, place.to(tl.int64) + 1))
        uniform = unit_interval(counter_hash(state, position, tl.full([], 0, tl.int64)))
        p, largest, least, tag = part_of_law(own_law, column, inside, temperature, k, boxes,
                                             first_tag(turns, row, PARTS), part, parts, PARTS, SOFT, TOP_K,
                                             BITS)  # fmt: skip
        rest = tl.full([], 0.0, tl.float32)
        # A token that was drafted twice has its weight at the first place only.
        twice = (token[:, None] == token[None, :]) & child[None, :] & (place[None, :] < place[:, None])
        once = child & (tl.max(twice.to(tl.int32), 1) == 0)
        if USE_Q:
            rest, q_of = rest_of(q, token, column, at, child, place, NB), tl.where(once, q_of, 0.0)
        else:
            q, q_of = p, raw_of
        maxima, shares, rests = exchange(boxes, tag, part, largest, tl.sum(p, 0), rest, parts, PARTS, 3)
        shares, most, total = joined_sums(maxima, shares, parts, PARTS, SOFT)
        p_of = tl.where(once, raw_of, 0.0)
        if SOFT:
            scale = tl.math.div_rn(tl.full([], 1.0, tl.float32), total.to(tl.float32))
            p = p * (tl.exp(largest - most) * scale)
            keep = once
            if TOP_K:
                keep = keep & (ordered_bits(raw_of).to(tl.uint32, bitcast=True) ^ 0x80000000 >= least)
            p_of = tl.where(keep, tl.exp(tl.math.div_rn(raw_of, temperature) - most) * scale, 0.0)
        accepted, p, shares, tag = judged(p, q, p_of, q_of, tl.sum(rests, 0).to(tl.float32), shares, uniform_of, token,
                                          column, child, place, boxes, tag + 1, part, parts, USE_Q, PARTS,
                                          NB)  # fmt: skip
        if accepted < 0:
            found, place_of = draw(p, shares, column, inside, uniform, own_law, boxes, tag, part, parts, V, PARTS, SOFT,
                                   SPAN)  # fmt: skip
        last_tag(turns, row, tag, part, PARTS)
    if part == place_of:
        tl.store(chosen + row, accepted)
        tl.store(picked + row, found)
        if is_last(counters, b, N):
            follow_path(chosen + b * N, picked + b * N, path + b * P, count + b, current + b, bonus + b, N, P, PP, NB)
