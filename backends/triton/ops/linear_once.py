"""Linear layers in one step, and what one takes of an attention whose parts it joins itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from specc.backends.triton.kernels.linear_once import linear_once
from specc.backends.triton.launch.core import power_of_two

Tensor = torch.Tensor
LEAST_ROWS = 16
"""Rows of x that a product takes at least."""
FEW = 8
"""Rows of x that a layer of one step takes, if there are no more: each in the same order as with `LEAST_ROWS`."""


@dataclass(frozen=True, slots=True)
class Left:
    """An x [1,H] that an attention of one token has left in parts: float32 [KV heads, padded, most, dim] and `lse`.

    Its `group` heads to a KV head lie in the first of the `padded` rows; at most length[0] / `step` + 2 of the `most`
    parts have seen anything. `at_once`: parts that are read at a time.
    """

    lse: Tensor
    length: Tensor
    most: int
    padded: int
    group: int
    dim: int
    step: int
    at_once: int


def pieces(hidden: int, kw: int) -> tuple[int, int]:
    """Columns of a warp's two pieces that hold all columns together; 0: one piece is as good."""
    least = 16 * kw
    whole = power_of_two(hidden, least)
    half = max(whole // 2, least)
    rest = power_of_two(hidden - half, least)
    return (half // kw, rest // kw) if half + rest < whole else (whole // kw, 0)


def launch_once(
    operands: tuple[Tensor, ...],
    sizes: tuple[float, ...],
    tiles: int,
    options: Mapping[str, Any],
    left: Left | None,
) -> None:
    """`linear_once` on its operands up to y, sizes (rows, features, hidden, strides, eps) and options but BM."""
    rows, hidden, y = int(sizes[0]), int(sizes[2]), operands[-1]
    bm = FEW if rows <= FEW else LEAST_ROWS
    piece, rest = pieces(hidden, options["KW"])
    read = left or Left(y, y, most=0, padded=0, group=1, dim=1, step=1, at_once=0)
    linear_once[(-(-rows // bm), tiles)](
        *operands, read.lse, read.length, *sizes, read.most, read.padded,
        PIECE=piece, REST=rest, EVEN=(piece + rest) * options["KW"] == hidden,
        GROUP=read.group, D=read.dim, PARTS=read.at_once, STEP=read.step, **{**options, "BM": bm},
    )  # fmt: skip
