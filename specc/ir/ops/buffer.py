"""Ops of the buffer level: rows written in place, and attention that reads the new rows from the cache itself.

Only plan-buffers introduces these. New rows of a step lie in the cache behind the committed ones, at
[length, length + R): the tail. They are invisible until `length` moves.
"""

from __future__ import annotations

import torch

from specc.ir.op import IndexOperand, op
from specc.ir.ops.attention import attend, prefix_visible

_BUFFER = ("buffer",)


@op(
    "append_rows_(Tensor(a!) cache, Tensor rows, Tensor start, Tensor? count=None) -> ()",
    fake=lambda cache, rows, start, count=None: None,
    levels=_BUFFER,
    indices=(IndexOperand("start", "cache", 1),),
    meta={"identity_when_zero": "count", "value_form": "append_rows"},
)
def append_rows_(
    cache: torch.Tensor, rows: torch.Tensor, start: torch.Tensor, count: torch.Tensor | None = None
) -> None:
    """`append_rows` in place: cache[b, start[b] + j] = rows[b, j] for j < count[b] (None: all rows)."""
    for row in range(cache.shape[0]):
        first = int(start[row])
        kept = rows.shape[1] if count is None else int(count[row])
        cache[row, first : first + kept] = rows[row, :kept]


@op(
    "commit_path_(Tensor(a!) cache, Tensor path, Tensor start, Tensor count, bool fast_reorder) -> ()",
    fake=lambda cache, path, start, count, fast_reorder: None,
    levels=_BUFFER,
    indices=(IndexOperand("path", "cache", 1), IndexOperand("start", "cache", 1)),
    meta={"identity_when_zero": "count", "value_form": "commit_path"},
)
def commit_path_(
    cache: torch.Tensor, path: torch.Tensor, start: torch.Tensor, count: torch.Tensor, fast_reorder: bool
) -> None:
    """`commit_path` in place: node i's row is cache[b, start[b] + i]; row path[b, j] moves to j for j < count[b].

    Rows move in ascending order of j, which equals a gather because an accepted path has path[j] >= j and is
    strictly ascending (I1, I7): a row is read before anything is written to it. `fast_reorder` skips the leading
    rows with path[j] == j, which are in place already (design 03, "Commit"; I8).
    """
    for row in range(cache.shape[0]):
        first, kept, moved = int(start[row]), int(count[row]), False
        for place, node in enumerate(path[row, :kept].tolist()):
            moved = moved or node != place
            if moved or not fast_reorder:
                cache[row, first + place] = cache[row, first + node].clone()


def _attention_fake(q: torch.Tensor, *_: object) -> torch.Tensor:
    return torch.empty_like(q, memory_format=torch.contiguous_format)


def _tail(cache: torch.Tensor, length: torch.Tensor, rows: int) -> torch.Tensor:
    """cache[b, length[b] : length[b] + rows] as [B,rows,…]; rows beyond the capacity repeat its last row."""
    batch = torch.arange(cache.shape[0], device=cache.device).unsqueeze(1)
    index = length.unsqueeze(1) + torch.arange(rows, device=cache.device)
    return cache[batch, index.clamp(max=cache.shape[1] - 1)]


@op(
    "tree_attention_cached(Tensor q, Tensor k_cache, Tensor v_cache, Tensor length, Tensor mask, Tensor positions, "
    "float scale, int window, bool fused=True) -> Tensor",
    fake=_attention_fake,
    rows=("q", "mask", "positions"),
    levels=_BUFFER,
    meta={"reads_written": True},
)
def tree_attention_cached(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    length: torch.Tensor,
    mask: torch.Tensor,
    positions: torch.Tensor,
    scale: float,
    window: int,
    fused: bool = True,
) -> torch.Tensor:
    """`tree_attention` whose new rows are cache rows [length[b], length[b] + R), R = mask.shape[-1]."""
    prefix = prefix_visible(length, k_cache.shape[1], positions, window)
    key = torch.cat((k_cache, _tail(k_cache, length, mask.shape[-1])), dim=1)
    value = torch.cat((v_cache, _tail(v_cache, length, mask.shape[-1])), dim=1)
    return attend(q, key, value, torch.cat((prefix, mask), dim=-1), scale, fused)


@op(
    "causal_attention_cached(Tensor q, Tensor k_cache, Tensor v_cache, Tensor length, Tensor positions, int offset, "
    "float scale, int window, bool fused=True) -> Tensor",
    fake=_attention_fake,
    rows=("q", "positions"),
    levels=_BUFFER,
    meta={"reads_written": True},
)
def causal_attention_cached(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    length: torch.Tensor,
    positions: torch.Tensor,
    offset: int,
    scale: float,
    window: int,
    fused: bool = True,
) -> torch.Tensor:
    """`causal_attention` whose new rows are cache rows [length[b], length[b] + offset + M)."""
    prefix = prefix_visible(length, k_cache.shape[1], positions, window)
    rows = offset + q.shape[1]
    row = torch.arange(q.shape[1], device=q.device).unsqueeze(1) + offset
    column = torch.arange(rows, device=q.device)
    block = (column <= row).unsqueeze(0)
    if window > 0:
        block = block & (column > row - window)
    visible = torch.cat((prefix, block.expand(q.shape[0], -1, -1)), dim=-1)
    key = torch.cat((k_cache, _tail(k_cache, length, rows)), dim=1)
    value = torch.cat((v_cache, _tail(v_cache, length, rows)), dim=1)
    return attend(q, key, value, visible, scale, fused)
