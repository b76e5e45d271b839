"""The largest element and the k best of a vocabulary: one launch each, whatever its size."""

from __future__ import annotations

import torch

from specc.backends.triton.kernels.vocab import part_argmax, row_argmax, row_topk
from specc.backends.triton.launch.core import beside, power_of_two

Tensor = torch.Tensor

ARGMAX_SPAN = 4096
"""Elements per program."""
TOPK_SPAN = 2048
MOST_PARTS = 32
"""Parts that a row is cut into, at most: a longer row has longer parts."""


_ARRIVALS: dict[torch.device, list[Tensor]] = {}


def arrivals(device: torch.device, rows: int) -> Tensor:
    """Counters of the programs that have finished a row: zero before and after each launch.

    Launches of one device come one after the other (they are on one stream). Counters are kept for good, since captured
    graphs hold on to them.
    """
    made = _ARRIVALS.setdefault(device, [])
    if not made or made[-1].numel() < rows:
        made.append(torch.zeros(max(rows, 4096), dtype=torch.int32, device=device))
    return made[-1]


_BOXES: dict[tuple[torch.device, int], list[tuple[Tensor, Tensor]]] = {}


def mailboxes(device: torch.device, rows: int, words: int) -> tuple[Tensor, Tensor]:
    """(boxes, turns) of rows whose programs leave each other so many words, see `kernels.sampling`; kept for good.

    Zero at first. A row's numbers go on from launch to launch, so that what an earlier one has left is never taken for
    new; rows of other sizes have boxes of their own.
    """
    made = _BOXES.setdefault((device, words), [])
    if not made or made[-1][1].numel() < rows:
        room = max(rows, 64)
        boxes = torch.zeros((room, words), dtype=torch.int64, device=device)
        made.append((boxes, torch.zeros(room, dtype=torch.int32, device=device)))
    return made[-1]


def lanes(count: int, warps: int) -> int:
    """The room for `count` numbers that other programs leave: so much that each is held by one thread alone, or all of
    them (two rows of 16) by every warp.

    What some warps hold twice might be there for one and not yet for another, when only one of them is asked whether to
    wait any longer.
    """
    size = power_of_two(count)
    if size > 32:
        return max(size, 32 * warps)
    return max(size, 2 * warps) if size > 2 else size


def part_size(size: int, least: int) -> int:
    """The elements of one part of a row: a power of two."""
    return max(min(least, power_of_two(size)), power_of_two(-(-size // MOST_PARTS)))


def flat_last(x: Tensor) -> Tensor:
    """[R,V], copied only where the rows do not lie apart by one stride."""
    flat = x.reshape(-1, x.shape[-1])
    return flat if flat.stride(1) == 1 else flat.contiguous()


def vocabulary_argmax(x: Tensor) -> Tensor:
    """int64 [...]: the first index of the maximum over the last dim of x [...,V]; NaN counts as the maximum."""
    rows = flat_last(x)
    out = torch.empty(x.shape[:-1], dtype=torch.int64, device=x.device)
    count, size = rows.shape
    span = part_size(size, ARGMAX_SPAN)
    parts = -(-size // span)
    partial = torch.empty((count, parts), dtype=torch.int64, device=x.device) if parts > 1 else out
    row_argmax[(parts, count)](
        rows,
        out,
        partial,
        arrivals(x.device, count) if parts > 1 else out,
        size,
        parts,
        rows.stride(0),
        SPAN=span,
        PARTS=power_of_two(parts),
        num_warps=8 if span >= 4096 else 4,
        **beside(),
    )
    return out


def argmax_parts(x: Tensor, span: int) -> Tensor:
    """int64 [B,P,N]: the best of each `span` columns of x [B,N,V]; see `specc.ir.ops.argmax_parts`."""
    rows = flat_last(x)
    count, size = rows.shape
    out = torch.empty((x.shape[0], -(-size // span), x.shape[1]), dtype=torch.int64, device=x.device)
    part_argmax[(out.shape[1], count)](
        rows, out, size, rows.stride(0), N=x.shape[1], SPAN=span, num_warps=8 if span >= 4096 else 4, **beside()
    )
    return out


def launch_topk(scores: Tensor, k: int, law: bool) -> tuple[Tensor, Tensor]:
    """See `row_topk`."""
    rows = flat_last(scores)
    count, size = rows.shape
    shape, device = (*scores.shape[:-1], k), scores.device
    values = torch.empty(shape, dtype=torch.float32 if law else scores.dtype, device=device)
    indices = torch.empty(shape, dtype=torch.int64, device=device)
    span = max(part_size(size, TOPK_SPAN), power_of_two(k))
    parts = -(-size // span)
    split = parts > 1
    row_topk[(parts, count)](
        rows,
        values,
        indices,
        torch.empty((count, parts, k), dtype=torch.int32, device=device) if split else indices,
        torch.empty((count, 2, parts), dtype=torch.float32, device=device) if split and law else values,
        arrivals(device, count) if split else indices,
        size,
        parts,
        rows.stride(0),
        k,
        KP=power_of_two(k),
        SPAN=span,
        PARTS=power_of_two(parts),
        PLACES=power_of_two(parts * k),
        LOW=torch.finfo(scores.dtype).min,
        LAW=law,
        num_warps=8 if span > 2048 else 4,
        **beside(),
    )
    return values, indices


def stable_topk(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best of the last dim by (score descending, index ascending); NaN counts as -inf, both come last."""
    return launch_topk(scores, k, law=False)


def topk_log_probs(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best tokens of logits [...,V] and min(log_softmax, 0) of them, float32.

    They are ordered by (logit descending, index ascending): two logits whose log-probabilities round to the same
    number keep their order.
    """
    return launch_topk(logits, k, law=True)
