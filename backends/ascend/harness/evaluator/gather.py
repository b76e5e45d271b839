"""Reading by index: GatherV2, GatherElements, IndexByTensor. An index out of range is undefined, a negative one too
unless the op says that it supports them (`select` does)."""

from __future__ import annotations

import torch

from specc.backends.ascend.harness.evaluator.node import Node, operator

INDEX_TYPES = frozenset({torch.int32, torch.int64})


def checked_index(node: Node, index: torch.Tensor, size: int, *, negative: bool = False) -> torch.Tensor:
    """The index as int64 within 0..size-1. Raises Undefined for any element outside, and for a wrong type."""
    if index.dtype not in INDEX_TYPES:
        raise node.undefined(f"an index of {index.dtype}")
    if index.numel():
        low, high = int(index.min()), int(index.max())
        if low < (-size if negative else 0) or high >= size:
            raise node.undefined(f"an index from {low} to {high} for an axis of {size}")
    wrapped = index.long()
    return torch.where(wrapped < 0, wrapped + size, wrapped) if negative else wrapped


@operator(
    "GatherV2",
    inputs=("x", "indices", "axis"),
    attributes={"batch_dims": (0,), "is_preprocessed": (False,), "negative_index_support": None},
)
def gather_axis(node: Node) -> torch.Tensor:
    """x's slices along an axis, one for each index: the index' shape replaces the axis."""
    value, axis = node.tensor("x"), node.integer("axis") % max(node.tensor("x").dim(), 1)
    negative = node.attribute("negative_index_support", False)
    index = checked_index(node, node.tensor("indices"), value.shape[axis], negative=negative)
    flat = value.index_select(axis, index.reshape(-1))
    return flat.reshape([*value.shape[:axis], *index.shape, *value.shape[axis + 1 :]])


@operator("GatherElements", inputs=("x", "index"), attributes={"dim": None})
def gather_elements(node: Node) -> torch.Tensor:
    """result[i][j] = x[index[i][j]][j] along `dim`."""
    value, axis = node.tensor("x"), node.attribute("dim", 0)
    index = checked_index(node, node.tensor("index"), value.shape[axis])
    return torch.gather(value, axis, index)


@operator("IndexByTensor", inputs=("x",), dynamic=("indices",), attributes={"indices_mask": None})
def index_by_tensor(node: Node) -> torch.Tensor:
    """x indexed by tensors at the axes whose mask is 1; the tensors broadcast against each other."""
    value, tensors = node.tensor("x"), node.tensors("indices")
    mask = node.attribute("indices_mask") or []
    axes = [axis for axis, used in enumerate(mask) if used]
    if len(axes) != len(tensors):
        raise node.unmodelled(f"indices_mask {mask} with {len(tensors)} indices")
    index: list[torch.Tensor | slice] = [slice(None)] * len(mask)
    for axis, tensor in zip(axes, tensors, strict=True):
        index[axis] = checked_index(node, tensor, value.shape[axis])
    return value[tuple(index)]
