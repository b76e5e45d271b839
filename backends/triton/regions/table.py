"""All node targets that regions know, and what becomes of a node that is not in a region itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import Node

from specc.backends.triton.regions import pointwise
from specc.backends.triton.regions.create import CREATE
from specc.backends.triton.regions.fused import FUSED
from specc.backends.triton.regions.indexing import INDEXING
from specc.backends.triton.regions.loops import fused_loop
from specc.backends.triton.regions.reduce import REDUCE
from specc.backends.triton.regions.rows import ROWS
from specc.backends.triton.regions.views import VIEWS, split
from specc.backends.triton.regions.writer import Writer
from specc.ir.loop import loop

aten = torch.ops.aten


def _overload(text: str) -> Any:
    name, overload = text.split(".")
    return getattr(getattr(aten, name), overload)


_COMPARED = {
    _overload(f"{name}.{kind}"): pointwise.comparison for name in pointwise.COMPARISONS for kind in ("Tensor", "Scalar")
}
POINTWISE: Mapping[Any, Callable[[Writer, Node], Any]] = {
    **{_overload(name): pointwise.pointwise for name in pointwise.FORMS},
    **_COMPARED,
    aten.logical_and.default: pointwise.logical,
    aten.logical_or.default: pointwise.logical,
    aten.logical_xor.default: pointwise.logical,
    aten.logical_not.default: pointwise.logical_not,
    aten.where.self: pointwise.where,
    aten.masked_fill.Scalar: pointwise.masked_fill,
    aten._to_copy.default: pointwise.convert,
    aten.to.dtype: pointwise.convert,
    aten.clone.default: pointwise.identity,
    aten.contiguous.default: pointwise.identity,
    aten.div.Tensor_mode: pointwise.floor_quotient,
    aten.div.Scalar_mode: pointwise.floor_quotient,
}
# Nodes that cost nothing: each region that reads one works it out for itself.
FREE: Mapping[Any, Callable[[Writer, Node], Any]] = {**VIEWS, **CREATE, aten.split_with_sizes.default: split}
# Nodes that are work: each stands in one region at most.
WORK: Mapping[Any, Callable[[Writer, Node], Any]] = {
    **POINTWISE,
    **REDUCE,
    **INDEXING,
    **FUSED,
    **ROWS,
    loop: fused_loop,
}
EMIT: Mapping[Any, Callable[[Writer, Node], Any]] = {**FREE, **WORK}
# Launches that torch needs for a node by itself, where it is more than one.
LAUNCHES: Mapping[Any, int] = {
    **dict.fromkeys(FUSED, 4),
    aten.silu.default: 4,
    aten.sigmoid.default: 4,
    aten.softplus.default: 5,
    aten.rms_norm.default: 2,
    aten.where.self: 1,
    aten.index.Tensor: 2,
    loop: 20,
}
