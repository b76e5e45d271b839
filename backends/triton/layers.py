"""Row moves of all layers become one launch: they leave a loop over layers for ops that take the stacked caches.

    for layer: commit_path_(K[layer], path, n, count)      ->    commit_path_layers_([K, V], path, n, count)
    for layer: commit_path_(V[layer], path, n, count)

Layers lie apart in memory, so a write of all layers before the loop equals one in each iteration where nothing of an
iteration touches the same tensor before it. What is left of the loop stays; an empty loop goes. Made when code is
generated, since only this backend has kernels for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from specc.ir import ops
from specc.ir.clone import clone
from specc.ir.edit import Editor, LoopParts, finish, inherit, is_impure, is_loop, loop_parts, modules
from specc.ir.effects import flat_nodes, is_view, written_arguments
from specc.ir.op import info
from specc.ir.prune import prune
from specc.ir.scope import named_arguments

ORIGIN = "batch-layers"
aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class LayerCall:
    """One op for all layers. `caches` are written, `rows` (as many, or none) read; `rest` are the other arguments.

    All are nodes outside the loop. `inside` are the body's nodes that it stands for.
    """

    target: torch._ops.OpOverload
    caches: tuple[Node, ...]
    rows: tuple[Node, ...]
    rest: tuple[Any, ...]
    inside: tuple[Node, ...]

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Of the call."""
        if self.target is ops.delta_rule_commit_layers_:
            return (*self.caches, *self.rows, *self.rest)
        lists = [list(self.caches), *([list(self.rows)] if self.rows else [])]
        return (*lists, *self.rest)


class _Refused(Exception):
    """An op stays in its loop; the message says why."""


def root(node: Node) -> Node:
    """The tensor that a view lies in."""
    while is_view(node) and isinstance(node.args[0], Node):
        node = node.args[0]
    return node


def _sliced(parts: LoopParts, value: Any) -> Node:
    """The stacked tensor outside that a slice of the body belongs to."""
    if value not in parts.sliced_inside:
        raise _Refused(f"`{value}` is not a layer of a stacked tensor")
    outside = parts.sliced[parts.sliced_inside.index(value)]
    if not isinstance(outside, Node) or not isinstance(outside.meta.get("val"), torch.Tensor):
        raise _Refused(f"the layers of `{value}` are separate tensors")
    return outside


def _shared(parts: LoopParts, value: Any) -> Any:
    """An argument that is the same in every layer: the node outside, or a constant."""
    if not isinstance(value, Node):
        return value
    if value not in parts.invariant_inside:
        raise _Refused(f"`{value}` differs from layer to layer")
    return parts.invariant[parts.invariant_inside.index(value)]


def _commit_path(parts: LoopParts, node: Node) -> LayerCall:
    given = named_arguments(node)
    rest = tuple(_shared(parts, given[name]) for name in ("path", "start", "count", "fast_reorder"))
    return LayerCall(ops.commit_path_layers_, (_sliced(parts, given["cache"]),), (), rest, (node,))


def _commit_pages(parts: LoopParts, node: Node) -> LayerCall:
    given = named_arguments(node)
    rest = tuple(_shared(parts, given[name]) for name in ("block_table", "path", "start", "count", "fast_reorder"))
    return LayerCall(ops.commit_pages_layers_, (_sliced(parts, given["pool"]),), (), rest, (node,))


def _append_rows(parts: LoopParts, node: Node) -> LayerCall:
    given = named_arguments(node)
    rows, path = given["rows"], None
    inside: tuple[Node, ...] = (node,)
    if rows.target is aten.index.Tensor and len(rows.users) == 1:
        source, indices = rows.args
        if len(indices) == 2 and getattr(indices[0], "target", None) is ops.batch_index:
            rows, path, inside = source, _shared(parts, indices[1]), (rows, node)
    rest = (path, _shared(parts, given["start"]), _shared(parts, given.get("count")))
    caches = (_sliced(parts, given["cache"]),)
    return LayerCall(ops.append_path_layers_, caches, (_sliced(parts, rows),), rest, inside)


def _conv_commit(parts: LoopParts, node: Node) -> LayerCall:
    window, made = node.args[:2]
    if not isinstance(made, Node) or made.target is not ops.conv_commit or len(made.users) > 1 or node.users:
        raise _Refused("a copy of something else than a committed window")
    given = named_arguments(made)
    if given["window"] is not window:
        raise _Refused("the window that is written is not the one that is read")
    caches, rows = (_sliced(parts, window),), (_sliced(parts, given["rows"]),)
    rest = tuple(_shared(parts, given[name]) for name in ("path", "count"))
    return LayerCall(ops.conv_commit_layers_, caches, rows, rest, (made, node))


def _delta_rule_commit(parts: LoopParts, node: Node) -> LayerCall:
    given = named_arguments(node)
    rows = tuple(_sliced(parts, given[name]) for name in ("k", "u", "g"))
    rest = tuple(_shared(parts, given[name]) for name in ("path", "count", "form"))
    return LayerCall(ops.delta_rule_commit_layers_, (_sliced(parts, given["state"]),), rows, rest, (node,))


LISTS: Mapping[object, int] = {
    ops.commit_pages_layers_: 1,
    ops.commit_path_layers_: 1,
    ops.append_path_layers_: 2,
    ops.conv_commit_layers_: 2,
}
"""Ops that take several stacked tensors, and how many lists of them."""

FORMS: Mapping[object, Callable[[LoopParts, Node], LayerCall]] = {
    ops.commit_pages_: _commit_pages,
    ops.commit_path_: _commit_path,
    ops.append_rows_: _append_rows,
    ops.delta_rule_commit_: _delta_rule_commit,
    aten.copy_.default: _conv_commit,
}


def batched_loop(node: Node) -> tuple[list[LayerCall], list[str]]:
    """What can be done for all layers before the loop `node`, in order, and why other row ops of its body can't."""
    parts = loop_parts(node)
    if parts.axis != "layer":
        return [], []
    found: dict[Node, LayerCall] = {}
    reasons: dict[Node, str] = {}
    for inner in parts.body.graph.nodes:
        if inner.target in FORMS:
            try:
                found[inner] = FORMS[inner.target](parts, inner)
            except _Refused as reason:
                reasons[inner] = str(reason)
    before = {item for call in found.values() for item in call.inside[:-1]}
    touched, written, calls = {root(item) for item in flat_nodes(parts.carried)}, _written(parts), []
    for inner in parts.body.graph.nodes:
        if inner in before:
            continue
        try:
            call = found.get(inner)
            if call is not None:
                _check(parts, call, touched, written)
                calls.append(call)
                continue
        except _Refused as reason:
            reasons[inner] = str(reason)
        for item in found[inner].inside if inner in found else (inner,):
            touched |= set(_outside(parts, item))
    return calls, [
        f"{parts.attribute.target}: {inner.name} stays in its loop: {reason}"
        for inner, reason in reasons.items()
        if info(inner.target) is not None
    ]


def _outside(parts: LoopParts, node: Node) -> Iterator[Node]:
    """The tensors outside that a node of the body has as operands."""
    outside = dict(zip(parts.inside, parts.operands, strict=True))
    for item in flat_nodes((node.args, node.kwargs)):
        yield from (root(found) for found in flat_nodes(outside.get(item, ())))


def _written(parts: LoopParts) -> set[Node]:
    """The tensors outside that any node of the body writes directly."""
    outside = dict(zip(parts.inside, parts.operands, strict=True))
    found: set[Node] = set()
    for node in parts.body.graph.nodes:
        for item in flat_nodes(written_arguments(node)) if node.op == "call_function" else ():
            found |= {root(value) for value in flat_nodes(outside.get(item, ()))}
    return found


def _check(parts: LoopParts, call: LayerCall, touched: set[Node], written: set[Node]) -> None:
    """Raises _Refused where moving the call before the loop could be noticed."""
    whole = {root(item) for item in flat_nodes(parts.invariant)}
    for node in call.caches:
        if root(node) in whole:
            raise _Refused(f"the loop reads all of `{node.name}` in each iteration")
    for node in (*call.caches, *call.rows):
        if root(node) in touched:
            raise _Refused(f"the iteration touches `{node.name}` before")
    for node in flat_nodes(call.rest):
        if root(node) in written:
            raise _Refused(f"the loop writes `{node.name}`")


def batch_layers(module: GraphModule) -> tuple[GraphModule, list[str]]:
    """A copy of a step graph whose loops over layers have given away what they can, and why others could not."""
    made = clone(module)
    notes: list[str] = []
    for block in list(modules(made)):
        editor = Editor(block, ORIGIN)
        for node in [item for item in block.graph.nodes if is_loop(item)]:
            calls, found = batched_loop(node)
            notes += found
            for call in calls:
                with editor.before(node, *call.inside):
                    editor.call(call.target, *call.arguments)
                for inner in reversed(call.inside):
                    inner.graph.erase_node(inner)
            parts = loop_parts(node)
            if not node.users and all(item.op in ("placeholder", "output") for item in parts.body.graph.nodes):
                block.graph.erase_node(node)
        _merge(block)
    prune(made)
    return finish(made), notes


def _merge(block: GraphModule) -> None:
    """Calls of one op with the same other arguments become one, where nothing between them could notice."""
    for node in list(block.graph.nodes):
        if node.target in LISTS:
            other = _mergeable(node)
            if other is not None:
                lists = LISTS[node.target]
                before: Any = other.args[:lists]
                joined = [[*mine, *more] for mine, more in zip(before, node.args[:lists], strict=True)]
                other.args = (*joined, *other.args[lists:])
                inherit(other, node, ORIGIN)
                block.graph.erase_node(node)


def _mergeable(node: Node) -> Node | None:
    """The nearest call before `node` that it can join."""
    lists = LISTS[node.target]
    written = {root(item) for item in flat_nodes(node.args[:1])}
    touched = {root(item) for item in flat_nodes(node.args[:lists])}
    shared = {root(item) for item in flat_nodes(node.args[lists:])}
    other = node.prev
    while other.op not in ("root", "placeholder"):
        if other.op == "call_function":
            used = {root(item) for item in flat_nodes((other.args, other.kwargs))}
            writes = used if is_loop(other) and is_impure(other) else _writes(other)
            if used & written or writes & (touched | shared) or other in flat_nodes(node.args):
                return None
            if other.target is node.target and other.args[lists:] == node.args[lists:]:
                return other
        other = other.prev
    return None


def _writes(node: Node) -> set[Node]:
    return {root(item) for item in flat_nodes(written_arguments(node))}
