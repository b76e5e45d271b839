"""KV rows: appending a prefix, committing an accepted path, and their in-place forms."""

from __future__ import annotations

import torch

from specc.ir.op import IndexOperand, op


def _cache_fake(cache: torch.Tensor, *_: object) -> torch.Tensor:
    return torch.empty_like(cache)


@op(
    "append_rows(Tensor cache, Tensor rows, Tensor start, Tensor count) -> Tensor",
    fake=_cache_fake,
    indices=(IndexOperand("start", "cache", 1),),
    meta={"identity_when_zero": "count"},
)
def append_rows(cache: torch.Tensor, rows: torch.Tensor, start: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """cache [B,C,…] with rows[b, :count[b]] [B,M,…] written at start[b]; start, count int64 [B].

    Rows beyond `count` are not written, so a row with count 0 is unchanged (I14). start + count <= C.
    """
    out = cache.clone()
    for row in range(cache.shape[0]):
        first, kept = int(start[row]), int(count[row])
        out[row, first : first + kept] = rows[row, :kept]
    return out


@op(
    "commit_path(Tensor cache, Tensor candidate, Tensor path, Tensor start, Tensor count, bool fast_reorder) -> Tensor",
    fake=_cache_fake,
    indices=(IndexOperand("path", "candidate", 1), IndexOperand("start", "cache", 1)),
    meta={"identity_when_zero": "count"},
)
def commit_path(
    cache: torch.Tensor,
    candidate: torch.Tensor,
    path: torch.Tensor,
    start: torch.Tensor,
    count: torch.Tensor,
    fast_reorder: bool,
) -> torch.Tensor:
    """cache [B,C,…] with candidate[b, path[b, j]] written at start[b] + j for j < count[b] (gather semantics, I8).

    candidate [B,N,…], path int64 [B,P] (padded with 0), start, count int64 [B]. `fast_reorder` changes only how the
    buffer form moves rows (it skips the part of the path that is already in place), never the result.
    """
    out = cache.clone()
    for row in range(cache.shape[0]):
        first, kept = int(start[row]), int(count[row])
        out[row, first : first + kept] = candidate[row, path[row, :kept]]
    return out
