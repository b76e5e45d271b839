"""Children drawn without replacement from a drafter's law, and those laws by node."""

from __future__ import annotations

import torch

from specc.backends.triton.kernels.drawing import draw_rows, law_of_nodes
from specc.backends.triton.launch.core import beside, power_of_two
from specc.backends.triton.ops.vocab import lanes, mailboxes

Tensor = torch.Tensor

DRAWN_SPAN = 1024
"""Elements per program where there are many rows: a half of them for few rows, which leave the device idle."""
DRAWN_WARPS = 4
FEW_ROWS = 8
MOST_DRAWN_PARTS = 128
"""Parts that a row is cut into, at most."""
MOST_EMBEDDED = 14
"""Tokens of a batch row that are embedded as they are drawn, at most: each has four bits of 63."""
LAW_BLOCK = 2048
MOST_LEVELS = 6


def draw_children(
    logits: Tensor, rng: Tensor, position: Tensor, draw: Tensor, count: int, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """`count` distinct tokens of each row's law: (token, log_prob) [B,M,count], and sums [B,M,2]; one launch."""
    token, log_prob, sums, _ = launch_draws(logits, rng, position, draw, count, temperature, logits, [])
    return token, log_prob, sums


def draw_embedded(
    logits: Tensor,
    rng: Tensor,
    position: Tensor,
    draw: Tensor,
    count: int,
    temperature: float,
    table: Tensor,
    place: list[int],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`draw_children`, and the rows of `table` of some of the tokens: [B,len(place),H]; one launch."""
    if max(len(place), logits.shape[1] * count - 1) > MOST_EMBEDDED or len(set(place)) < len(place):
        drawn = draw_children(logits, rng, position, draw, count, temperature)
        return *drawn, torch.nn.functional.embedding(drawn[0].flatten(1)[:, place], table)
    return launch_draws(logits, rng, position, draw, count, temperature, table, place)


def launch_draws(
    logits: Tensor,
    rng: Tensor,
    position: Tensor,
    draw: Tensor,
    count: int,
    temperature: float,
    table: Tensor,
    place: list[int],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See `draw_rows`."""
    batch, rows, size = logits.shape
    device = logits.device
    token = torch.empty((batch, rows, count), dtype=torch.int64, device=device)
    log_prob = torch.empty((batch, rows, count), dtype=torch.float32, device=device)
    sums = torch.empty((batch, rows, 2), dtype=torch.float32, device=device)
    width = table.shape[1] if place else 1
    embedded = torch.empty((batch, len(place), width), dtype=table.dtype, device=device) if place else sums
    span = DRAWN_SPAN if batch * rows > FEW_ROWS else DRAWN_SPAN // 2
    span = max(min(span, power_of_two(size)), power_of_two(-(-size // MOST_DRAWN_PARTS)), power_of_two(count))
    parts = -(-size // span)
    room = lanes(parts * count, DRAWN_WARPS)
    draw_rows[(parts, batch * rows)](
        logits.contiguous(),
        rng.contiguous(),
        position.contiguous(),
        draw.contiguous(),
        token,
        log_prob,
        sums,
        table.contiguous() if place else sums,
        embedded,
        *mailboxes(device, batch * rows, (4 * count + 2) * parts),
        size,
        parts,
        rows,
        0 if draw.shape[0] == 1 else rows,
        float(temperature),
        width,
        K=count,
        KP=power_of_two(count),
        SPAN=span,
        PARTS=power_of_two(parts, 32 * DRAWN_WARPS if parts > 1 and room > 32 else 1),
        ALL=room,
        LOW=torch.finfo(torch.float64).min,
        PLACES=sum((number + 1) << 4 * at for number, at in enumerate(place)),
        PICKED=len(place),
        HB=power_of_two(width),
        num_warps=DRAWN_WARPS,
        **beside(),
    )
    return token, log_prob, sums, embedded


def drawn_laws(logits: list[Tensor], sums: list[Tensor], row: Tensor, temperature: float) -> Tensor:
    """float32 [B,N,V]: the law of each node's children from the logits of all levels, zeros where `row` says none."""
    if len(logits) > MOST_LEVELS:
        logits, sums = [torch.cat(logits, 1)], [torch.cat(sums, 1)]
    batch, nodes = row.shape
    size = logits[0].shape[2]
    out = torch.empty((batch, nodes, size), dtype=torch.float32, device=row.device)
    places = [*range(len(logits)), *([0] * (MOST_LEVELS - len(logits)))]
    block = min(LAW_BLOCK, power_of_two(size))
    levels = [part.contiguous() for part in logits]
    law_of_nodes[(-(-size // block), nodes, batch)](
        *(levels[at] for at in places),
        *(sums[at] for at in places),
        *(levels[at].shape[1] for at in places),
        row.contiguous(),
        out,
        size,
        float(temperature),
        LEVELS=len(levels),
        BLOCK=block,
        num_warps=4,
        **beside(),
    )
    return out
