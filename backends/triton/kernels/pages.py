"""Caches in pages: where rows lie, pages taken for sequences that grow, rows appended and moved."""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from specc.backends.triton.kernels.dot import INTERPRETED
from specc.backends.triton.kernels.region_math import follow


@triton.jit
def entry_at(place):
    """int32 at pointers into a block table.

    Not by `tl.load`: a load that another load waits for would take one of the loop's stages, and with it half of the
    bytes on their way. But then nothing masks it either in the steps behind the last that a pipelined loop looks ahead
    to.
    """
    if INTERPRETED:
        return tl.load(place)
    else:
        return tl.inline_asm_elementwise(
            "ld.global.ca.b32 $0, [$1];", "=r,l", [place], dtype=tl.int32, is_pure=True, pack=1
        )


@triton.jit
def page_of(table, column, C, PAGE: tl.constexpr):
    """int32 page ids of columns of a sequence; `table`: its C // PAGE entries. Beyond them the last one is repeated:
    the last sequence's next entry may be another allocation's.
    """
    return entry_at(table + tl.minimum(column, C - 1) // PAGE)


@triton.jit
def page_places(rows, page, step):
    """Pointers rows + page * step for int32 pages, by one multiply-add; a product of 64-bit numbers takes five."""
    if INTERPRETED:
        return rows + page.to(tl.int64) * step
    else:
        SIZE: tl.constexpr = rows.dtype.element_ty.primitive_bitwidth // 8
        place = tl.inline_asm_elementwise(
            "mad.wide.s32 $0, $1, $2, $3;", "=l,r,r,l", [page, step * SIZE, tl.cast(rows, tl.int64)], dtype=tl.int64,
            is_pure=True, pack=1,
        )  # fmt: skip
        return tl.cast(place, rows.dtype)


@triton.jit
def pages_at(rows, table, first, C, stride, DP: tl.constexpr, BN: tl.constexpr, PAGE: tl.constexpr,
             STAGED: tl.constexpr):  # fmt: skip
    """Pointers [BN,DP] to the rows of columns first + [0, BN), which are several pages; `rows` points to row 0 of the
    head. Rows lie at multiples of 16 bytes. STAGED: a loop asks for entries stages before it asks for rows.

    One look-up and one product a page and not a row: 367 instructions a step of 64 columns instead of 529 (16 nodes,
    pages of 16, head dim 128; contiguous caches 332).
    """
    COUNT: tl.constexpr = BN // PAGE
    last = (C - 1) // PAGE  # entries behind it are another sequence's, or nobody's
    begin = tl.maximum(tl.minimum(first // PAGE, last + 1 - COUNT), 0)
    place = table + (begin + tl.minimum(tl.arange(0, COUNT), last))
    page = tl.load(place) if STAGED else entry_at(place)
    inside = rows + (tl.arange(0, PAGE) * stride)[:, None] + tl.arange(0, DP)[None, :]
    place = tl.reshape(page_places(inside[None, :, :], page[:, None, None], PAGE * stride), [BN, DP])
    return tl.max_contiguous(tl.multiple_of(place, (1, 16)), (1, DP))


@triton.jit
def row_of(table, row, C, PAGE: tl.constexpr):
    """int64 rows of a cache (PAGE 0) or pool in which rows of a sequence lie; see `page_of` for its table."""
    if PAGE == 0:
        return row.to(tl.int64)
    else:
        return page_of(table, row, C, PAGE).to(tl.int64) * PAGE + row % PAGE


@triton.jit
def wanted_blocks(length, count, sequence, live, rows, PAGE: tl.constexpr, COUNT: tl.constexpr):
    """Blocks (int64) that sequences need for their length and `count` (without COUNT: `rows`) more rows."""
    more = rows
    if COUNT:
        more = tl.load(count + sequence, mask=live, other=0)
    return (tl.load(length + sequence, mask=live, other=0) + more + PAGE - 1) // PAGE


@triton.jit(do_not_specialize=["B", "rows", "pages"])
def fill_tables(table, owner, length, count, B, rows, pages, blocks, PAGE: tl.constexpr, COUNT: tl.constexpr,
                SEQUENCES: tl.constexpr, BLOCKS: tl.constexpr, CHUNK: tl.constexpr):  # fmt: skip
    """Give sequences the pages that they lack: the lowest free ones, in order; see `specc.ir.ops`. One program.

    table int32 [B,blocks], owner int32 [pages]; SEQUENCES are looked at in one go, CHUNK pages likewise. A sequence
    lacks a page if the last entry that it needs is 0, so that most steps end after one look.
    """
    follow()
    lacking = 0
    for first in range(0, B, SEQUENCES):
        sequence = first + tl.arange(0, SEQUENCES)
        live = sequence < B
        last = wanted_blocks(length, count, sequence, live, rows, PAGE, COUNT) - 1
        entry = tl.load(table + sequence.to(tl.int64) * blocks + last, mask=live & (last >= 0), other=1)
        lacking += tl.sum((entry == 0).to(tl.int32))
    if lacking > 0:
        place = tl.arange(0, BLOCKS)
        for b in range(B):
            line = table + tl.cast(b, tl.int64) * blocks
            held = tl.sum((tl.load(line + place, mask=place < blocks, other=0) > 0).to(tl.int32))
            lacks = wanted_blocks(length, count, b, True, rows, PAGE, COUNT).to(tl.int32) - held
            found, start = tl.zeros_like(held), tl.zeros_like(held)
            while (found < lacks) & (start < pages):
                page = start + tl.arange(0, CHUNK)
                free = (page > 0) & (tl.load(owner + page, mask=page < pages, other=1) == 0)
                rank = found + tl.cumsum(free.to(tl.int32), 0) - 1
                chosen = free & (rank < lacks)
                tl.store(line + held + rank, page, mask=chosen)
                tl.store(owner + page, b + 1 + tl.zeros_like(page), mask=chosen)
                found += tl.sum(free.to(tl.int32))
                start += CHUNK
            # The next sequence looks for the pages that this one has left.
            tl.debug_barrier()


@triton.jit(do_not_specialize=["P"])
def move_in_pages(pool, rows, table, path, start, count, P, blocks, row_blocks, width, pool_layer, batch_stride,
                  row_stride, PAGE: tl.constexpr, COUNT: tl.constexpr, IN_PLACE: tl.constexpr, SKIP: tl.constexpr,
                  RB: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Row start[b] + j of sequence b of pool [L,pages,PAGE,width] becomes rows[b, j], for j < count[b].

    IN_PLACE: it becomes its own row start[b] + path[b, j]; RB covers the path, and all rows are read before one is
    written; SKIP: but those that are in place already. Grid (column blocks, B * row_blocks, L); without COUNT: P rows.
    """
    follow()
    block, layer = tl.program_id(0), tl.program_id(2)
    sequence = (tl.program_id(1) // row_blocks).to(tl.int64)
    first_row = tl.program_id(1) % row_blocks * RB
    kept = P
    if COUNT:
        kept = tl.minimum(tl.load(count + sequence), P)
    if kept > first_row:
        first = tl.load(start + sequence)
        line = table + sequence * blocks
        place = first_row + tl.arange(0, RB)
        live = place < kept
        column = block * BLOCK + tl.arange(0, BLOCK)
        pool += layer.to(tl.int64) * pool_layer
        if IN_PLACE:
            node = tl.load(path + sequence * P + place, mask=live, other=0)
            if SKIP:
                live = live & (node != place)
            source = pool + (row_of(line, first + node, blocks * PAGE, PAGE) * width)[:, None]
        else:
            source = rows + sequence * batch_stride + (place.to(tl.int64) * row_stride)[:, None]
        mask = live[:, None] & (column < width)[None, :]
        values = tl.load(source + column[None, :], mask=mask)
        if IN_PLACE:
            tl.debug_barrier()
        target = row_of(line, first + place, blocks * PAGE, PAGE) * width
        tl.store(pool + target[:, None] + column[None, :], values, mask=mask)
