"""Ops that make tensors from sizes; the batch size is taken from a tensor, so that no graph holds it as a number."""

from __future__ import annotations

import torch

from specc.ir.op import op


@op(
    "batch_index(Tensor like) -> Tensor",
    fake=lambda like: like.new_empty((like.shape[0], 1), dtype=torch.int64),
)
def batch_index(like: torch.Tensor) -> torch.Tensor:
    """int64 [B,1] = [[0],[1],…]: the row number of each sequence of `like` [B,…], for `x[batch, index]`."""
    return torch.arange(like.shape[0], device=like.device).unsqueeze(1)


@op(
    "iota(Tensor like, int size) -> Tensor",
    fake=lambda like, size: like.new_empty((like.shape[1] if size == -2 else size,), dtype=torch.int64),
)
def iota(like: torch.Tensor, size: int) -> torch.Tensor:
    """int64 [size] = 0, 1, … on the device of `like`; size -2 stands for like.shape[1]."""
    return torch.arange(like.shape[1] if size == -2 else size, device=like.device)


def _resolve(like: torch.Tensor, shape: list[int]) -> list[int]:
    return [like.shape[0] if size == -1 else like.shape[1] if size == -2 else size for size in shape]


@op(
    "full_rows(Tensor like, int[] shape, Scalar value, ScalarType dtype) -> Tensor",
    fake=lambda like, shape, value, dtype: like.new_empty(_resolve(like, shape), dtype=dtype),
)
def full_rows(like: torch.Tensor, shape: list[int], value: float, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of one value; in `shape`, -1 stands for the batch like.shape[0] and -2 for like.shape[1]."""
    return torch.full(_resolve(like, shape), value, dtype=dtype, device=like.device)


def _table_shape(committed: torch.Tensor, rows: int) -> list[int]:
    shape = list(committed.shape)
    return [*shape[:2], rows, *shape[2:]]


@op(
    "root_table(Tensor committed, int rows, int root) -> Tensor",
    fake=lambda committed, rows, root: committed.new_empty(_table_shape(committed, rows)),
)
def root_table(committed: torch.Tensor, rows: int, root: int) -> torch.Tensor:
    """Zeros [L,B,rows,...] with `committed` [L,B,...] in row `root` (-1: the last) of dim 2.

    The table that a token loop fills with the nodes' states: the root context's row belongs to no node.
    """
    table = committed.new_zeros(_table_shape(committed, rows))
    table[:, :, root] = committed
    return table
