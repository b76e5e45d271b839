"""Lossless stochastic acceptance of a drafted tree, and draws from a law.

What a walk meets at a node does not depend on how it got there: the residual after rejecting the node's first children
is a function of the node's law and of those children, and every random number is a function of the depth and the
child. So each node decides by itself, all nodes at once, which child it would accept, and which token it would draw if
none; the last one to finish follows the path. (`specc.lower.accept_rules`, "rejection".)
"""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.sampling import counter_hash, row_law, unit_interval, weight
from specc.backends.triton.kernels.vocab import is_last, ordered_bits


@triton.jit
def law_at(law, column, inside, temperature, most, total, least, SOFT: tl.constexpr, TOP_K: tl.constexpr):
    """p of a row at these columns: from logits (SOFT), or as it is given."""
    if SOFT:
        return tl.math.div_rn(weight(law, column, inside, temperature, most, least, TOP_K), total)
    else:
        return tl.load(law + column, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def without(p, q, column, token, USE_Q: tl.constexpr):
    """What rejecting `token` leaves of p and q, not yet scaled to 1."""
    struck = column == token
    if USE_Q:
        return tl.maximum(p - q, 0.0), tl.where(struck, 0.0, q)
    else:
        return tl.where(struck, 0.0, p), q


@triton.jit
def residual_at(law, q_law, column, inside, temperature, most, total, least, rejected, masses, count,
                SOFT: tl.constexpr, TOP_K: tl.constexpr, USE_Q: tl.constexpr):  # fmt: skip
    """(p, q) at these columns after `count` rejections: tokens `rejected`, and the masses [count,2] that were left."""
    p = law_at(law, column, inside, temperature, most, total, least, SOFT, TOP_K)
    q = p
    if USE_Q:
        q = tl.load(q_law + column, mask=inside, other=0.0).to(tl.float32)
    for turn in tl.range(0, count):
        p, q = without(p, q, column, tl.load(rejected + turn), USE_Q)
        p = tl.math.div_rn(p, tl.load(masses + 2 * turn))
        if USE_Q:
            q = tl.math.div_rn(q, tl.load(masses + 2 * turn + 1))
    return p, q


@triton.jit
def largest_weight(law, q_law, V, temperature, most, total, least, rejected, masses, count,
                   SOFT: tl.constexpr, TOP_K: tl.constexpr, USE_Q: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """The first index of the largest residual (a NaN is the largest)."""
    best, where = tl.full([], -2147483648, tl.int32), tl.full([], 0, tl.int32)
    for first in tl.range(0, V, BLOCK):
        column = first + tl.arange(0, BLOCK)
        p, _ = residual_at(law, q_law, column, column < V, temperature, most, total, least, rejected, masses, count,
                           SOFT, TOP_K, USE_Q)  # fmt: skip
        key, at = tl.max(tl.where(column < V, ordered_bits(p), -2147483648), 0, return_indices=True)
        where = tl.where(key > best, first + at, where)
        best = tl.maximum(best, key)
    return where


@triton.jit
def draw(law, q_law, V, uniform, temperature, most, total, least, rejected, masses, count,
         SOFT: tl.constexpr, TOP_K: tl.constexpr, USE_Q: tl.constexpr, BLOCKS: tl.constexpr,
         BLOCK: tl.constexpr):  # fmt: skip
    """(token, whether there is any mass): where the running sum of the residual first exceeds uniform * its total.

    Sums of blocks first, then along the one block; a token of weight 0 is replaced by that of the largest weight.
    """
    number = tl.arange(0, BLOCKS)
    sums = tl.zeros([BLOCKS], tl.float64)
    for block in tl.range(0, tl.cdiv(V, BLOCK)):
        column = block * BLOCK + tl.arange(0, BLOCK)
        p, _ = residual_at(law, q_law, column, column < V, temperature, most, total, least, rejected, masses, count,
                           SOFT, TOP_K, USE_Q)  # fmt: skip
        sums = tl.where(number == block, tl.sum(tl.where(column < V, p, 0.0).to(tl.float64), 0), sums)
    ends = tl.cumsum(sums, 0)
    mass = tl.sum(tl.where(number == BLOCKS - 1, ends, 0.0), 0)
    bar = uniform * mass
    passed = (ends <= bar) & (number < tl.cdiv(V, BLOCK))
    block = tl.sum(passed.to(tl.int32), 0)
    before = tl.max(tl.where(passed, ends, 0.0), 0)
    column = block * BLOCK + tl.arange(0, BLOCK)
    p, _ = residual_at(law, q_law, column, column < V, temperature, most, total, least, rejected, masses, count,
                       SOFT, TOP_K, USE_Q)  # fmt: skip
    running = before + tl.cumsum(tl.where(column < V, p, 0.0).to(tl.float64), 0)
    token = tl.minimum(block * BLOCK + tl.sum(((running <= bar) & (column < V)).to(tl.int32), 0), V - 1)
    chosen, _ = residual_at(law, q_law, token, token >= 0, temperature, most, total, least, rejected, masses, count,
                            SOFT, TOP_K, USE_Q)  # fmt: skip
    if (chosen > 0.0) == 0:
        token = largest_weight(law, q_law, V, temperature, most, total, least, rejected, masses, count,
                               SOFT, TOP_K, USE_Q, BLOCK)  # fmt: skip
    return token, mass > 0.0


@triton.jit(do_not_specialize=["stride"])
def sample_rows(weights, uniform, out, V, stride, BLOCKS: tl.constexpr, BLOCK: tl.constexpr):
    """out [R] int64: a draw from each row of weights [R,V], by uniform float64 [R]. Grid (R,)."""
    row = tl.program_id(0)
    token, _ = draw(
        weights + row.to(tl.int64) * stride, weights, V, tl.load(uniform + row), 1.0, 0.0, 1.0, 0, weights, weights, 0,
        False, False, False, BLOCKS, BLOCK,
    )  # fmt: skip
    tl.store(out + row, token.to(tl.int64))


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
def masses_after(law, q_law, V, token, temperature, most, total, least, rejected, masses, count,
                 SOFT: tl.constexpr, TOP_K: tl.constexpr, USE_Q: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Sums of what rejecting `token` leaves of p and q, 1 where nothing is left."""
    of_p, of_q = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    for first in tl.range(0, V, BLOCK):
        column = first + tl.arange(0, BLOCK)
        p, q = residual_at(law, q_law, column, column < V, temperature, most, total, least, rejected, masses, count,
                           SOFT, TOP_K, USE_Q)  # fmt: skip
        p, q = without(p, q, column, token, USE_Q)
        of_p += tl.where(column < V, p, 0.0)
        if USE_Q:
            of_q += q
    left, rest = tl.sum(of_p, 0), tl.sum(of_q, 0)
    return tl.where(left > 0.0, left, 1.0), tl.where(rest > 0.0, rest, 1.0)


@triton.jit
def follow(chosen, picked, path, count, current, bonus, N, P, PP: tl.constexpr):
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


@triton.jit(do_not_specialize=["k", "P"])
def reject_nodes(law, q_law, tokens, parent, valid, rng, length, rejected, masses, chosen, picked, arrived,
                 path, count, current, bonus, N, V, P, temperature, k,
                 SOFT: tl.constexpr, TOP_K: tl.constexpr, USE_Q: tl.constexpr, TREE: tl.constexpr, NB: tl.constexpr,
                 PP: tl.constexpr, BITS: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """The accepted path of a tree and the token after it. Grid (N, B); see the module.

    law [B,N,V]: logits (SOFT) or probabilities; q_law float32 [B,N,V] (USE_Q: the rule true_q, else target_only);
    tokens, parent int64, valid bytes [B,N]; rng, length int64 [B]. Per node: rejected int64 [B,N,N], masses float32
    [B,N,N,2], chosen, picked int32 [B,N]. Results: path int64 [B,P], count, current, bonus int64 [B].
    """
    node, b = tl.program_id(0), tl.program_id(1)
    row = b * N + node
    tokens, parent, valid = tokens + b * N, parent + b * N, valid + b * N
    place = tl.arange(0, NB)
    child = (place > 0) & (place < N) & (tl.load(valid + place, mask=place < N, other=0) != 0)
    above = place - 1
    if TREE:
        above = tl.load(parent + place, mask=place < N, other=-1).to(tl.int32)
    child = child & (above == node)
    accepted, token = tl.full([], -1, tl.int32), tl.full([], 0, tl.int32)
    if (node == 0) | (tl.load(valid + node) != 0):
        law, q_law = law + row.to(tl.int64) * V, q_law + row.to(tl.int64) * V
        rejected, masses = rejected + row.to(tl.int64) * N, masses + row.to(tl.int64) * 2 * N
        most, total, least = 0.0, 1.0, tl.full([], 0, tl.int64)
        if SOFT:
            most, total, least = row_law(law, V, temperature, k, TOP_K, BITS, BLOCK)
        state = tl.load(rng + b)
        position = tl.load(length + b) + depth_of(parent, node, N, TREE) + 1
        turn = tl.full([], 0, tl.int32)
        at = tl.min(tl.where(child, place, NB), 0)
        while (at < NB) & (accepted < 0):
            named = tl.load(tokens + at)
            uniform = unit_interval(counter_hash(state, position, at.to(tl.int64) + 1))
            p, q = residual_at(law, q_law, named, named >= 0, temperature, most, total, least, rejected, masses, turn,
                               SOFT, TOP_K, USE_Q)  # fmt: skip
            if USE_Q:
                uniform = uniform * q.to(tl.float64)
            if uniform < p.to(tl.float64):
                accepted = at
            else:
                left, rest = masses_after(law, q_law, V, named, temperature, most, total, least, rejected, masses,
                                          turn, SOFT, TOP_K, USE_Q, BLOCK)  # fmt: skip
                tl.store(rejected + turn, named)
                tl.store(masses + 2 * turn, left)
                tl.store(masses + 2 * turn + 1, rest)
                tl.debug_barrier()
                turn += 1
            at = tl.min(tl.where(child & (place > at), place, NB), 0)
        if accepted < 0:
            uniform = unit_interval(counter_hash(state, position, tl.full([], 0, tl.int64)))
            token, some = draw(law, q_law, V, uniform, temperature, most, total, least, rejected, masses, turn,
                               SOFT, TOP_K, USE_Q, BLOCKS, BLOCK)  # fmt: skip
            if some == 0:
                token = largest_weight(law, q_law, V, temperature, most, total, least, rejected, masses, 0,
                                       SOFT, TOP_K, USE_Q, BLOCK)  # fmt: skip
    tl.store(chosen + row, accepted)
    tl.store(picked + row, token)
    if is_last(arrived, b, N):
        follow(chosen + b * N, picked + b * N, path + b * P, count + b, current + b, bonus + b, N, P, PP)
