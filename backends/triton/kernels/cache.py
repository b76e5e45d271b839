"""Rows of caches: written behind the committed ones, moved along an accepted path, of one layer or of all at once."""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.region_math import follow


@triton.jit
def path_nodes(path, sequence, place, live, P, PATH: tl.constexpr):
    """The node at each place of a sequence's path (int64); without PATH the places themselves."""
    if PATH:
        return tl.load(path + sequence * P + place, mask=live, other=0)
    else:
        return place.to(tl.int64)


@triton.jit
def move_part(cache, rows, path, start, count, block, first_row, layer, sequence, batch, width, capacity,
              layer_stride, batch_stride, row_stride, P, PATH: tl.constexpr, COUNT: tl.constexpr,
              IN_PLACE: tl.constexpr, SKIP: tl.constexpr, RB: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Columns [BLOCK] of the rows first_row … first_row + RB of one sequence's path to cache row start + place.

    `cache` [L,B,capacity,width] contiguous, `rows` with strides. IN_PLACE: node i is cache row start + i, RB covers the
    path, and all rows are read before one is written, whatever their order; SKIP: but those that are in place already.
    """
    kept = P
    if COUNT:
        kept = tl.minimum(tl.load(count + sequence), P)
    if kept > first_row:
        first = tl.load(start + sequence)
        place = first_row + tl.arange(0, RB)
        node = path_nodes(path, sequence, place, place < kept, P, PATH)
        column = block * BLOCK + tl.arange(0, BLOCK)
        live = place < kept
        if SKIP:
            live = live & (node != place)
        if IN_PLACE:
            node += first
        mask = live[:, None] & (column < width)[None, :]
        rows += layer.to(tl.int64) * layer_stride + sequence.to(tl.int64) * batch_stride
        values = tl.load(rows + (node * row_stride)[:, None] + column[None, :], mask=mask)
        if IN_PLACE:
            tl.debug_barrier()
        cache += (layer.to(tl.int64) * batch + sequence) * capacity * width
        tl.store(cache + ((first + place) * width)[:, None] + column[None, :], values, mask=mask)


@triton.jit(do_not_specialize=["P", "first_capacity", "second_capacity", "third_capacity"])
def move_rows(first, second, third, first_rows, second_rows, third_rows, path, start, count, P, batch, row_blocks,
              first_width, second_width, third_width, first_capacity, second_capacity, third_capacity,
              first_layer, second_layer, third_layer, first_batch, second_batch, third_batch,
              first_stride, second_stride, third_stride,
              PARTS: tl.constexpr, PATH: tl.constexpr, COUNT: tl.constexpr, IN_PLACE: tl.constexpr,
              SKIP: tl.constexpr, RB: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """cache[l, b, start[b] + j] = rows[l, b, path[b, j]] for j < count[b], for up to three caches and their rows.

    Grid (column blocks of all caches, B * row_blocks, L). See `move_part`. path int64 [B,P] (without PATH: 0, 1, …),
    start, count int64 [B] (without COUNT: P everywhere).
    """
    follow()
    block, layer = tl.program_id(0), tl.program_id(2)
    sequence = tl.program_id(1) // row_blocks
    first_row = tl.program_id(1) % row_blocks * RB
    blocks = tl.cdiv(first_width, BLOCK)
    if block < blocks:
        move_part(
            first, first_rows, path, start, count, block, first_row, layer, sequence, batch, first_width,
            first_capacity, first_layer, first_batch, first_stride, P, PATH, COUNT, IN_PLACE, SKIP, RB, BLOCK,
        )  # fmt: skip
    if PARTS > 1:
        block -= blocks
        blocks = tl.cdiv(second_width, BLOCK)
        if (block >= 0) & (block < blocks):
            move_part(
                second, second_rows, path, start, count, block, first_row, layer, sequence, batch, second_width,
                second_capacity, second_layer, second_batch, second_stride, P, PATH, COUNT, IN_PLACE, SKIP, RB, BLOCK,
            )  # fmt: skip
    if PARTS > 2:
        block -= blocks
        if block >= 0:
            move_part(
                third, third_rows, path, start, count, block, first_row, layer, sequence, batch, third_width,
                third_capacity, third_layer, third_batch, third_stride, P, PATH, COUNT, IN_PLACE, SKIP, RB, BLOCK,
            )  # fmt: skip


@triton.jit(do_not_specialize=["P", "capacity"])
def overlay_rows(cache, rows, path, start, count, out, P, width, capacity, batch_stride, row_stride,
                 PATH: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """out = cache [B,capacity,width] with rows[b, path[b, j]] at start[b] + j for j < count[b]. Grid (blocks, B)."""
    sequence = tl.program_id(1)
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < capacity.to(tl.int64) * width
    kept = tl.minimum(tl.load(count + sequence), P)
    turn = place // width - tl.load(start + sequence)
    new = inside & (turn >= 0) & (turn < kept)
    node = path_nodes(path, sequence, turn, new, P, PATH)
    own = sequence.to(tl.int64) * capacity * width + place
    old = tl.load(cache + own, mask=inside & (new == 0))
    moved = tl.load(rows + sequence.to(tl.int64) * batch_stride + node * row_stride + place % width, mask=new)
    tl.store(out + own, tl.where(new, moved, old), mask=inside)
