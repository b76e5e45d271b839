"""Contracts of writes into caches (SPC540 to SPC546): rows in range, no row twice, and an update that stays in place.

A tensor updates in place only if its graph input has two consumers: one scatter and the copy_ of the scatter's result.
Another reader, or a second scatter, makes the compiler keep the old cache, which costs a move of the whole cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Node

from specc.backends.ascend.contracts.calls import NpuCall, fake_tensor, npu_call, npu_calls
from specc.backends.ascend.contracts.context import Context, sizes, words
from specc.backends.ascend.contracts.distinct import distinct_rows
from specc.ir.dims import BATCH, CHUNK
from specc.ir.edit import is_impure, is_loop, loop_parts, modules
from specc.ir.ranges import interval as iv
from specc.ir.ranges.bounds import ZERO, Bound, integer, of_size
from specc.ir.ranges.calls import call_of
from specc.ir.ranges.interval import Interval

RANGES = ("npu_scatter_update", "scatter_update", "scatter_update_")
PLACES = ("npu_scatter_nd_update", "npu_scatter_nd_update_")
PAGES = ("npu_scatter_pa_kv_cache", "npu_scatter_pa_kv_cache_functional")
SCATTERS = (*RANGES, *PLACES, *PAGES)
RECURRENT = ("npu_recurrent_chain", "npu_recurrent_gated_delta_rule_functional")
_VIEWS = words("select slice narrow view reshape unsqueeze squeeze permute transpose getitem unbind")
_DENSE = words("slice_scatter select_scatter index_put index_copy as_strided_scatter scatter")
_SHAPES = words("sym_size size sym_numel")
BUFFER_DIMS = 3
TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.int32, torch.int8)


def check_scatter(call: NpuCall, ctx: Context) -> None:
    """Rows, duplicates and modes of one write."""
    if call.name in RANGES:
        _block(call, ctx)
    elif call.name in PLACES:
        _places(call, ctx)
    elif call.name in PAGES:
        _pages(call, ctx)


def _block(call: NpuCall, ctx: Context) -> None:
    """`updates` go to rows start[b], start[b] + 1, … along `axis`."""
    cache, start, rows = call.get("input", "cache"), call.get("indices", "start"), call.get("updates", "rows")
    table, block = fake_tensor(cache), fake_tensor(rows)
    if table is None or block is None:
        return
    if table.dtype not in TYPES:
        help = "keep it in int32 or in a floating-point dtype, or write a dense copy by torch.where"
        ctx.refuse("SPC546", call.node, f"a scatter into {table.dtype}, which the op does not have", help)
    axis = int(call.get("axis"))
    if table.dim() != block.dim() or not -table.dim() <= axis < table.dim() or axis in (0, -table.dim()):
        message = f"rows {sizes(block)} along axis {axis} do not fit a cache {sizes(table)}, whose dim 0 are sequences"
        ctx.refuse("SPC540", call.node, message, "give rows and cache the same dims, and an axis behind the first")
        return
    count = _row_count(block.shape[axis], ctx)
    legal = Interval(ZERO, of_size(table.shape[axis]) - count)
    _in_range(call, start, legal, f"{count} rows from", ctx)


def _row_count(size: int, ctx: Context) -> Bound:
    """How many rows a block has at most: a program's prompts have T rows, at most `prefill_chunk`, and some more."""
    chunk = ctx.facts.attributes.get("prefill_chunk")
    return integer(size - CHUNK + chunk) if chunk and 0 <= size - CHUNK < BATCH else of_size(size)


def _in_range(call: NpuCall, index: Any, legal: Interval, what: str, ctx: Context) -> None:
    held = ctx.ranges.of(index)
    if not held.within(legal):
        name = f"`{index.name}`" if isinstance(index, Node) else str(index)
        ctx.refuse(
            "SPC540",
            call.node,
            f"it writes {what} {name}, which may be {held}; legal are {legal}, and the op does not check",
            "declare the range of the input it comes from, clamp it, or give the cache more rows",
        )


def _places(call: NpuCall, ctx: Context) -> None:
    """Each row of `indices` [.., K] is a place in the first K dims."""
    table, index = fake_tensor(call.get("input")), fake_tensor(call.get("indices"))
    if table is None or index is None or index.dim() == 0:
        return
    depth = int(index.shape[-1])
    parts = _components(call.get("indices"), depth)
    for dim, part in enumerate(parts):
        _in_range(call, part, iv.up_to(of_size(table.shape[dim])), "at", ctx)
    _no_duplicates(call, call.get("indices"), "places", ctx)


def _components(index: Node, depth: int) -> list[Any]:
    """The operands that hold the place along each dim, where the graph stacks them; else the whole for each dim."""
    call = call_of(index)
    if (
        call is not None
        and call.name in ("stack", "cat")
        and call.arg(1, "dim", default=0) in (-1, len(_shape(index)) - 1)
    ):
        parts = list(call.arg(0, "tensors"))
        if len(parts) == depth:
            return parts
    return [index] * depth


def _shape(node: Node) -> tuple[int, ...]:
    fake = fake_tensor(node)
    return tuple(fake.shape) if fake is not None else ()


def _pages(call: NpuCall, ctx: Context) -> None:
    pages = fake_tensor(call.get("key_cache"))
    mode = call.get("cache_mode")
    if mode != "Norm":
        told = "" if call.given("cache_mode") else ", its default"
        message = f"cache_mode is {mode!r}{told}: the rows are written in the NZ layout, and ND pages hold garbage"
        ctx.refuse("SPC542", call.node, message, 'pass cache_mode="Norm"')
    if pages is not None and pages.dim() >= 2:
        legal = iv.up_to(of_size(pages.shape[0]) * of_size(pages.shape[1]))
        _in_range(call, call.get("slot_mapping"), legal, "at slots", ctx)
    _no_duplicates(call, call.get("slot_mapping"), "slots", ctx)


def _no_duplicates(call: NpuCall, index: Any, what: str, ctx: Context) -> None:
    if not distinct_rows(index, ctx):
        ctx.refuse(
            "SPC541",
            call.node,
            f"two rows may go to the same {what[:-1]}: nothing shows that `{getattr(index, 'name', index)}` has no row "
            "twice, and which one stays is undefined",
            f"write padding rows to {what} of their own and declare: unique={{'{getattr(index, 'name', 'index')}'}}",
        )


def check_in_place(ctx: Context) -> None:
    """SPC543 and SPC544 for every cache that is an input, SPC545 for copies into a part of one."""
    written: dict[Node, list[Node]] = {}
    for call in npu_calls(ctx.module):
        for cache in _caches(call):
            written.setdefault(cache, []).append(call.node)
            _chained(call, cache, ctx)
    for cache, scatters in written.items():
        if cache.op == "placeholder":
            for later in scatters[1:]:
                _twice(later, cache, scatters[0], ctx)
            for user in _other_readers(cache):
                _reads(user, cache, scatters[0], ctx)
            _readers_outside(cache, written, ctx)
    for item in modules(ctx.module):
        for node in item.graph.nodes:
            _dense_copy(node, ctx)


def _readers_outside(cache: Node, written: dict[Node, list[Node]], ctx: Context) -> None:
    """A loop's placeholder stands for a layer of a slot: who else takes that slot?"""
    inside = cache
    while inside in ctx.ranges.outer:
        slot = ctx.ranges.outer[inside]
        for user in _takers(slot):
            if user is inside or (user.op == "placeholder" and not user.users):
                continue
            if user in written:
                _twice(written[user][0], slot, written[cache][0], ctx)
            elif user.op == "placeholder":
                _reads(next(iter(user.users)), slot, written[cache][0], ctx)
            elif not _is_shape(user):
                _reads(user, slot, written[cache][0], ctx)
        inside = slot


def _takers(slot: Node) -> Iterator[Node]:
    """The users of a slot; for a loop the placeholders that stand for it inside."""
    for user in slot.users:
        if is_loop(user):
            parts = loop_parts(user)
            pairs = zip(parts.operands, parts.inside, strict=True)
            yield from (inside for operand, inside in pairs if operand is slot)
        else:
            yield user


def _is_shape(node: Node) -> bool:
    call = call_of(node)
    return call is not None and call.name in _SHAPES


def _caches(call: NpuCall) -> Iterator[Node]:
    if call.name in SCATTERS:
        for name in ("cache", "input", "key_cache", "value_cache"):
            if isinstance(call.get(name), Node):
                yield call.get(name)
    if call.name in RECURRENT:
        pool = call.get("state", "pool")
        if isinstance(pool, Node):
            yield pool


def _twice(node: Node, cache: Node, first: Node, ctx: Context) -> None:
    ctx.refuse(
        "SPC544",
        node,
        f"`{cache.name}` is already written by `{first.name}`: two scatters leave a copy of the whole cache",
        "join the rows first (`joined_rows`, cat) and write them by one scatter",
    )


def _chained(call: NpuCall, cache: Node, ctx: Context) -> None:
    before = npu_call(cache) or (npu_call(cache.args[0]) if _is_item(cache) else None)  # type: ignore[arg-type]
    if before is not None and before.name in (*SCATTERS, *RECURRENT):
        _twice(call.node, next(_caches(before), cache), before.node, ctx)


def _is_item(node: Node) -> bool:
    call = call_of(node)
    return call is not None and call.name == "getitem" and isinstance(node.args[0], Node)


def _other_readers(cache: Node) -> Iterator[Node]:
    """Who reads the cache beside the scatters and the copy back into it."""
    for user in cache.users:
        call, own = call_of(user), npu_call(user)
        copied_back = call is not None and call.name == "copy" and user.args[0] is cache
        scattered = own is not None and cache in _caches(own)
        if not (copied_back or _is_shape(user) or scattered or _is_written_part(user) or _is_dead(user)):
            yield user


def _is_dead(node: Node) -> bool:
    """Nobody takes its result: torch.export leaves a module behind that only looks at its inputs' sizes."""
    return not node.users and node.op not in ("output", "placeholder") and (
        node.op == "call_module" or not is_impure(node)
    )  # fmt: skip


def _is_written_part(node: Node) -> bool:
    """A part of the cache that is only copied into: SPC545 says so."""
    calls = [call_of(user) for user in node.users]
    copies = [call is not None and call.name == "copy" and call.args[0] is node for call in calls]
    return _is_part(node) and bool(copies) and all(copies)


def _reads(user: Node, cache: Node, scatter: Node, ctx: Context) -> None:
    if user.op == "output":
        message = f"the cache `{cache.name}` is returned as it was, beside what `{scatter.name}` makes of it"
    else:
        message = f"it reads the cache `{cache.name}` beside `{scatter.name}`, so the cache can't be updated in place"
    node = scatter if user.op == "output" else user
    help = f"read the result of `{scatter.name}` instead, or gather from rows that are kept apart from the cache"
    ctx.refuse("SPC543", node, message, help)


def _dense_copy(node: Node, ctx: Context) -> None:
    """`cache[:, a:b].copy_(rows)`, also in its functional form: the whole buffer is copied."""
    call = call_of(node)
    if call is None:
        return
    target = None
    if call.name == "copy" and call.in_place:
        target = call.first
        part = isinstance(target, Node) and _is_part(target)
        if not part and not is_dense_part(call.args[1], target):
            return
    elif call.name == "setitem":
        target = call.args[0]
    fake = fake_tensor(target)
    if isinstance(target, Node) and fake is not None and fake.dim() >= BUFFER_DIMS and fake.is_floating_point():
        ctx.refuse(
            "SPC545",
            node,
            f"it copies into a part of `{_base(target).name}`, which becomes a copy of the whole buffer",
            "write the rows by scatter_update, and copy_ its result into the buffer",
        )


def is_dense_part(source: Any, target: Any) -> bool:
    """The functional form of a copy into a part: `source` is `target` with some rows replaced."""
    call = call_of(source) if isinstance(source, Node) else None
    return call is not None and call.name in _DENSE and call.first is target


def _is_part(node: Node) -> bool:
    call = call_of(node)
    return (
        call is not None and call.name in ("select", "slice", "narrow", "getitem") and _base(node).op == "placeholder"
    )


def _base(node: Node) -> Node:
    while True:
        call = call_of(node)
        if call is None or call.name not in _VIEWS or not isinstance(call.first, Node):
            return node
        node = call.first
