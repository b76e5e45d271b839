"""Contracts of attention masks (SPC510 to SPC515): dtype, what a one means, shape, memory layout."""

from __future__ import annotations

import torch
from torch.fx import Node

from specc.backends.ascend.contracts.calls import NpuCall, fake_tensor
from specc.backends.ascend.contracts.context import Context, sizes, static
from specc.backends.ascend.contracts.geometry import Attention, attention_of
from specc.backends.ascend.contracts.polarity import read_mask

MASK_TYPES = (torch.bool, torch.int8, torch.uint8)
LONGEST_BOOL = 512
FULL_MASK_MODES = (0, 1)


def check_mask(attention: Attention, ctx: Context) -> None:
    """The mask of a fused attention call. What a wrong dtype or mode implies is not reported again."""
    mask = attention.mask
    fake = fake_tensor(mask)
    if not isinstance(mask, Node) or fake is None:
        return
    _dtype(attention, fake, ctx)
    if attention.sparse_mode in FULL_MASK_MODES:
        _shape(attention, fake, ctx)
    if not ctx.refused(attention.node, "SPC514") and not _contiguous(fake):
        ctx.refuse(
            "SPC515",
            attention.node,
            f"the mask `{mask.name}` is not contiguous (strides {tuple(fake.stride())}); the op reads it as if it were",
            f"pass `{mask.name}.contiguous()`, or make the mask in its full size",
        )
    if not ctx.refused(attention.node, "SPC510"):
        check_meaning(mask, attention.node, ctx)


def _dtype(attention: Attention, mask: torch.Tensor, ctx: Context) -> None:
    if mask.dtype not in MASK_TYPES:
        ctx.refuse(
            "SPC510",
            attention.node,
            f"the mask is {mask.dtype}; the op takes bool, int8 or uint8, and no additive masks",
            "make it int8: 1 where a key is masked out, 0 where it is seen",
        )
        return
    keys = None if attention.keys is None else static(attention.keys)
    if mask.dtype == torch.bool and attention.rows == 1 and (keys is None or keys > LONGEST_BOOL):
        ctx.refuse(
            "SPC511",
            attention.node,
            f"a bool mask of one query row over {'unknown many' if keys is None else keys} keys: the op was seen to "
            f"ignore it past key {LONGEST_BOOL}, without an error",
            "pass the mask as int8 (`mask.to(torch.int8)`)",
        )


def _shape(attention: Attention, mask: torch.Tensor, ctx: Context) -> None:
    """(B, 1, Q, KV): one mask for all heads, one row per query."""
    batch, rows, keys = attention.batch, attention.rows, attention.keys
    if batch is None or rows is None:
        return  # packed layouts: the mask's size depends on the lengths
    wanted = f"[{sizes(torch.empty((batch, 1, rows, keys or 0), device='meta'))[1:-1]}]" if keys else "(B, 1, Q, KV)"
    help = f"make it {wanted}: the dim of the heads is 1, the rows are the queries and the columns all keys"
    if mask.dim() != 4:
        ctx.refuse(
            "SPC514", attention.node, f"the mask has {mask.dim()} dims, {sizes(mask)}; the op wants {wanted}", help
        )
    elif mask.shape[1] != 1:
        message = f"the mask {sizes(mask)} has {mask.shape[1]} in the dim of the heads, which must be 1"
        ctx.refuse("SPC514", attention.node, message, help)
    elif mask.shape[0] not in (batch, 1) or mask.shape[2] != rows or (keys is not None and mask.shape[3] != keys):
        ctx.refuse("SPC514", attention.node, f"the mask is {sizes(mask)}, the op wants {wanted}", help)


def _contiguous(mask: torch.Tensor) -> bool:
    return mask.is_contiguous()


def check_meaning(mask: Node, node: Node, ctx: Context) -> None:
    """SPC512 and SPC513: a one masks a key out, and that is proved."""
    reading = read_mask(mask, ctx)
    if reading.known == "hidden" or (reading.known == "constant" and reading.bit == 0):
        return
    source = "" if reading.at is None else f", because of `{reading.at.name}`"
    if reading.known == "unknown":
        ctx.refuse(
            "SPC513",
            node,
            f"what a 1 in the mask `{mask.name}` means is not proved{source}",
            "make the mask from comparisons of positions, or declare it: masks={'"
            f"{reading.at.name if reading.at is not None else mask.name}': 'hidden'}} (1 masks a key out) or 'visible'",
        )
        return
    what = {
        "visible": f"a 1 in the mask `{mask.name}` means that a key is seen; for the op it means masked out",
        "constant": f"the mask `{mask.name}` is 1 everywhere, which masks out every key",
        "mixed": f"parts of the mask `{mask.name}` mean opposite things{source}",
    }[reading.known]
    negated = f"pass `torch.logical_not({mask.name})`"
    ctx.refuse("SPC512", node, what, "negate the part whose ones show keys" if reading.known == "mixed" else negated)


def check_own_mask(call: NpuCall, ctx: Context) -> None:
    """Our ops around masks: `attention_mask` takes a tree mask whose ones are seen, `masked_attention` a mask."""
    if call.name == "masked_attention" and isinstance(call.get("atten_mask"), Node):
        mask = fake_tensor(call.get("atten_mask"))
        if mask is not None and mask.dtype not in MASK_TYPES:
            ctx.refuse("SPC510", call.node, f"the mask is {mask.dtype}", "make it int8: 1 where a key is masked out")
            return
        if mask is not None and (mask.dim() != 4 or mask.shape[1] != 1):
            ctx.refuse("SPC514", call.node, f"the mask is {sizes(mask)}, not (B, 1, Q, KV)", "make it [B, 1, Q, KV]")
        check_meaning(call.get("atten_mask"), call.node, ctx)
    if call.name == "attention_mask" and isinstance(call.get("mask"), Node):
        tree = call.get("mask")
        reading = read_mask(tree, ctx)
        if reading.known in ("visible", "constant"):
            return
        if reading.known == "unknown":
            message = f"what a 1 in the tree mask `{tree.name}` means is not proved"
            help = f"declare it: masks={{'{tree.name}': 'visible'}}"
            ctx.refuse("SPC513", call.node, message, help)
        else:
            message = f"a 1 in the tree mask `{tree.name}` must mean that a node sees the other"
            ctx.refuse("SPC512", call.node, message, f"pass `torch.logical_not({tree.name})`")


def check_masks(call: NpuCall, ctx: Context) -> None:
    """Entry of this family."""
    attention = attention_of(call)
    if isinstance(attention, Attention):
        check_mask(attention, ctx)
    elif call.namespace == "specc":
        check_own_mask(call, ctx)
