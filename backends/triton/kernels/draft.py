"""Draft trees from candidates: places by score, and packing of the chosen ones."""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.numbers import is_nan
from specc.backends.triton.kernels.region_math import last_places, lookup_nodes, suffix_ends


@triton.jit
def rank_scores(scores, rank, C, CP: tl.constexpr, RB: tl.constexpr):
    """rank int64 [B,C]: the place of each score by (score descending, index ascending); NaN counts as -inf.

    Grid (C / RB, B).
    """
    own = tl.program_id(0) * RB + tl.arange(0, RB)
    other = tl.arange(0, CP)
    row = tl.program_id(1) * C
    mine = tl.load(scores + row + own, mask=own < C, other=float("-inf"))
    all_scores = tl.load(scores + row + other, mask=other < C, other=float("-inf"))
    mine = tl.where(is_nan(mine), float("-inf"), mine)[:, None]
    all_scores = tl.where(is_nan(all_scores), float("-inf"), all_scores)[None, :]
    before = (all_scores > mine) | ((all_scores == mine) & (other[None, :] < own[:, None]))
    place = tl.sum((before & (other < C)[None, :]).to(tl.int64), 1)
    tl.store(rank + row + own, place, mask=own < C)


@triton.jit
def pack_nodes(chosen, token, parent, log_prob, root, tokens, parents, valid, log_probs, source, C, N,
               CP: tl.constexpr, NB: tl.constexpr):  # fmt: skip
    """See `specc.ir.ops.pack_tree`. Candidates [B,C], nodes [B,N]; chosen and valid are bytes. Grid (B,)."""
    b = tl.program_id(0)
    place, node = tl.arange(0, CP), tl.arange(0, NB)
    inside = place < C
    take = tl.load(chosen + b * C + place, mask=inside, other=0) != 0
    number = tl.cumsum(take.to(tl.int32), 0)
    members = tl.sum(take.to(tl.int32), 0)
    above = tl.load(parent + b * C + place, mask=inside, other=-1)
    known = (above >= 0) & (above < C)
    of_parent = tl.gather(tl.where(take, number, 0), tl.where(known, above, 0).to(tl.int32), 0)
    at = b * N + number
    keep = take & (number < N)
    tl.store(tokens + at, tl.load(token + b * C + place, mask=keep, other=0), mask=keep)
    tl.store(parents + at, tl.where(known, of_parent, 0).to(tl.int64), mask=keep)
    tl.store(valid + at, 1, mask=keep)
    tl.store(log_probs + at, tl.load(log_prob + b * C + place, mask=keep, other=0.0), mask=keep)
    tl.store(source + at, (place + 1).to(tl.int64), mask=keep)
    # The root, and the padding behind the members: nodes that no candidate writes.
    is_root = node == 0
    rest = (node < N) & (is_root | (node > members))
    at = b * N + node
    tl.store(tokens + at, tl.where(is_root, tl.load(root + b), 0), mask=rest)
    tl.store(parents + at, tl.where(is_root, -1, 0).to(tl.int64), mask=rest)
    tl.store(valid + at, is_root.to(tl.uint8), mask=rest)
    tl.store(log_probs + at, tl.zeros([NB], tl.float32).to(log_probs.dtype.element_ty), mask=rest)
    tl.store(source + at, tl.zeros([NB], tl.int64), mask=rest)


@triton.jit
def text_tree(history, lengths, root, tokens, parents, valid, N, LEAST: tl.constexpr, MOST: tl.constexpr,
              MATCHES: tl.constexpr, STEPS: tl.constexpr, CHILDREN: tl.constexpr, COUNT: tl.constexpr,
              SIZE: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr, NODES: tl.constexpr):  # fmt: skip
    """See `specc.ir.ops.lookup_tree`; valid are bytes. Grid (B,)."""
    b = tl.program_id(0)
    text = history + b.to(tl.int64) * COUNT
    length = tl.load(lengths + b).to(tl.int32)
    first = last_places(suffix_ends(text, length, LEAST, MOST, COUNT, SIZE), -1, COUNT, SIZE, WIDTH)
    token, parent, filled = lookup_nodes(text, length, first, MATCHES, STEPS, CHILDREN, COUNT, WIDTH, DEPTH, NODES)
    node = tl.arange(0, NODES)
    at = b * N + node
    tl.store(tokens + at, tl.where(node == 0, tl.load(root + b), token), mask=node < N)
    tl.store(parents + at, tl.where(node == 0, -1, parent).to(tl.int64), mask=node < N)
    tl.store(valid + at, (filled | (node == 0)).to(tl.uint8), mask=node < N)
