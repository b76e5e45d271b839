"""Rows written into a cache: `scatter_update` (contiguous rows at a start) and `npu_scatter_nd_update` (by index)."""

from __future__ import annotations

import torch

INDEX_TYPES = frozenset({torch.int32, torch.int64})
SCATTER_TYPES = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.int8, torch.uint8, torch.int32})


def scatter_update_(data: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor, axis: int) -> torch.Tensor:
    """data[b] at indices[b] .. indices[b] + M - 1 along `axis` becomes updates[b]; in place.

    data [B, ..., C, ...], updates [B, ..., M, ...] with the other sizes equal, indices int32/int64 [B]. The device
    checks nothing: a row outside 0..C-1 is undefined (torch_npu: "out of range is not supported and not checked").
    """
    _check_types(data, indices, updates, SCATTER_TYPES)
    if indices.dim() != 1:
        raise NotImplementedError("scatter_update with indices of two axes")
    if data.dim() != updates.dim() or not 2 <= data.dim() <= 8:
        raise ValueError(f"scatter_update needs data and updates of one rank from 2 to 8, got {data.dim()}")
    axis %= data.dim()
    if axis == 0:
        raise ValueError("scatter_update along axis 0, which numbers the sequences")
    sizes = [size for place, size in enumerate(data.shape) if place != axis]
    if sizes != [size for place, size in enumerate(updates.shape) if place != axis]:
        raise ValueError(f"scatter_update of {list(updates.shape)} into {list(data.shape)} along axis {axis}")
    if len(indices) != len(data):
        raise ValueError(f"scatter_update needs one index for each of {len(data)} sequences, got {len(indices)}")
    rows = updates.shape[axis]
    starts = [int(start) for start in indices.tolist()]
    for start in starts:
        if start < 0 or start + rows > data.shape[axis]:
            raise IndexError(f"rows {start} to {start + rows - 1} of a cache of {data.shape[axis]}: undefined")
    for sequence, start in enumerate(starts):
        data[sequence].narrow(axis - 1, start, rows).copy_(updates[sequence])
    return data


def scatter_nd_update_(data: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
    """data[indices[i]] = updates[i] for index tuples in the last axis of `indices`; in place.

    Undefined: an index outside its axis (negative ones are not supported), and one place written twice.
    """
    _check_types(data, indices, updates, None)
    depth = indices.shape[-1]
    if indices.dim() < 2 or not 1 <= depth <= data.dim():
        raise ValueError(f"npu_scatter_nd_update with indices of shape {list(indices.shape)}")
    if list(updates.shape) != [*indices.shape[:-1], *data.shape[depth:]]:
        raise ValueError(f"npu_scatter_nd_update of {list(updates.shape)} at {list(indices.shape)}")
    places = indices.reshape(-1, depth).long()
    sizes = torch.tensor(data.shape[:depth])
    if bool(((places < 0) | (places >= sizes)).any()):
        raise IndexError(f"npu_scatter_nd_update outside {list(data.shape[:depth])}: undefined")
    if len(torch.unique(places, dim=0)) != len(places):
        raise IndexError("npu_scatter_nd_update writes a place twice: undefined")
    data[tuple(places.unbind(1))] = updates.reshape(len(places), *data.shape[depth:])
    return data


def _check_types(
    data: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor, allowed: frozenset[torch.dtype] | None
) -> None:
    if indices.dtype not in INDEX_TYPES:
        raise ValueError(f"indices of {indices.dtype}, int32 or int64 needed")
    if data.dtype != updates.dtype:
        raise ValueError(f"{updates.dtype} written into {data.dtype}")
    if allowed is not None and data.dtype not in allowed:
        raise ValueError(f"scatter_update does not support {data.dtype}")
