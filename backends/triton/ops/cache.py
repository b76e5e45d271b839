"""Rows of caches: the ops of `specc.ir.ops` that append, commit and compact them, without a word from the host.

Each launch handles up to three caches of all layers; a row with count 0 is neither written nor read (I14).
"""

from __future__ import annotations

import torch

from specc.backends.triton.kernels.cache import move_rows, overlay_rows
from specc.backends.triton.kernels.conv import last_inputs
from specc.backends.triton.launch.core import beside, power_of_two

Tensor = torch.Tensor

ROW_BLOCK = 16
"""Rows that one program appends."""
MOVED = 2048
"""Elements that one program moves, at most: they wait in registers until all are read."""
OVERLAID = 1024
WINDOW_CHANNELS = 256


def flat_rows(rows: Tensor, leading: int) -> Tensor:
    """[L,B,M,E] of rows [(L,)B,M,…] (`leading` dims before the inner ones), copied only where they must be."""
    flat = rows.flatten(leading) if rows.dim() > leading else rows.unsqueeze(-1)
    if flat.stride(-1) != 1 and flat.shape[-1] > 1:
        flat = flat.contiguous()
    if flat.dtype == torch.bool:
        flat = flat.view(torch.uint8)
    return flat if leading == 3 else flat.unsqueeze(0)


def launch_moves(
    caches: list[Tensor],
    rows: list[Tensor] | None,
    path: Tensor | None,
    start: Tensor,
    count: Tensor | None,
    skip: bool = False,
) -> None:
    """One launch for up to three caches [L,B,C,E] and rows [L,B,M,E] (None: they move inside the caches).

    `skip`: rows that are in place already are neither read nor written.
    """
    source = caches if rows is None else rows
    places = source[0].shape[2] if path is None else path.shape[1]
    if not places:
        return
    row_block = power_of_two(places) if rows is None else min(power_of_two(places), ROW_BLOCK)
    block = min(power_of_two(max(cache.shape[3] for cache in caches)), max(16, MOVED // row_block))
    row_blocks = -(-places // row_block)
    layers, batch = caches[0].shape[:2]
    column_blocks = sum(-(-cache.shape[3] // block) for cache in caches)
    three = [*range(len(caches)), *([0] * (3 - len(caches)))]
    move_rows[(column_blocks, batch * row_blocks, layers)](
        *(caches[at] for at in three),
        *(source[at] for at in three),
        start if path is None else path,
        start,
        start if count is None else count,
        places,
        batch,
        row_blocks,
        *(caches[at].shape[3] for at in three),
        *(caches[at].shape[2] for at in three),
        *(source[at].stride(0) for at in three),
        *(source[at].stride(1) for at in three),
        *(source[at].stride(2) for at in three),
        PARTS=len(caches),
        PATH=path is not None,
        COUNT=count is not None,
        IN_PLACE=rows is None,
        SKIP=rows is None and skip,
        RB=row_block,
        BLOCK=block,
        num_warps=4,
        **beside(),
    )


def append_rows_(cache: Tensor, rows: Tensor, start: Tensor, count: Tensor | None = None) -> None:
    """cache[b, start[b] + j] = rows[b, j] for j < count[b] (None: all rows); cache [B,C,…], rows [B,M,…]."""
    launch_moves([flat_rows(cache, 2)], [flat_rows(rows, 2)], None, start, count)


def commit_path_(cache: Tensor, path: Tensor, start: Tensor, count: Tensor, fast_reorder: bool) -> None:
    """Row start[b] + path[b, j] of cache [B,C,…] moves to start[b] + j for j < count[b], as a gather would.

    `fast_reorder` leaves rows that are in place already; else all of the path are read and written.
    """
    launch_moves([flat_rows(cache, 2)], None, path.contiguous(), start, count, fast_reorder)


def commit_path_layers_(caches: list[Tensor], path: Tensor, start: Tensor, count: Tensor, fast_reorder: bool) -> None:
    """`commit_path_` for every layer of caches [L,B,C,…]: one launch for three of them."""
    for first in range(0, len(caches), 3):
        part = [flat_rows(cache, 3) for cache in caches[first : first + 3]]
        launch_moves(part, None, path.contiguous(), start, count, fast_reorder)


def append_path_layers_(
    caches: list[Tensor], rows: list[Tensor], path: Tensor | None, start: Tensor, count: Tensor | None = None
) -> None:
    """caches[l, b, start[b] + j] = rows[l, b, path[b, j]] (None: j) for j < count[b]: one launch for three of them."""
    chosen = None if path is None else path.contiguous()
    for first in range(0, len(caches), 3):
        into = [flat_rows(cache, 3) for cache in caches[first : first + 3]]
        launch_moves(into, [flat_rows(part, 3) for part in rows[first : first + 3]], chosen, start, count)


def conv_commit_layers_(windows: list[Tensor], rows: list[Tensor], path: Tensor, count: Tensor) -> None:
    """`conv_commit` in place for every layer of windows [L,B,W-1,C] and rows [L,B,N,C] (contiguous): a launch each."""
    nodes = path.contiguous()
    for window, source in zip(windows, rows, strict=True):
        layers, batch, before, channels = window.shape
        block = min(WINDOW_CHANNELS, power_of_two(channels))
        last_inputs[(-(-channels // block), layers * batch)](
            window,
            source,
            nodes,
            count,
            window,
            source.shape[2],
            nodes.shape[1],
            channels,
            source.stride(1),
            source.stride(2),
            W=before + 1,
            BW=power_of_two(before),
            BC=block,
            PATH=True,
            COUNT=True,
            BATCH=batch,
            num_warps=4,
            **beside(),
        )


def overlaid(cache: Tensor, rows: Tensor, path: Tensor | None, start: Tensor, count: Tensor) -> Tensor:
    """A new cache [B,C,…] with rows[b, path[b, j]] (None: j) at start[b] + j for j < count[b]."""
    out = torch.empty_like(cache, memory_format=torch.contiguous_format)
    old, new = flat_rows(cache.contiguous(), 2), flat_rows(rows, 2)
    batch, capacity, width = old.shape[1:]
    overlay_rows[(-(-capacity * width // OVERLAID), batch)](
        old,
        new,
        start if path is None else path.contiguous(),
        start,
        count,
        flat_rows(out, 2),
        new.shape[2] if path is None else path.shape[1],
        width,
        capacity,
        new.stride(1),
        new.stride(2),
        PATH=path is not None,
        BLOCK=OVERLAID,
        num_warps=4,
    )
    return out


def append_rows(cache: Tensor, rows: Tensor, start: Tensor, count: Tensor) -> Tensor:
    """cache [B,C,…] with rows[b, :count[b]] [B,M,…] written at start[b]; one launch."""
    return overlaid(cache, rows, None, start, count)


def commit_path(
    cache: Tensor, candidate: Tensor, path: Tensor, start: Tensor, count: Tensor, fast_reorder: bool
) -> Tensor:
    """cache [B,C,…] with candidate[b, path[b, j]] at start[b] + j for j < count[b]; one launch."""
    return overlaid(cache, candidate, path, start, count)
