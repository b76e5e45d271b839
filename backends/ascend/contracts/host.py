"""Contracts of what a static graph may depend on (SPC571, SPC573): no numbers of the host, no constant draw."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from specc.backends.ascend.contracts.context import Context, words
from specc.ir.edit import modules
from specc.ir.op import info
from specc.ir.ranges.calls import call_of, value

_READS = words("item _local_scalar_dense tolist cpu numpy is_nonzero __bool__ __int__ __index__")
_FILLED = words("zeros zeros_like new_zeros full full_like new_full ones ones_like scalar_tensor fill")
_KEEP = words("view reshape expand expand_as unsqueeze squeeze to clone contiguous repeat")
UNIFORM = "uniform"


def check_host(ctx: Context) -> None:
    """SPC571: reads of tensors by the host, and inputs that are numbers or have sizes only known at run time."""
    for module in modules(ctx.module):
        for node in module.graph.nodes:
            if node.op == "placeholder" and not ctx.is_program:
                _input(node, ctx)
            call = call_of(node)
            if call is not None and call.name in _READS:
                ctx.refuse(
                    "SPC571",
                    node,
                    f"{call.name} makes the host wait for the device and its value a part of the graph",
                    "keep the value in a tensor: torch.where, gather and masks instead of branches and slices",
                )
            _constant_draw(node, ctx)


def _input(node: Node, ctx: Context) -> None:
    held = value(node)
    if isinstance(held, (int, torch.SymInt)) and not isinstance(held, bool):
        message = "it is a number of the host: the graph is compiled anew for every value"
        ctx.refuse("SPC571", node, message, "pass it as a tensor")
    elif isinstance(held, torch.Tensor) and any(isinstance(size, torch.SymInt) for size in held.shape):
        message = "a size is only known at run time, so there is no static graph"
        ctx.refuse("SPC571", node, message, "build one graph per bucket of sizes, and pad")


def _constant_draw(node: Node, ctx: Context) -> None:
    """SPC573: an op that decides by a uniform number gets a constant."""
    declaration = info(node.target)
    if declaration is None:
        return
    names = [argument.name for argument in declaration.overload._schema.arguments]
    if UNIFORM not in names:
        return
    place = names.index(UNIFORM)
    held = node.kwargs.get(UNIFORM, node.args[place] if place < len(node.args) else None)
    if _is_constant(held):
        ctx.refuse(
            "SPC573",
            node,
            "its uniform number is a constant: at 0 every draft is accepted, whatever its probability",
            "pass uniform numbers that were drawn for this row and position",
        )


def _is_constant(item: Any) -> bool:
    while isinstance(item, Node):
        call = call_of(item)
        if call is None:
            return False
        if call.name in _FILLED:
            return True
        if call.name not in _KEEP:
            return False
        item = call.first
    return item is not None
