"""Caches in pages: the ops of `specc.ir.ops` that take pages and move rows through a block table, on the device alone.

A row with count 0 is neither written nor read (I14).
"""

from __future__ import annotations

import torch

from specc.backends.triton.kernels.pages import fill_tables, move_in_pages
from specc.backends.triton.launch.core import beside, power_of_two
from specc.backends.triton.ops.cache import MOVED, ROW_BLOCK, flat_rows

Tensor = torch.Tensor

SEQUENCES = 128
"""Sequences that are looked at in one go, at most."""
CHUNK = 1024
"""Pages that are looked at in one go, at most."""


def take_pages_(
    block_table: Tensor, page_owner: Tensor, length: Tensor, count: Tensor | None, rows: int, page: int
) -> None:
    """Every sequence gets the pages that it lacks for length[b] + count[b] (None: `rows`) rows; one launch.

    The lowest free pages, in order; page 0 never. A pool that has none left leaves entries 0: rows go to nobody's page.
    """
    batch, blocks = block_table.shape
    pages = page_owner.shape[0]
    fill_tables[(1,)](
        block_table, page_owner, length, length if count is None else count, batch, rows, pages, blocks,
        PAGE=page, COUNT=count is not None, SEQUENCES=min(SEQUENCES, power_of_two(batch)),
        BLOCKS=power_of_two(blocks), CHUNK=min(CHUNK, power_of_two(pages)), num_warps=4, **beside(),
    )  # fmt: skip


def launch_page_moves(
    pool: Tensor,
    block_table: Tensor,
    rows: Tensor | None,
    path: Tensor | None,
    start: Tensor,
    count: Tensor | None,
    skip: bool = False,
) -> None:
    """One launch for a pool [L,P,page,…] and rows [1,B,M,E], or for a path int64 [B,P] inside every layer."""
    layers, pages, page = pool.shape[:3]
    width = pool[0, 0, 0].numel()
    places = rows.shape[2] if rows is not None else path.shape[1] if path is not None else 0
    if not places:
        return
    row_block = power_of_two(places) if rows is None else min(power_of_two(places), ROW_BLOCK)
    block = min(power_of_two(width), max(16, MOVED // row_block))
    row_blocks = -(-places // row_block)
    batch, blocks = block_table.shape
    move_in_pages[(-(-width // block), batch * row_blocks, layers)](
        pool, pool if rows is None else rows, block_table, start if path is None else path, start,
        start if count is None else count, places, blocks, row_blocks, width, pages * page * width,
        0 if rows is None else rows.stride(1), 0 if rows is None else rows.stride(2),
        PAGE=page, COUNT=count is not None, IN_PLACE=rows is None, SKIP=rows is None and skip,
        RB=row_block, BLOCK=block, num_warps=4, **beside(),
    )  # fmt: skip


def append_pages_(pool: Tensor, block_table: Tensor, rows: Tensor, start: Tensor, count: Tensor | None = None) -> None:
    """Row start[b] + j of sequence b = rows[b, j] for j < count[b] (None: all); pool [P,page,…], rows [B,M,…]."""
    launch_page_moves(pool.unsqueeze(0), block_table, flat_rows(rows, 2), None, start, count)


def commit_pages_(
    pool: Tensor, block_table: Tensor, path: Tensor, start: Tensor, count: Tensor, fast_reorder: bool
) -> None:
    """Row start[b] + path[b, j] of sequence b moves to start[b] + j for j < count[b], as a gather would."""
    launch_page_moves(pool.unsqueeze(0), block_table, None, path.contiguous(), start, count, fast_reorder)


def commit_pages_layers_(
    pools: list[Tensor], block_table: Tensor, path: Tensor, start: Tensor, count: Tensor, fast_reorder: bool
) -> None:
    """`commit_pages_` for every layer of pools [L,P,page,…]: one launch each."""
    nodes = path.contiguous()
    for pool in pools:
        launch_page_moves(pool, block_table, None, nodes, start, count, fast_reorder)
