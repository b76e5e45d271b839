"""Contracts of row numbers (SPC560, SPC561): outside the table they are undefined, also where eager wraps."""

from __future__ import annotations

from specc.backends.ascend.contracts.caches import SCATTERS
from specc.backends.ascend.contracts.calls import npu_call
from specc.backends.ascend.contracts.context import Context
from specc.ir.ranges.bounds import ZERO
from specc.ir.ranges.calls import dtype_of
from specc.ir.ranges.explain import origin
from specc.ir.ranges.indices import IndexUse, all_index_uses, interval_of, is_proved
from specc.ir.ranges.interval import EVERYTHING, limits


def check_indices(ctx: Context) -> None:
    """Every index tensor of gather, index_select, index, embedding, scatter, … in the module."""
    for use in all_index_uses(ctx.module):
        own = npu_call(use.node)
        if use.is_scalar or (own is not None and own.name in SCATTERS):
            continue  # constants become slices; the scatters of caches have contracts of their own
        if not is_proved(use, ctx.ranges):
            _unproved(use, ctx)


def _unproved(use: IndexUse, ctx: Context) -> None:
    held = interval_of(use, ctx.ranges)
    chain = [f"it comes from {line}" for line in origin(use.operand, ctx.ranges, use.legal)]
    name, table = use.operand.name, use.table.name
    unknown = held in (EVERYTHING, limits(dtype_of(use.operand)))
    if unknown or not held.high <= use.legal.high:
        ctx.refuse(
            "SPC561",
            use.node,
            f"index `{name}` of {use.op} "
            + ("is not bounded by anything" if unknown else f"may be {held}")
            + f", and `{table}` has rows {use.legal}",
            "declare the range of the input it comes from, or clamp it",
            *chain,
        )
    elif not held.low >= ZERO:
        ctx.refuse(
            "SPC560",
            use.node,
            f"index `{name}` of {use.op} may be {held}: the NPU reads or writes foreign memory, traps, or gives zeros",
            "run rewrite-negative-indices on the graph, or clamp the index and mask the result",
            *chain,
        )
