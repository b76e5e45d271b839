"""A layer's rotary embeddings, its new cache rows and its attention become one op, which one launch can do.

    q = rope(q0, cos, sin)
    append_rows_(K, rope(k0, cos, sin), length, count)      ->      o = rope_attention_(q0, k0, v, cos, sin, K, V,
    append_rows_(V, v, length, count)                                                   length, count, mask, …)
    o = tree_attention_cached(q, K, V, length, mask, …)

Caches in pages alike: append_pages_ and tree_attention_paged become rope_attention_paged_, which has their table too.
Found in the graphs when code is generated, since only this backend has a kernel that does it all. The writes move down
to the attention, the reads of q0, k0 and v too: nothing between may notice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from specc.backends.triton.regions.effects import root, touched
from specc.ir import ops
from specc.ir.clone import clone
from specc.ir.edit import Editor, finish, modules
from specc.ir.effects import flat_nodes
from specc.ir.prune import prune
from specc.ir.scope import named_arguments

ORIGIN = "fuse-attention-step"
STEPS: Mapping[object, torch._ops.OpOverload] = {
    ops.causal_attention_cached: ops.rope_attention_,
    ops.tree_attention_cached: ops.rope_attention_,
    ops.causal_attention_paged: ops.rope_attention_paged_,
    ops.tree_attention_paged: ops.rope_attention_paged_,
}
"""Attentions, and the op that has their rotations and new rows too."""
KERNEL_TYPES = (torch.float32, torch.bfloat16, torch.float16)
MOST_TOKENS = 64
"""Tokens of a decoding step, at most: above, a launch in front is a small share, and products are what takes time."""


class _Refused(Exception):
    """An attention keeps its ops; the message says why."""


@dataclass(frozen=True, slots=True)
class _Found:
    """The nodes that one op stands for, and its arguments."""

    inside: tuple[Node, ...]
    arguments: tuple[Any, ...]


def attention_steps(module: GraphModule) -> tuple[GraphModule, list[str]]:
    """A copy of a step graph with one op for an attention, its rotations and new rows, and why others have none."""
    made = clone(module)
    notes: list[str] = []
    for block in list(modules(made)):
        for node in [item for item in block.graph.nodes if item.target in STEPS]:
            try:
                found = _found(node)
            except _Refused as reason:
                notes.append(f"{node.name} keeps its rotations and new rows apart: {reason}")
                continue
            editor = Editor(block, ORIGIN)
            with editor.before(node, *found.inside):
                editor.replace(node, editor.call(STEPS[node.target], *found.arguments))
            for inner in (node, *reversed(found.inside)):
                block.graph.erase_node(inner)
    prune(made)
    return finish(made), notes


def _found(node: Node) -> _Found:
    """What can be done with the attention `node`. Raises _Refused."""
    given = named_arguments(node)
    q, length, table = given["q"], given["length"], given.get("block_table")
    kind = "cache" if table is None else "pool"
    caches = given[f"k_{kind}"], given[f"v_{kind}"]
    pages = () if table is None else (table,)
    if given["window"] > 0:
        raise _Refused("it has a window")
    if root(caches[0]) is root(caches[1]):
        raise _Refused("keys and values lie in one tensor")
    turned = _rotation(q, node)
    appends = [_append(cache, node) for cache in caches]
    rows = [named_arguments(item) for item in appends]
    turned_k = _rotation(rows[0]["rows"], appends[0])
    for one in rows:
        if one["start"] is not length:
            raise _Refused("new rows go elsewhere than behind the committed ones")
        if one.get("block_table") is not table:
            raise _Refused("new rows go to pages of another table")
        if one.get("count") is not rows[0].get("count"):
            raise _Refused("keys and values keep different numbers of rows")
    if turned["cos"] is not turned_k["cos"] or turned["sin"] is not turned_k["sin"]:
        raise _Refused("queries and keys are rotated by different angles")
    count, mask = rows[0].get("count"), given.get("mask")
    operands = (turned["x"], turned_k["x"], rows[1]["rows"], turned["cos"], turned["sin"])
    _sizes(node, operands, caches, mask, given.get("offset", 0))
    inside = (*_in_order(q, rows[0]["rows"], *appends),)
    _nothing_between(node, inside, (*operands, length, count, mask, *pages), caches)
    _nothing_in_front(node, inside, (length, *caches), table)
    scale, fused = given["scale"], given.get("fused", True)
    return _Found(inside, (*operands, *caches, *pages, length, count, mask, scale, fused))


def _rotation(node: Any, user: Node) -> dict[str, Any]:
    """The arguments of the rotation `node`, which only `user` may read."""
    if not isinstance(node, Node) or node.target is not ops.rope:
        raise _Refused(f"`{node}` is not rotated as a whole")
    if set(node.users) != {user}:
        raise _Refused(f"`{node}` is read elsewhere")
    return named_arguments(node)


def _append(cache: Any, node: Node) -> Node:
    """The last write to a cache before the attention `node`, if it appends rows."""
    for before in reversed(_earlier(node)):
        if root(cache) in touched(before).writes:
            if before.target not in (ops.append_rows_, ops.append_pages_) or before.args[0] is not cache:
                break
            return before
    raise _Refused(f"no new rows are appended to `{cache}`")


def _earlier(node: Node) -> list[Node]:
    """The calls before a node, in order."""
    nodes = list(node.graph.nodes)
    return [item for item in nodes[: nodes.index(node)] if item.op == "call_function"]


def _in_order(*nodes: Node) -> list[Node]:
    place = {item: number for number, item in enumerate(nodes[0].graph.nodes)}
    return sorted(nodes, key=lambda item: place[item])


def _sizes(node: Node, operands: tuple[Any, ...], caches: tuple[Any, ...], mask: Any, offset: Any) -> None:
    """Raises _Refused for shapes and dtypes that the kernel does not have."""
    q, k, v, cos = (item.meta["val"] for item in operands[:4])
    if not isinstance(q.shape[1], int) or q.shape[1] > MOST_TOKENS:
        raise _Refused(f"more than {MOST_TOKENS} tokens, or any number of them")
    tokens, dim = q.shape[1], q.shape[-1]
    if offset != 0 or (mask is not None and mask.meta["val"].shape[-1] != tokens):
        raise _Refused("rows of earlier levels lie in the cache too")
    if k.shape != v.shape or k.shape[1] != tokens or k.shape[-1] != dim or cos.shape[-1] * 2 != dim:
        raise _Refused("queries, keys and values differ in their number or length")
    if {x.dtype for x in (q, k, v, cos, *(cache.meta["val"] for cache in caches))} != {q.dtype}:
        raise _Refused("queries, keys, values, angles and caches differ in their dtype")
    if q.dtype not in KERNEL_TYPES:
        raise _Refused(f"no kernel takes {q.dtype}")


def _nothing_between(node: Node, inside: tuple[Node, ...], operands: tuple[Any, ...], caches: tuple[Any, ...]) -> None:
    """Raises _Refused where another node, from the first of `inside` on, could tell that they move to `node`."""
    read = {root(item) for item in flat_nodes(operands)}
    held = {root(cache) for cache in caches}
    first = inside[0]
    started = False
    for item in _earlier(node):
        started = started or item is first
        if not started or item in inside:
            continue
        effects = touched(item)
        if effects.writes & (read | held) or (effects.reads & held and item.users):
            raise _Refused(f"`{item.name}` touches what they read or write")
    if read & held:
        raise _Refused("a new row is read from a cache")


def _nothing_in_front(node: Node, inside: tuple[Node, ...], early: tuple[Any, ...], table: Any) -> None:
    """Raises _Refused where a launch in front may make what the kernel reads before that one is done.

    Behind a product that waits before it lets the next launch start, all in front of it is done. One with a residual or
    gates may let it start earlier. With a `table` of pages there has to be one: what takes pages is in front of a loop.
    """
    held = {root(item) for item in (*early, *flat_nodes(table))}
    for item in reversed(_earlier(node)):
        if item.target is ops.fused_linear:
            given = named_arguments(item)
            if given["residual"] is None and given["activation"] == "none":
                return
        if item not in inside and (item in held or touched(item).writes & held):
            raise _Refused(f"`{item.name}` makes what is read early in front of them")
    if table is not None:
        raise _Refused("no product stands between them and what takes pages")
