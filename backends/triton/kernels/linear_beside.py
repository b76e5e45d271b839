"""What a product over few rows reads beside its weight and x: a residual, or earlier inputs of a short convolution.

Read right behind the wait for the kernel in front, in the product's first step: it is there when the product ends.
"""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def earlier_inputs(window, parent, moves, sequence, node, channel, inside, N, C, TAPS: tl.constexpr,
                   TREE: tl.constexpr):  # fmt: skip
    """What stands before each token's newest input: (moves, oldest .. newest from the window, their rows).

    sequence, node int32 [1,BM], channel [BF,1], inside [BF,BM]. Rows are of the sequence's N tokens, or -1, -2, ... of
    the window [B,TAPS-1,C] from its end; only those of the window are read here. `parent` int64 [B,N] (TREE): 0 the
    context, node i is i + 1. `moves` bytes [B]: whether a sequence's window moves on; of another type it is not read.
    """
    olds, rows, row = (), (), node
    for _ in tl.static_range(TAPS - 1):
        if TREE:
            above = tl.load(parent + sequence * N + row, mask=row >= 0, other=0).to(tl.int32) - 1
            row = tl.where(row >= 0, above, row - 1)
        else:
            row -= 1
        at = window + (sequence.to(tl.int64) * (TAPS - 1) + TAPS - 1 + row) * C + channel
        olds = (tl.load(at, mask=inside & (row < 0) & (row > -TAPS), other=0.0),) + olds
        rows = (row,) + rows
    moving = node
    if moves.dtype.element_ty == tl.uint8:
        moving = tl.load(moves + sequence).to(tl.int32)
    return (moving,) + olds + rows


@triton.jit
def read_beside(given, nothing, RESIDUAL: tl.constexpr, TAPS: tl.constexpr, TREE: tl.constexpr):
    """A tuple of what is read, from what is `given` (pointers and masks); `nothing`, of its shape, where nothing is."""
    if RESIDUAL:
        return (tl.load(given[0], mask=given[1], other=0.0),)
    elif TAPS > 0:
        return earlier_inputs(given[0], given[1], given[2], given[3], given[4], given[5], given[6], given[7], given[8],
                              TAPS, TREE)  # fmt: skip
    else:
        return nothing
