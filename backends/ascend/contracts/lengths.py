"""Contracts of sequence lengths (SPC530 to SPC532): tensors that a captured graph reads anew, inside the cache."""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from specc.backends.ascend.contracts.calls import NpuCall, fake_tensor
from specc.backends.ascend.contracts.context import Context, at_most, static
from specc.backends.ascend.contracts.geometry import Attention, attention_of
from specc.ir.ranges.bounds import integer, of_size
from specc.ir.ranges.interval import Interval

OF_KEYS = ("actual_seq_lengths_kv", "actual_seq_kvlen")
OF_QUERIES = ("actual_seq_lengths", "actual_seq_qlen")


def check_lengths(call: NpuCall, ctx: Context) -> None:
    """Entry of this family."""
    attention = attention_of(call)
    if not isinstance(attention, Attention):
        return
    keys, queries = call.get(*OF_KEYS), call.get(*OF_QUERIES)
    if _on_host(keys):
        ctx.refuse(
            "SPC530",
            call.node,
            f"the lengths of the keys are numbers of the host ({_text(keys)}): a new length compiles the graph anew or "
            "rebinds it, and a captured graph goes on with the old ones",
            "pass an int64 tensor [B] to torchair's form of the op (torch.ops.air.…), or leave them out and mask",
        )
    elif keys is not None:
        _range(attention, keys, ctx)
    if _on_host(queries) and not _is_constant(queries, attention):
        ctx.refuse(
            "SPC531",
            call.node,
            f"the lengths of the queries are numbers of the host ({_text(queries)}): a replayed graph keeps those of "
            "its capture when fewer rows are live",
            "pass a tensor, or give every round the same rows and mask the padding",
        )


def _on_host(lengths: Any) -> bool:
    """A list of numbers, or a number that a tensor was turned into."""
    if lengths is None:
        return False
    if isinstance(lengths, (list, tuple)):
        return bool(lengths)
    return fake_tensor(lengths) is None


def _is_constant(lengths: Any, attention: Attention) -> bool:
    """Every sequence has all the rows that the query's shape says: nothing can go stale."""
    return isinstance(lengths, (list, tuple)) and all(
        not isinstance(item, Node) and item == attention.rows for item in lengths
    )


def _text(lengths: Any) -> str:
    items = lengths if isinstance(lengths, (list, tuple)) else [lengths]
    return ", ".join(f"`{item.name}`" if isinstance(item, Node) else str(item) for item in items[:4])


def _range(attention: Attention, lengths: Any, ctx: Context) -> None:
    if attention.keys is None or (attention.is_paged and static(attention.keys) is None):
        return
    found, legal = ctx.ranges.of(lengths), Interval(integer(1), of_size(attention.keys))
    held = Interval(found.low, at_most(found.high, ctx.facts))
    if not held.within(legal):
        ctx.refuse(
            "SPC532",
            attention.node,
            f"a length may be {held}, legal are {legal}: the op reads what lies behind the keys",
            "declare the range of the lengths, or clamp them",
        )
