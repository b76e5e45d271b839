"""KV rows on an NPU: what one step writes into a cache, in one piece.

A cache stays in its memory only if its graph input has one reader, the scatter. So the rows that a commit moves and the
new rows of the step are joined first, and written together.
"""

from __future__ import annotations

import torch

from specc.ir.op import IndexOperand, op
from specc.ir.ops.npu import VALUE


@op(
    "npu_scatter_update(Tensor cache, Tensor start, Tensor rows, int axis) -> Tensor",
    fake=lambda cache, start, rows, axis: torch.empty_like(cache),
    levels=VALUE,
    indices=(IndexOperand("start", "cache", 1),),
)
def npu_scatter_update(cache: torch.Tensor, start: torch.Tensor, rows: torch.Tensor, axis: int) -> torch.Tensor:
    """cache [B,C,...] with rows [B,M,...] at start[b] .. start[b] + M - 1 along `axis` (1); start int64 [B].

    Raises IndexError where a row would lie outside the cache (the device writes to whatever address that is), and
    ValueError for another axis or rows that do not fit.
    """
    if axis != 1:
        raise ValueError(f"axis {axis}: rows lie along axis 1")
    if rows.dtype != cache.dtype or rows.shape[2:] != cache.shape[2:] or rows.shape[0] != cache.shape[0]:
        raise ValueError(f"rows {rows.dtype}{tuple(rows.shape)} do not fit {cache.dtype}{tuple(cache.shape)}")
    if start.dim() != 1 or start.shape[0] != cache.shape[0]:
        raise ValueError(f"start {tuple(start.shape)} is not one row number per sequence")
    out = cache.clone()
    for row, first in enumerate(start.tolist()):
        if first < 0 or first + rows.shape[1] > cache.shape[1]:
            last = first + rows.shape[1] - 1
            raise IndexError(f"rows {first} to {last} of sequence {row} lie outside a cache of {cache.shape[1]}")
        out[row, first : first + rows.shape[1]] = rows[row]
    return out


def _joined_fake(
    candidate: torch.Tensor, rows: torch.Tensor | None, path: torch.Tensor, count: torch.Tensor
) -> torch.Tensor:
    more = 0 if rows is None else rows.shape[1]
    return candidate.new_empty((candidate.shape[0], path.shape[1] + more, *candidate.shape[2:]))


@op(
    "joined_rows(Tensor candidate, Tensor? rows, Tensor path, Tensor count) -> Tensor",
    fake=_joined_fake,
    levels=VALUE,
    indices=(IndexOperand("path", "candidate", 1),),
)
def joined_rows(
    candidate: torch.Tensor, rows: torch.Tensor | None, path: torch.Tensor, count: torch.Tensor
) -> torch.Tensor:
    """[B,P+N,...]: candidate[b, path[b, j]] for j < count[b], then rows[b] [N,...], then rows' last one again.

    candidate [B,M,...], rows [B,N,...], path int64 [B,P] or [1,P], count int64 [B] in [0, P]. Without `rows` all P rows
    of the path (those from `count` on are of no use to anyone). One gather from cat(candidate, rows), I8. Raises
    IndexError for a path outside the candidates (also behind `count`: the device reads it) or a count outside [0, P].
    """
    batch, nodes = candidate.shape[:2]
    path = path.expand(batch, -1)
    width = path.shape[1]
    if bool((path < 0).any()) or bool((path >= nodes).any()):
        raise IndexError(f"a path is outside the {nodes} candidates")
    if bool((count < 0).any()) or bool((count > width).any()):
        raise IndexError(f"a count is outside [0, {width}]")
    row = torch.arange(batch, device=path.device).unsqueeze(1)
    if rows is None:
        return candidate[row, path]
    place = torch.arange(width + rows.shape[1], device=path.device).unsqueeze(0)
    behind = place - count.unsqueeze(1)
    accepted = path[row, place.clamp(max=width - 1)]
    new = nodes + behind.clamp(0, rows.shape[1] - 1)
    return torch.cat((candidate, rows), dim=1)[row, torch.where(behind < 0, accepted, new)]
