"""Orders of a tree's nodes for `delta_walk`, computed on the device from the ancestor mask: no host synchronisation."""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.delta_rows import ancestors


@triton.jit
def heavy_order(parent, mask, order, N, T: tl.constexpr):
    """order int32 [B,N]: depth first, of a node's children the heavy one last. Grid (B,).

    The heavy child is the one with the largest subtree (the first of equals): while the others' subtrees are walked,
    their parent's tile has to wait, and so at most log2(N) tiles wait at a time. A node comes behind its ancestors and,
    for itself and each of them, behind the subtrees of the siblings that go first.
    """
    b = tl.program_id(0)
    i = tl.arange(0, T)
    live = i < N
    above = tl.load(parent + b * N + i, mask=live, other=-1).to(tl.int32)
    seen = (ancestors(mask, b, N, T, True) & live[:, None] & live[None, :]) | (i[:, None] == i[None, :])
    size = tl.sum(seen.to(tl.int32), 0)
    sizes = tl.sum(tl.where(i[:, None] == i[None, :], size[None, :], 0), 1)
    # [i,j]: j is a sibling of i.
    sibling = (above[:, None] == above[None, :]) & (i[:, None] != i[None, :])
    heavier = (size[None, :] > sizes[:, None]) | ((size[None, :] == sizes[:, None]) & (i[None, :] < i[:, None]))
    light = tl.max((sibling & heavier).to(tl.int32), 1) > 0
    # [j,i]: j goes before its sibling i.
    lighter = (sizes[:, None] < size[None, :]) | ((sizes[:, None] == size[None, :]) & (i[:, None] > i[None, :]))
    light_row = tl.max((sibling & ~lighter).to(tl.int32), 0) > 0
    before = sibling & light[:, None] & (~light_row[None, :] | (i[:, None] < i[None, :]))
    wait = tl.sum(tl.where(before, sizes[:, None], 0), 0)
    place = tl.sum(tl.where(seen, wait[None, :] + 1, 0), 1) - 1
    tl.store(order + b * N + place, i, mask=live)


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
