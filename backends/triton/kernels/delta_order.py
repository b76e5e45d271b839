"""Orders of a tree's nodes for `delta_walk`, computed on the device from the ancestor mask: no host synchronisation."""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.delta_rows import ancestors


@triton.jit
def heavy_order(parent, mask, order, N, T: tl.constexpr):
    """order int32 [B,N]: chain after chain of the heavy-light decomposition, chains by their first node. Grid (B,).

    A node's heavy child is the one with the largest subtree (the first of equals). A node's chain starts at its
    deepest ancestor-or-self that is not heavy: the largest such number, since parents come before children. Its place
    is the number of nodes in earlier chains plus those before it in its own.
    """
    b = tl.program_id(0)
    i = tl.arange(0, T)
    live = i < N
    above = tl.load(parent + b * N + i, mask=live, other=-1).to(tl.int32)
    seen = ancestors(mask, b, N, T, True) & live[:, None] & live[None, :]
    size = tl.sum(seen.to(tl.int32), 0)
    # [i,j]: j is a sibling of i that is heavier, or as heavy and earlier.
    sibling = (above[:, None] == above[None, :]) & live[:, None] & live[None, :]
    heavier = (size[None, :] > size[:, None]) | ((size[None, :] == size[:, None]) & (i[None, :] < i[:, None]))
    light = tl.max((sibling & heavier).to(tl.int32), 1) > 0
    # The first chain from the context starts there as well: its first node is light in the sense of chains.
    starts = light | (above == 0) | ~live
    start_row = tl.sum(tl.where(i[:, None] == i[None, :], starts[:, None].to(tl.int32), 0), 0)
    reach = seen | (i[:, None] == i[None, :])
    first = tl.max(tl.where(reach & (start_row[None, :] > 0), i[None, :], -1), 1)
    first_row = tl.sum(tl.where(i[:, None] == i[None, :], first[:, None], 0), 0)
    earlier = (first_row[None, :] < first[:, None]) | (
        (first_row[None, :] == first[:, None]) & (i[None, :] < i[:, None])
    )
    place = tl.sum((earlier & (i[None, :] < N)).to(tl.int32), 1)
    tl.store(order + b * N + place, i, mask=i < N)


@triton.jit
def ancestor_paths(mask, paths, counts, N, T: tl.constexpr, LEAVES: tl.constexpr):
    """paths int32 [B,N,N]: each node's ancestors and itself from the root down, then -1; counts int32 [B,N]. Grid (B,).

    With LEAVES only nodes without children have a path.
    """
    b = tl.program_id(0)
    i = tl.arange(0, T)
    live = i < N
    seen = ancestors(mask, b, N, T, True) & live[:, None] & live[None, :]
    descendants = tl.sum(tl.where(i[:, None] == i[None, :], tl.sum(seen.to(tl.int32), 0)[None, :], 0), 1)
    wanted = live & (descendants == 1) if LEAVES else live
    seen = seen & wanted[:, None]
    length = tl.sum(seen.to(tl.int32), 1)
    depth = tl.cumsum(seen.to(tl.int32), 1) - 1
    inside = (i[:, None] < N) & (i[None, :] < N)
    base = paths + (b * N + i[:, None]) * N
    tl.store(base + depth, i[None, :] + tl.zeros([T, T], tl.int32), mask=seen & inside)
    tl.store(base + i[None, :], tl.full([T, T], -1, tl.int32), mask=inside & (i[None, :] >= length[:, None]))
    tl.store(counts + b * N + i, length, mask=i < N)
