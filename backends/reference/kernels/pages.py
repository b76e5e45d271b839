"""Caches in pages: taking pages, moving rows through a block table, attention over what it names."""

from __future__ import annotations

import torch

from specc.backends.reference.kernels.attention import (
    causal_attention_cached,
    tree_attention_cached,
)
from specc.backends.reference.kernels.cache import path_moves


def take_pages_(
    block_table: torch.Tensor,
    page_owner: torch.Tensor,
    length: torch.Tensor,
    count: torch.Tensor | None,
    rows: int,
    page: int,
) -> None:
    """The pages that rows lack for length[b] + count[b] (None: `rows`) cache rows.

    block_table [B,blocks] and page_owner [P] change in place; the lowest free pages are
    taken, page 0 never. Raises RuntimeError where no page is free.
    """
    wanted = length + (rows if count is None else count)
    needed = torch.div(wanted + page - 1, page, rounding_mode="floor").tolist()
    held = (block_table > 0).sum(1).tolist()
    for row, (first, last) in enumerate(zip(held, needed, strict=True)):
        if last > first:
            free = torch.nonzero(page_owner[1:] == 0).flatten()[: last - first] + 1
            if len(free) < last - first:
                raise RuntimeError(
                    f"no page is free for row {row}, which holds {first}"
                )
            block_table[row, first:last] = free.to(block_table.dtype)
            page_owner.index_fill_(0, free, row + 1)


def page_rows(
    block_table: torch.Tensor, row: int, place: torch.Tensor, page: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(page, row within it) of the cache rows `place` int64 [n] of a row of the batch."""
    block = torch.div(place, page, rounding_mode="floor")
    return block_table[row].index_select(0, block).long(), place % page


def append_pages_(
    pool: torch.Tensor,
    block_table: torch.Tensor,
    rows: torch.Tensor,
    start: torch.Tensor,
    count: torch.Tensor | None = None,
) -> None:
    """Cache row start[b] + j of row b becomes rows[b, j] for j < count[b] (None: all)."""
    counts = [rows.shape[1]] * rows.shape[0] if count is None else count.tolist()
    for row, (first, kept) in enumerate(zip(start.tolist(), counts, strict=True)):
        if kept > 0:
            place = torch.arange(first, first + kept, device=pool.device)
            pool[page_rows(block_table, row, place, pool.shape[1])] = rows[row, :kept]


def commit_pages_(
    pool: torch.Tensor,
    block_table: torch.Tensor,
    path: torch.Tensor,
    start: torch.Tensor,
    count: torch.Tensor,
    fast_reorder: bool,
) -> None:
    """Move cache row start[b] + path[b, j] to start[b] + j for j < count[b], in place.

    The rows are gathered before any is written, so overlap does no harm.
    """
    for row, source, begin, end in path_moves(path, start, count, fast_reorder):
        target = torch.arange(begin, end, device=pool.device)
        moved = pool[page_rows(block_table, row, source, pool.shape[1])]
        pool[page_rows(block_table, row, target, pool.shape[1])] = moved


def named_rows(
    pool: torch.Tensor, block_table: torch.Tensor, rows: int
) -> torch.Tensor:
    """The first `rows` cache rows (a page more at most) of every row [B,R,Hkv,D]: a copy."""
    blocks = block_table[:, : -(-rows // pool.shape[1])]
    return pool[blocks.long()].flatten(1, 2)


def tree_attention_paged(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    block_table: torch.Tensor,
    length: torch.Tensor,
    mask: torch.Tensor,
    positions: torch.Tensor,
    scale: float,
    window: int,
    fused: bool = True,
) -> torch.Tensor:
    """`tree_attention_cached` of the cache rows that the table names."""
    total = int(length.max()) + mask.shape[-1]
    keys = named_rows(k_pool, block_table, total)
    values = named_rows(v_pool, block_table, total)
    return tree_attention_cached(
        q, keys, values, length, mask, positions, scale, window, fused
    )


def causal_attention_paged(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    block_table: torch.Tensor,
    length: torch.Tensor,
    positions: torch.Tensor,
    offset: int,
    scale: float,
    window: int,
    fused: bool = True,
) -> torch.Tensor:
    """`causal_attention_cached` of the cache rows that the table names."""
    total = int(length.max()) + offset + q.shape[1]
    keys = named_rows(k_pool, block_table, total)
    values = named_rows(v_pool, block_table, total)
    return causal_attention_cached(
        q, keys, values, length, positions, offset, scale, window, fused
    )
