"""The head norm of a recurrent layer with its gate."""

from __future__ import annotations

import math

import torch
from torch.fx import Node

from specc.backends.printing.naming import wanted_name
from specc.backends.triton.kernels import head_norm, region_math
from specc.backends.triton.regions.reduce import masked
from specc.backends.triton.regions.values import Block, Unsupported, padded
from specc.backends.triton.regions.writer import Writer
from specc.ir.scope import named_arguments


def gated_norm(w: Writer, node: Node) -> Block:
    """specc.gated_norm: as `kernels.head_norm.normed`, step by step."""
    given, dtype, name = named_arguments(node), node.meta["val"].dtype, wanted_name(node)
    block = w.full(w.block(given["o"]))
    dim, size = len(block.shape) - 1, block.shape[-1]
    if dim not in block.axes or dtype == torch.float64:
        raise Unsupported("a norm over one element, or of float64")
    axes, shape = tuple(axis for axis in block.axes if axis != dim), block.shape[:-1]
    lanes = [padded(shape[axis]) for axis in axes]
    line = f"tl.reshape({masked(w, block, dim, '0.0')}, [{math.prod(lanes)}, {padded(size)}])"
    text = f"{w.helper(head_norm.square_sums)}({line})"
    text = f"tl.reshape({text}, {lanes})" if lanes else f"tl.sum({text}, 0)"
    sums = w.let(f"{name}_sum", text, torch.float32, shape, axes, block.lead)
    mean = f"tl.div_rn({sums.text}, tl.full([], {float(size)}, tl.float32)) + {given['eps']!r}"
    scale = w.let(f"{name}_scale", f"tl.rsqrt({mean})", torch.float32, shape, axes, block.lead)
    weight, gate = w.block(given["weight"]), w.block(given["gate"])
    text = f"{block.text} * {w.spread_text(scale.text, axes, block.axes)}"
    text = f"{text} * {w.spread(weight, block.shape, block.axes)}"
    normed = w.let("head_norm", w.rounded(text, dtype), dtype, block.shape, block.axes, block.lead)
    passed = w.rounded(f"{w.helper(region_math.silu)}({w.spread(gate, block.shape, block.axes)})", dtype)
    return w.let(name, w.rounded(f"{normed.text} * {passed}", dtype), dtype, block.shape, block.axes, block.lead)
