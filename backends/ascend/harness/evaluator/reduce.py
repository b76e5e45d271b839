"""Over an axis: sums, means, extrema and their places, any and all, prefix sums, softmax."""

from __future__ import annotations

import torch

from specc.backends.ascend.harness.evaluator.node import GE_TYPES, LOW_PRECISION, Node, operator, wide

KEEP = {"keep_dims": None, "noop_with_empty_axes": None}


def _axes(node: Node, value: torch.Tensor) -> list[int]:
    """The `axes` input; empty means all, unless noop_with_empty_axes says none."""
    axes = node.integers("axes")
    if axes:
        return _checked(node, axes, value.dim())
    return [] if node.attribute("noop_with_empty_axes", True) else list(range(value.dim()))


def _checked(node: Node, axes: list[int], rank: int) -> list[int]:
    for axis in axes:
        if not -max(rank, 1) <= axis < max(rank, 1):
            raise node.undefined(f"axis {axis} of {rank} axes")
    return axes


def _extreme(node: Node, name: str) -> torch.Tensor:
    value = node.tensor("x")
    if value.is_floating_point() and bool(value.isnan().any()):
        raise node.undefined(f"{name} over NaN")
    return value


@operator("ReduceSum", inputs=("x", "axes"), attributes=KEEP)
def reduce_sum(node: Node) -> torch.Tensor:
    """Sum over the axes in float32 (whole numbers: in their type), rounded once."""
    value = node.tensor("x")
    axes = _axes(node, value)
    if not axes:
        return value.clone()
    accumulate = wide(value).dtype
    return wide(value).sum(axes, keepdim=node.attribute("keep_dims", False), dtype=accumulate).to(value.dtype)


@operator("ReduceMean", inputs=("x", "axes"), attributes=KEEP)
def reduce_mean(node: Node) -> torch.Tensor:
    """Mean over the axes, accumulated in float32."""
    value = node.tensor("x")
    axes = _axes(node, value)
    if not axes:
        return value.clone()
    return wide(value).mean(axes, keepdim=node.attribute("keep_dims", False)).to(value.dtype)


@operator("ReduceMax", inputs=("x", "axes"), attributes=KEEP)
def reduce_max(node: Node) -> torch.Tensor:
    """Largest value over the axes; undefined over NaN."""
    value = _extreme(node, "ReduceMax")
    axes = _axes(node, value)
    return value.amax(axes, keepdim=node.attribute("keep_dims", False)) if axes else value.clone()


@operator("ReduceMin", inputs=("x", "axes"), attributes=KEEP)
def reduce_min(node: Node) -> torch.Tensor:
    """Smallest value over the axes; undefined over NaN."""
    value = _extreme(node, "ReduceMin")
    axes = _axes(node, value)
    return value.amin(axes, keepdim=node.attribute("keep_dims", False)) if axes else value.clone()


@operator("ReduceProd", inputs=("x", "axes"), attributes=KEEP)
def reduce_prod(node: Node) -> torch.Tensor:
    """Product over the axes."""
    value = node.tensor("x")
    result = wide(value)
    for axis in sorted((axis % value.dim() for axis in _axes(node, value)), reverse=True):
        result = result.prod(axis, keepdim=node.attribute("keep_dims", False), dtype=result.dtype)
    return result.to(value.dtype)


@operator("ReduceAny", inputs=("x", "axes"), attributes=KEEP)
def reduce_any(node: Node) -> torch.Tensor:
    """Whether any value over the axes is true."""
    value = node.tensor("x")
    axes = _axes(node, value)
    return value.any(dim=axes, keepdim=node.attribute("keep_dims", False)) if axes else value.clone()


@operator("ReduceAll", inputs=("x", "axes"), attributes=KEEP)
def reduce_all(node: Node) -> torch.Tensor:
    """Whether all values over the axes are true."""
    value = node.tensor("x")
    axes = _axes(node, value)
    return value.all(dim=axes, keepdim=node.attribute("keep_dims", False)) if axes else value.clone()


@operator("ReduceLogSumExp", inputs=("x", "axes"), attributes=KEEP)
def log_sum_exp(node: Node) -> torch.Tensor:
    """log(sum(exp(x))) over the axes, with the maximum taken out."""
    value = node.tensor("x")
    axes = _axes(node, value)
    return torch.logsumexp(wide(value), axes, keepdim=node.attribute("keep_dims", False)).to(value.dtype)


@operator("LpNormV2", inputs=("x",), attributes={"p": (1.0, 2.0), "axes": None, "keepdim": None, "epsilon": (0.0,)})
def lp_norm(node: Node) -> torch.Tensor:
    """The p-norm over the axes."""
    value = node.tensor("x")
    axes = node.attribute("axes", []) or list(range(value.dim()))
    keep = node.attribute("keepdim", False)
    norm = torch.linalg.vector_norm(wide(value), node.attribute("p"), axes, keepdim=keep)
    return norm.to(value.dtype)


@operator("ArgMaxV2", inputs=("x", "dimension"), attributes={"dtype": None})
def arg_max(node: Node) -> torch.Tensor:
    """The place of the largest value, the first of equal ones. Undefined over NaN and over no values."""
    value, axis = _searched(node, "ArgMax")
    return value.argmax(axis).to(GE_TYPES[node.attribute("dtype", 9)])


@operator("ArgMin", inputs=("x", "dimension"), attributes={"dtype": None})
def arg_min(node: Node) -> torch.Tensor:
    """The place of the smallest value, the first of equal ones."""
    value, axis = _searched(node, "ArgMin")
    return value.argmin(axis).to(GE_TYPES[node.attribute("dtype", 9)])


def _searched(node: Node, name: str) -> tuple[torch.Tensor, int]:
    value = _extreme(node, name)
    axis = _checked(node, [node.integer("dimension")], value.dim())[0]
    if value.dim() and not value.shape[axis]:
        raise node.undefined(f"{name} over no values")
    return value, axis


@operator("ArgMaxWithValue", inputs=("x",), attributes={"dimension": None, "keep_dims": None})
def arg_max_with_value(node: Node) -> tuple[torch.Tensor, torch.Tensor]:
    """(place int32, value) of the largest value, the first of equal ones."""
    value = _extreme(node, "ArgMaxWithValue")
    axis, keep = node.attribute("dimension"), node.attribute("keep_dims", False)
    return value.argmax(axis, keepdim=keep).to(torch.int32), value.amax(axis, keepdim=keep)


@operator("Cumsum", inputs=("x", "axis"), attributes={"exclusive": (False,), "reverse": (False,)})
def cumsum(node: Node) -> torch.Tensor:
    """Prefix sums along an axis, accumulated in float32."""
    value = node.tensor("x")
    if value.dtype == torch.bool:
        raise node.undefined("Cumsum of bool")
    axis = _checked(node, [node.integer("axis")], value.dim())[0]
    return wide(value).cumsum(axis, dtype=wide(value).dtype).to(value.dtype)


@operator("SoftmaxV2", inputs=("x",), attributes={"axes": None, "half_to_float": None})
def softmax(node: Node) -> torch.Tensor:
    """exp(x - max) / sum, in float32; half_to_float keeps float32. A row of -inf alone is undefined (0 / 0)."""
    value = node.tensor("x")
    (axis,) = node.attribute("axes", [-1])
    if bool((value == float("-inf")).all(axis).any()):
        raise node.undefined("softmax over -inf alone")
    result = wide(value).softmax(axis)
    return result if node.attribute("half_to_float", False) else result.to(value.dtype)


@operator("LogSoftmaxV2", inputs=("logits",), attributes={"axes": None})
def log_softmax(node: Node) -> torch.Tensor:
    """x - max - log(sum(exp(x - max))), in float32."""
    value = node.tensor("logits")
    (axis,) = node.attribute("axes", [-1])
    result = wide(value).log_softmax(axis)
    return result.to(value.dtype) if value.dtype in LOW_PRECISION else result
