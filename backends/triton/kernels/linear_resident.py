"""Linear layers for few rows whose columns fit into registers: y = act(rms_norm(x) W^T + b) + residual.

The rows of x are read, normed and turned into operands of the products once per program; then the program goes from one
tile of features to the next, and only the weight moves. Columns are cut into KW pieces, one per warp, each with an
accumulator of its own; the pieces are added in order. As all rows meet the same pieces in the same order, a row's bits
do not depend on how many there are. More columns than a program holds are cut into SPLIT parts, whose programs leave
their sums in memory, and the last of them to arrive adds them in order.

x / rms(x) * norm_weight is rounded to the dtype once, as torch does.
"""

# Triton's language, not Python's types.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from specc.backends.triton.kernels.dot import dot_rows, rounded
from specc.backends.triton.kernels.linear import fetch_ahead, weight_rows


@triton.jit
def resident_rows(x, norm, token, live, column, hidden, x_stride, eps, NORM: tl.constexpr):
    """[KW, tokens, PIECE] of the rows, normed; zero beyond them."""
    inside = column < hidden
    rows = tl.load(x + token.to(tl.int64)[None, :, None] * x_stride + column, mask=live[None, :, None] & inside,
                   other=0.0)  # fmt: skip
    if NORM:
        wide = rows.to(tl.float32)
        scale = tl.load(norm + column, mask=inside, other=0.0).to(tl.float32)
        squares = tl.sum(tl.sum(wide * wide, 2), 0)
        rows = rounded(wide * tl.rsqrt(squares / hidden + eps)[None, :, None] * scale, x)
    return rows


@triton.jit
def write_tile(total, y, bias, residual, tile, token, live, features, residual_stride, BF: tl.constexpr,
               BIAS: tl.constexpr, GATED: tl.constexpr, RESIDUAL: tl.constexpr):  # fmt: skip
    """From the products [tokens, rows of the weight] to y; nothing is rounded between."""
    if BIAS:
        total += tl.load(bias + weight_rows(tile, features, BF, GATED)).to(tl.float32)[None, :]
    if GATED:
        gate, up = tl.split(tl.reshape(total, [token.shape[0], BF, 2]))
        out = gate / (1 + tl.exp(-gate)) * up
    else:
        out = total
    feature = tile * BF + tl.arange(0, BF)
    written = live[:, None] & (feature < features)[None, :]
    if RESIDUAL:
        out += tl.load(residual + token.to(tl.int64)[:, None] * residual_stride + feature[None, :], mask=written,
                       other=0.0).to(tl.float32)  # fmt: skip
    tl.store(y + token.to(tl.int64)[:, None] * features + feature[None, :], rounded(out, y), mask=written)


@triton.jit(do_not_specialize=["rows"])
def linear_resident(x, weight, bias, norm, residual, y, partial, arrived, rows, features, hidden, x_stride,
                    residual_stride, eps, tiles, BF: tl.constexpr, BM: tl.constexpr, PIECE: tl.constexpr,
                    KW: tl.constexpr, SPLIT: tl.constexpr, STAGES: tl.constexpr, AHEAD: tl.constexpr,
                    THREADS: tl.constexpr, BIAS: tl.constexpr, NORM: tl.constexpr, GATED: tl.constexpr,
                    RESIDUAL: tl.constexpr, EVEN: tl.constexpr, DEPENDENT: tl.constexpr):  # fmt: skip
    """One program: BM tokens, every (number of programs)-th tile of BF features, one of SPLIT parts of the columns.

    Operands as in `linear`. KW x PIECE columns a part; EVEN: they are all there. Only a layer without SPLIT has a norm.
    """
    block, worker, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    workers = tl.num_programs(1)
    first = part * KW * PIECE
    ROWS: tl.constexpr = 2 * BF if GATED else BF
    if AHEAD > 0:
        fetch_ahead(weight, weight_rows(worker, features, BF, GATED), first, hidden, ROWS, AHEAD, THREADS)
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()  # after the wait: what starts next may then rely on all kernels but this one
    column = first + tl.arange(0, KW)[:, None, None] * PIECE + tl.arange(0, PIECE)[None, None, :]
    token = block * BM + tl.arange(0, BM)
    live = token < rows
    held = resident_rows(x, norm, token, live, column, hidden, x_stride, eps, NORM)
    cell = tl.arange(0, BM)[:, None] * ROWS + tl.arange(0, ROWS)[None, :]
    for tile in tl.range(worker, tiles, workers, num_stages=STAGES):
        at = weight + weight_rows(tile, features, BF, GATED).to(tl.int64)[None, :, None] * hidden + column
        w = tl.load(at) if EVEN else tl.load(at, mask=column < hidden, other=0.0)
        total = tl.sum(dot_rows(held, tl.permute(w, (0, 2, 1)), tl.zeros([KW, BM, ROWS], tl.float32)), 0)
        if SPLIT > 1:
            tl.store(partial + ((block * tiles + tile) * SPLIT + part) * (BM * ROWS) + cell, total)
        else:
            write_tile(total, y, bias, residual, tile, token, live, features, residual_stride, BF, BIAS, GATED,
                       RESIDUAL)  # fmt: skip
    if SPLIT > 1:
        tl.debug_barrier()
        mine = arrived + block * workers + worker
        if tl.atomic_add(mine, 1, sem="acq_rel") == SPLIT - 1:
            for tile in range(worker, tiles, workers):
                total = tl.zeros([BM, ROWS], tl.float32)
                for other in tl.static_range(SPLIT):
                    theirs = partial + ((block * tiles + tile) * SPLIT + other) * (BM * ROWS)
                    total += tl.load(theirs + cell, cache_modifier=".cg")
                write_tile(total, y, bias, residual, tile, token, live, features, residual_stride, BF, BIAS, GATED,
                           RESIDUAL)  # fmt: skip
            tl.store(mine, 0)
