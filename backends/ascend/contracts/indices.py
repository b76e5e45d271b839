"""Contracts of row numbers (SPC541, SPC560 to SPC562): outside the table they are undefined, also where eager wraps."""

from __future__ import annotations

import torch

from specc.backends.ascend.contracts.caches import SCATTERS
from specc.backends.ascend.contracts.calls import npu_call
from specc.backends.ascend.contracts.context import Context
from specc.backends.ascend.contracts.distinct import distinct_along
from specc.ir.edit import modules
from specc.ir.ranges.bounds import ZERO
from specc.ir.ranges.calls import Call, call_of, dtype_of, value
from specc.ir.ranges.explain import origin
from specc.ir.ranges.indices import IndexUse, all_index_uses, interval_of, is_proved
from specc.ir.ranges.interval import EVERYTHING, limits


def check_writes(ctx: Context) -> None:
    """SPC541 for torch.scatter, SPC562 for padding that GE leaves undefined."""
    for module in modules(ctx.module):
        for node in module.graph.nodes:
            call = call_of(node)
            if call is not None and call.name == "scatter":
                _scattered(call, ctx)
            elif call is not None and call.name == "constant_pad_nd":
                _padded(call, ctx)


def _scattered(call: Call, ctx: Context) -> None:
    """Rows with the same index: which one stays is undefined, but for a single value."""
    index, dim = call.arg(2, "index"), call.arg(1, "dim")
    written = value(call.arg(3, "src", "value"))
    if not isinstance(written, torch.Tensor) or not isinstance(dim, int) or distinct_along(index, dim, ctx):
        return
    ctx.refuse(
        "SPC541",
        call.node,
        f"two elements may go to the same place: nothing shows that `{index.name}` has none twice along dim {dim}",
        f"count with an arange along that dim, or declare: unique={{'{index.name}'}}",
    )


def _padded(call: Call, ctx: Context) -> None:
    pads, fill = call.arg(1, "pad"), call.kwargs.get("value", call.args[2] if len(call.args) > 2 else 0)
    dtype = dtype_of(call.first)
    if isinstance(pads, (list, tuple)) and any(isinstance(pad, int) and pad < 0 for pad in pads):
        ctx.refuse("SPC562", call.node, f"pads {list(pads)} cut rows off", "use a slice (torch.narrow)")
    elif isinstance(fill, float) and dtype is not None and not dtype.is_floating_point:
        message = f"{dtype} padded with the floating-point number {fill}"
        ctx.refuse("SPC562", call.node, message, "pass the number as an integer, or use torch.cat")


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
