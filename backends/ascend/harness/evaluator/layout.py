"""Where elements lie: reshapes, transposes, slices, concatenations, padding, repetition."""

from __future__ import annotations

import torch
from torch.nn import functional

from specc.backends.ascend.harness.evaluator.node import Node, operator


@operator("Identity", "TensorMove", inputs=("x", "src"))
def copied(node: Node) -> torch.Tensor:
    """The value itself. TensorMove gives it memory of its own."""
    if node.op.type == "TensorMove":
        return node.tensor("src" if "src" in node.inputs else "x").clone()
    return node.tensor("x")


@operator("Reshape", inputs=("x", "shape"), attributes={"axis": (0,), "num_axes": (-1,)})
def reshape(node: Node) -> torch.Tensor:
    """The elements in order under another shape; a size of 0 keeps that axis' size, -1 is what remains."""
    value, shape = node.tensor("x"), node.integers("shape")
    if value.numel():
        shape = [value.shape[place] if size == 0 else size for place, size in enumerate(shape)]
    return value.reshape(shape)


@operator("Transpose", inputs=("x", "perm"))
def transpose(node: Node) -> torch.Tensor:
    """Axes in the order `perm`."""
    return node.tensor("x").permute(node.integers("perm"))


@operator("Unsqueeze", inputs=("x",), attributes={"axes": None})
def unsqueeze(node: Node) -> torch.Tensor:
    """Axes of size 1 at these places of the result."""
    value, axes = node.tensor("x"), node.attribute("axes") or []
    rank = value.dim() + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        value = value.unsqueeze(axis)
    return value


@operator("ExpandDims", inputs=("x", "axis"))
def expand_dims(node: Node) -> torch.Tensor:
    """An axis of size 1."""
    return node.tensor("x").unsqueeze(node.integer("axis"))


@operator("Squeeze", inputs=("x",), attributes={"axis": None})
def squeeze(node: Node) -> torch.Tensor:
    """Without these axes (all of size 1, if none are named); a named axis of another size is undefined."""
    value, axes = node.tensor("x"), node.attribute("axis") or []
    if any(value.shape[axis] != 1 for axis in axes):
        raise node.undefined("Squeeze of an axis that is not of size 1")
    return value.squeeze(tuple(axes)) if axes else value.squeeze()


@operator("BroadcastTo", inputs=("x", "shape"))
def broadcast_to(node: Node) -> torch.Tensor:
    """x repeated along axes of size 1."""
    value = node.tensor("x")
    shape = node.integers("shape")
    padded = [1] * (len(shape) - value.dim()) + list(value.shape)
    return value.expand([size if target == -1 else target for size, target in zip(padded, shape, strict=True)])


@operator("Tile", inputs=("x", "multiples"))
def tile(node: Node) -> torch.Tensor:
    """x repeated `multiples` times along each axis."""
    return node.tensor("x").repeat(node.integers("multiples"))


@operator("ConcatV2", inputs=("concat_dim",), dynamic=("x",), attributes={"N": None})
def concat(node: Node) -> torch.Tensor:
    """The tensors one after another along an axis."""
    parts = node.tensors("x")
    if len(parts) != node.attribute("N", len(parts)) or len({part.dtype for part in parts}) != 1:
        raise node.undefined("parts of several types, or fewer than N")
    return torch.cat(parts, node.integer("concat_dim"))


@operator("Pack", dynamic=("x",), attributes={"N": None, "axis": None})
def pack(node: Node) -> torch.Tensor:
    """The tensors along a new axis."""
    return torch.stack(node.tensors("x"), node.attribute("axis", 0))


@operator("Unpack", inputs=("x",), attributes={"num": None, "axis": None})
def unpack(node: Node) -> list[torch.Tensor]:
    """The slices along an axis."""
    parts = list(node.tensor("x").unbind(node.attribute("axis", 0)))
    if len(parts) != node.attribute("num"):
        raise node.undefined(f"{len(parts)} slices, not {node.attribute('num')}")
    return parts


@operator("SplitV", inputs=("x", "size_splits", "split_dim"), attributes={"num_split": None})
def split(node: Node) -> list[torch.Tensor]:
    """Parts of these sizes along an axis; they must add up."""
    value, sizes, axis = node.tensor("x"), node.integers("size_splits"), node.integer("split_dim")
    if sizes.count(-1) == 1:
        sizes[sizes.index(-1)] = value.shape[axis] - sum(size for size in sizes if size >= 0)
    if sum(sizes) != value.shape[axis] or min(sizes) < 0 or len(sizes) != node.attribute("num_split", len(sizes)):
        raise node.undefined(f"sizes {sizes} of an axis of {value.shape[axis]}")
    return list(value.split(sizes, axis))


MASKS = dict.fromkeys(("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask"), (0,))


@operator("StridedSliceV2", inputs=("x", "begin", "end", "axes", "strides"), attributes=MASKS)
def strided_slice(node: Node) -> torch.Tensor:
    """x[begin:end:stride] along each of the axes, bounds clamped as in Python. Strides are positive."""
    value = node.tensor("x")
    begins, ends = node.integers("begin"), node.integers("end")
    axes = node.integers("axes") if node.optional("axes") is not None else list(range(len(begins)))
    strides = node.integers("strides") if node.optional("strides") is not None else [1] * len(begins)
    for axis, begin, end, stride in zip(axes, begins, ends, strides, strict=True):
        if stride < 1:
            raise node.undefined(f"a stride of {stride}")
        index = [slice(None)] * value.dim()
        index[axis] = slice(begin, end, stride)
        value = value[tuple(index)]
    return value


@operator(
    "PadV3",
    inputs=("x", "paddings", "constant_values"),
    attributes={"mode": ("constant",), "paddings_contiguous": (True,)},
)
def pad(node: Node) -> torch.Tensor:
    """`constant_values` (0) around x: (before, after) for each axis. Negative paddings are undefined."""
    value, paddings = node.tensor("x"), node.integers("paddings")
    if min(paddings, default=0) < 0:
        raise node.undefined("a negative padding")
    filler = node.optional("constant_values")
    if filler is not None and filler.dtype != value.dtype:
        raise node.undefined(f"{value.dtype} padded with {filler.dtype}")
    pairs = [(paddings[place], paddings[place + 1]) for place in range(0, len(paddings), 2)]
    flat = [amount for pair in reversed(pairs) for amount in pair]
    return functional.pad(value, flat, value=0 if filler is None else filler.item())


@operator("ReverseV2", inputs=("x", "axis"))
def reverse(node: Node) -> torch.Tensor:
    """Reversed along the axes."""
    return node.tensor("x").flip(node.integers("axis"))


@operator("Tril", inputs=("x",), attributes={"diagonal": None})
def lower_triangle(node: Node) -> torch.Tensor:
    """Zero above a diagonal."""
    return node.tensor("x").tril(node.attribute("diagonal", 0))


@operator("Triu", inputs=("x",), attributes={"diagonal": None})
def upper_triangle(node: Node) -> torch.Tensor:
    """Zero below a diagonal."""
    return node.tensor("x").triu(node.attribute("diagonal", 0))
