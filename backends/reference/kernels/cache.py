"""Writing KV rows: one host read of the row numbers per call, slices instead of masks."""

from __future__ import annotations

from collections.abc import Iterator

import torch


def append_rows_(
    cache: torch.Tensor,
    rows: torch.Tensor,
    start: torch.Tensor,
    count: torch.Tensor | None = None,
) -> None:
    """cache[b, start[b] + j] = rows[b, j] for j < count[b] (None: all rows)."""
    counts = [rows.shape[1]] * rows.shape[0] if count is None else count.tolist()
    for row, (first, kept) in enumerate(zip(start.tolist(), counts, strict=True)):
        if kept > 0:
            cache[row, first : first + kept] = rows[row, :kept]


def append_rows(
    cache: torch.Tensor, rows: torch.Tensor, start: torch.Tensor, count: torch.Tensor
) -> torch.Tensor:
    """`append_rows_` on a copy."""
    out = cache.clone()
    append_rows_(out, rows, start, count)
    return out


def path_moves(
    path: torch.Tensor, start: torch.Tensor, count: torch.Tensor, fast_reorder: bool
) -> Iterator[tuple[int, torch.Tensor, int, int]]:
    """Of each row b that moves: (b, cache rows to take, first place for them, the end).

    Those are start[b] + path[b, j] for j < count[b]. With `fast_reorder` the leading rows
    that are in place already (path[j] == j) are left.
    """
    counts, starts = count.tolist(), start.tolist()
    for row, nodes in enumerate(path.tolist()):
        kept, first = counts[row], starts[row]
        skip = 0
        while fast_reorder and skip < kept and nodes[skip] == skip:
            skip += 1
        if skip < kept:
            yield row, path[row, skip:kept] + first, first + skip, first + kept


def commit_path_(
    cache: torch.Tensor,
    path: torch.Tensor,
    start: torch.Tensor,
    count: torch.Tensor,
    fast_reorder: bool,
) -> None:
    """Move row start[b] + path[b, j] to start[b] + j for j < count[b], in place.

    The rows are gathered before any is written, so overlap does no harm.
    """
    for row, source, begin, end in path_moves(path, start, count, fast_reorder):
        cache[row, begin:end] = cache[row].index_select(0, source)


def commit_path(
    cache: torch.Tensor,
    candidate: torch.Tensor,
    path: torch.Tensor,
    start: torch.Tensor,
    count: torch.Tensor,
    fast_reorder: bool,
) -> torch.Tensor:
    """A copy of cache [B,C,…] with candidate[b, path[b, j]] at start[b] + j, j < count[b]."""
    out = cache.clone()
    counts, starts = count.tolist(), start.tolist()
    for row in range(cache.shape[0]):
        kept, first = counts[row], starts[row]
        out[row, first : first + kept] = candidate[row].index_select(
            0, path[row, :kept]
        )
    return out
