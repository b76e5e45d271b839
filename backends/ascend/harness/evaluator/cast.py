"""Changes of the element type: Cast (by value), Bitcast (by bits)."""

from __future__ import annotations

import torch

from specc.backends.ascend.harness.evaluator.node import GE_TYPES, Node, operator


@operator("Cast", inputs=("x",), attributes={"dst_type": None, "truncate": None})
def cast(node: Node) -> torch.Tensor:
    """x with its values converted; to whole numbers by truncation towards zero, to bool as x != 0.

    Undefined: a NaN, an infinity or a value outside the target's range converted to whole numbers.
    """
    return converted(node, node.tensor("x"), GE_TYPES[node.attribute("dst_type")])


def converted(node: Node, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`value` as `dtype`; Undefined where the value does not exist there."""
    if not dtype.is_floating_point and dtype != torch.bool and value.dtype != torch.bool and value.numel():
        limits = torch.iinfo(dtype)
        if value.is_floating_point():
            fits = (value.double() >= limits.min) & (value.double() < float(limits.max) + 1.0)
        else:
            fits = (value.long() >= limits.min) & (value.long() <= limits.max)
        if not bool(fits.all()):
            raise node.undefined(f"a value that {dtype} does not have")
    return value.to(dtype)


@operator("Bitcast", inputs=("x",), attributes={"type": None})
def bitcast(node: Node) -> torch.Tensor:
    """The same bits under another type of the same width."""
    dtype = GE_TYPES[node.attribute("type")]
    value = node.tensor("x")
    if dtype.itemsize != value.dtype.itemsize:
        raise node.unmodelled(f"Bitcast from {value.dtype} to {dtype}: widths differ")
    return value.contiguous().view(dtype)
