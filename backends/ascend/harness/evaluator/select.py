"""Choosing among values: SelectV2, MaskedFill, TopKV2, Sort."""

from __future__ import annotations

import torch

from specc.backends.ascend.harness.evaluator.node import Node, operator
from specc.backends.ascend.harness.evaluator.pointwise import same_type


@operator("SelectV2", inputs=("condition", "then", "else"))
def select(node: Node) -> torch.Tensor:
    """`then` where the condition holds, `else` elsewhere; one element type."""
    condition = node.tensor("condition")
    if condition.dtype != torch.bool:
        raise node.undefined(f"a condition of {condition.dtype}")
    then, other = same_type(node, "then", "else")
    return torch.where(condition, then, other)


@operator("MaskedFill", inputs=("x", "mask", "value"))
def masked_fill(node: Node) -> torch.Tensor:
    """`value` where the mask is true (torchair writes it as float32 for fp16, too; other mixtures are undefined)."""
    mask, value = node.tensor("mask"), node.tensor("x")
    if mask.dtype != torch.bool:
        raise node.undefined(f"a mask of {mask.dtype}")
    filler = node.tensor("value")
    if filler.dtype != value.dtype and not (filler.is_floating_point() and value.is_floating_point()):
        raise node.undefined(f"{value.dtype} filled with {filler.dtype}")
    return torch.where(mask, filler.reshape(()).to(value.dtype), value)


def ordered(node: Node, value: torch.Tensor, axis: int, *, descending: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Sorted values and their places. Of equal values the *last* comes first: GE promises no order among them, so a
    program that relies on torch's choice (the first, in practice) shows it here."""
    if value.is_floating_point() and bool(value.isnan().any()):
        raise node.undefined("an order among NaN")
    flipped = value.flip(axis)
    values, places = torch.sort(flipped, dim=axis, descending=descending, stable=True)
    return values, value.shape[axis] - 1 - places


@operator(
    "TopKV2",
    inputs=("x", "k"),
    attributes={"dim": None, "largest": None, "sorted": None, "sort_policy": (1,), "indices_dtype": (3,)},
)
def top_k(node: Node) -> tuple[torch.Tensor, torch.Tensor]:
    """The k largest (smallest) values along an axis and their places, int32."""
    value, k, axis = node.tensor("x"), node.integer("k"), node.attribute("dim", -1)
    if not 0 <= k <= value.shape[axis]:
        raise node.undefined(f"the top {k} of {value.shape[axis]}")
    values, places = ordered(node, value, axis, descending=node.attribute("largest", True))
    return values.narrow(axis, 0, k), places.narrow(axis, 0, k).to(torch.int32)


@operator("Sort", inputs=("x",), attributes={"axis": None, "descending": None, "stable": (False,)})
def sort(node: Node) -> tuple[torch.Tensor, torch.Tensor]:
    """Sorted values and their places, int32."""
    axis = node.attribute("axis", -1)
    values, places = ordered(node, node.tensor("x"), axis, descending=node.attribute("descending", False))
    return values, places.to(torch.int32)
