"""Rows of small tensors that a step rewrites as a whole: the text so far, lists of pending factors.

KV caches are written by one scatter each (`npu`); what is here reads every row and writes every row.
"""

from __future__ import annotations

import torch

from specc.backends.ascend.ops.rows import on_rows, rows_in_order, take_rows


def append_rows(cache: torch.Tensor, rows: torch.Tensor, start: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """cache [B,C,…] with rows[b, :count[b]] [B,M,…] at start[b]; start, count int64 [B]."""
    place = rows_in_order(cache.shape[1], cache.device) - start.unsqueeze(1)
    written = (place >= 0) & (place < count.unsqueeze(1)) & (place < rows.shape[1])
    found = take_rows(rows, place.clamp(0, rows.shape[1] - 1))
    return torch.where(on_rows(written, cache), found, cache)


def commit_path(
    cache: torch.Tensor,
    candidate: torch.Tensor,
    path: torch.Tensor,
    start: torch.Tensor,
    count: torch.Tensor,
    fast_reorder: bool,
) -> torch.Tensor:
    """cache [B,C,…] with candidate[b, path[b, j]] at start[b] + j, j < count[b]; path int64 [B,P]."""
    place = rows_in_order(cache.shape[1], cache.device) - start.unsqueeze(1)
    written = (place >= 0) & (place < count.unsqueeze(1)) & (place < path.shape[1])
    node = torch.gather(path.expand(place.shape[0], -1), 1, place.clamp(0, path.shape[1] - 1))
    found = take_rows(candidate, node.clamp(0, candidate.shape[1] - 1))
    return torch.where(on_rows(written, cache), found, cache)


def joined_rows(
    candidate: torch.Tensor, rows: torch.Tensor | None, path: torch.Tensor, count: torch.Tensor
) -> torch.Tensor:
    """[B,P+N,…]: candidate[b, path[b, j]] for j < count[b], then rows[b] [N,…], then rows' last one again.

    Without `rows` [B,P,…], all rows of the path. One gather from cat(candidate, rows): the rows of one scatter.
    """
    batch, nodes = candidate.shape[:2]
    path = path.clamp(0, nodes - 1).expand(batch, -1)
    if rows is None:
        return take_rows(candidate, path)
    width, new = path.shape[1], rows.shape[1]
    place = rows_in_order(width + new, candidate.device)
    behind = place - count.unsqueeze(1)
    accepted = torch.gather(path, 1, place.clamp(max=width - 1).expand(batch, -1))
    source = torch.where(behind < 0, accepted, behind.clamp(0, new - 1) + nodes)
    return take_rows(torch.cat((candidate, rows), dim=1), source)
